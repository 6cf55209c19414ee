"""From page and query vectors to run files, scores and verdicts (WT §3, Appendices D and I; EV Appendix A)."""
