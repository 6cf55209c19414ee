"""What the notebooks show: one module a chapter, functions from a record to tables and figures. Notebooks only call
these."""
