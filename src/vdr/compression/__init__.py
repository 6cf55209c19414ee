"""Smaller page indexes: nested prefix widths, HAC and its comparators, payload, index and search (EV §3.2, §5, §6.4–6.5)."""
