from collections import Counter

import pytest

from vdr.mining.draws import draw


def test_a_draw_is_fixed_by_its_name():
    assert [draw(10, "band", 0, row, 2) for row in range(8)] == [draw(10, "band", 0, row, 2) for row in range(8)]
    assert draw(10**9, "band", 0, 1) != draw(10**9, "band", 1, 0)


def test_known_values_do_not_move():
    # Frozen pools rest on these: a change of the rule must be seen here first.
    assert [draw(10, "scored band", 0, row, 0) for row in range(6)] == [8, 1, 5, 0, 0, 3]


def test_draws_are_even():
    counts = Counter(draw(4, "even", i) for i in range(4000))
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) - min(counts.values()) < 160


def test_nothing_to_draw_from():
    with pytest.raises(ValueError, match="n=0"):
        draw(0, "x")
