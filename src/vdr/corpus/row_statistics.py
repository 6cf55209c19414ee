"""Counts of a training corpus's rows that say how its labels came about (WT §6, App. E); the same for every
corpus."""

from __future__ import annotations

import pandas as pd

__all__ = ["row_statistics"]


def row_statistics(rows: pd.DataFrame) -> dict[str, int]:
    """Rows, pages and repeated query strings. rows: query, page_id.

    repeated_query_strings: strings that occur in more than one row (2,736 in the papers' corpus);
    strings_on_more_than_one_page (2,620); most_pages_of_a_string (70); rows_with_a_repeated_string, and
    rows_repeating_a_string, the same less each string's first row; duplicate_rows: rows that repeat a (query, page)
    pair exactly, less each pair's first row (117).
    """
    by_string = rows.groupby("query")["page_id"].agg(["size", "nunique"])
    repeated = by_string[by_string["size"] > 1]
    return {
        "rows": len(rows),
        "pages": int(rows["page_id"].nunique()),
        "repeated_query_strings": len(repeated),
        "strings_on_more_than_one_page": int((by_string["nunique"] > 1).sum()),
        "most_pages_of_a_string": int(by_string["nunique"].max()) if len(by_string) else 0,
        "rows_with_a_repeated_string": int(repeated["size"].sum()),
        "rows_repeating_a_string": int((repeated["size"] - 1).sum()),
        "duplicate_rows": int(rows.duplicated(["query", "page_id"]).sum()),
    }
