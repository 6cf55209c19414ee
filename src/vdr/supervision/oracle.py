"""Ratings by the truth: a named comparison where the truth is known, never the teacher."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vdr.teacher.labels import grades_of

__all__ = ["oracle_ratings"]


def oracle_ratings(scored: pd.DataFrame, grades: np.ndarray, row_ids: list[int], page_ids: list[str]) -> pd.DataFrame:
    """The scored pool rated by its true grades (0–3, UMBRELA), as grade / 3: relevant (2 or 3) lies above 0.5, 0
    and 1 below.

    grades: int8 [rows, pages] in the order of row_ids and page_ids. Same columns as ratings.parquet; the reply
    names its source.
    """
    grade = grades_of(scored, grades, row_ids, page_ids)
    return pd.DataFrame(
        {
            "row_id": scored["row_id"].to_numpy(),
            "page_id": scored["page_id"].to_numpy(),
            "rank": scored["rank"].to_numpy(),
            "rating": (grade / 3).astype(np.float32),
            "reply": [f"oracle: true grade {g}" for g in grade],
        }
    )
