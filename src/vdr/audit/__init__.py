"""The human audit: how far can the teacher be trusted?

design → freeze → serve (the annotation page) → analyse → tables 4 and 13 of WT, table 6 of EV. `docs/audit.md` walks
through it.
"""
