import numpy as np
import pytest

from vdr.supervision import RowPool


@pytest.fixture
def make_pool():
    def make(ratings, *, ranks=None, scores=None, row_id=0, labelled_score=50.0, labelled_rating=1.0, mined=True):
        count = len(ratings)
        ranks = np.arange(1, count + 1) if ranks is None else np.array(ranks)
        scores = 100.0 - ranks if scores is None else np.array(scores, dtype=float)
        return RowPool(
            row_id=row_id,
            pages=[f"p{r:03d}" for r in ranks],
            ranks=ranks,
            scores=scores,
            ratings=np.array([np.nan if r is None else r for r in ratings]),
            labelled="gold",
            labelled_score=labelled_score,
            labelled_rating=np.nan if labelled_rating is None else labelled_rating,
            labelled_mined=mined,
        )

    return make
