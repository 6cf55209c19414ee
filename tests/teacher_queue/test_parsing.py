import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdr.teacher.parsing import parse_rating, read_rating

GOLDEN = [
    # reply, rating, reason
    ("0", 0.0, ""),
    ("100", 1.0, ""),
    ("85", 0.85, ""),
    (" 85\n", 0.85, ""),
    ("007", 0.07, ""),
    ("+85", 0.85, ""),
    ("85.", 0.85, ""),
    ("85, because the table gives it.", 0.85, ""),
    ("85%", 0.85, ""),
    ("100%", 1.0, ""),
    ("I'd say 85", 0.85, ""),
    ("Rating: 85", 0.85, ""),
    ("**85**", 0.85, ""),
    ("_85_", 0.85, ""),
    ("(85)", 0.85, ""),
    ("85/100", 0.85, ""),
    ("85 of 100", 0.85, ""),
    ("85 out of 100", 0.85, ""),
    ("85 (the year 2019 matches)", 0.85, ""),
    ("80-90", 0.8, ""),
    ("80–90", 0.8, ""),
    ("20 or 30", 0.2, ""),
    ("CR36L: 40", 0.4, ""),
    ("-0", 0.0, ""),
    ("", None, "no_integer"),
    ("   ", None, "no_integer"),
    ("relevant", None, "no_integer"),
    ("eighty-five", None, "no_integer"),
    ("CR36L", None, "no_integer"),
    ("Q3", None, "no_integer"),
    ("1e2", None, "no_integer"),
    ("85a", None, "no_integer"),
    ("८५", None, "no_integer"),
    ("８５", None, "no_integer"),
    ("85.5", None, "not_an_integer"),
    ("85.0", None, "not_an_integer"),
    ("85,5", None, "not_an_integer"),
    ("0.85", None, "not_an_integer"),
    ("85.5 of 100", None, "not_an_integer"),
    (".85", None, "not_an_integer"),
    ("Rating...85", 0.85, ""),
    ("1,000", None, "not_an_integer"),
    ("-5", None, "negative"),
    ("−5", None, "negative"),
    ("about -5 of 100", None, "negative"),
    ("101", None, "above_100"),
    ("850", None, "above_100"),
    ("2019", None, "above_100"),
    ("2019: 85", None, "above_100"),
    ("9" * 5000, None, "above_100"),
    ("0" * 5000 + "42", 0.42, ""),
    # the scale, said again: its 0 is no rating, and the number after it would be a guess
    ("I would say 0-100: 70", None, "scale_echoed"),
    ("0-100", None, "scale_echoed"),
    ("0 – 100: 70", None, "scale_echoed"),
    ("On a scale from 0 to 100, I rate it 85.", None, "scale_echoed"),
    ("between 0 and 100", None, "scale_echoed"),
    ("0% to 100%: 70%", None, "scale_echoed"),
    ("[0, 100] 70", None, "scale_echoed"),
    ("[0,100] 70", None, "scale_echoed"),
    ("0...100", None, "scale_echoed"),
    ("1-100: 70", None, "scale_echoed"),
    # a rating before the scale counts, and so does 0 of 100
    ("70 on a scale of 0-100", 0.7, ""),
    ("0/100", 0.0, ""),
    ("0 of 100", 0.0, ""),
    ("0 out of 100", 0.0, ""),
    ("0 - 1000 pages", 0.0, ""),
    ("10-100", 0.1, ""),
]


@pytest.mark.parametrize(("reply", "value", "reason"), GOLDEN)
def test_golden_replies(reply, value, reason):
    rating = read_rating(reply)
    assert (rating.value, rating.reason) == (value, reason)
    assert parse_rating(reply) == value


@given(st.integers(0, 100))
def test_every_integer_of_the_scale(n):
    assert parse_rating(str(n)) == n / 100


@given(st.integers(101, 10**9))
def test_nothing_above_the_scale_is_clipped(n):
    assert read_rating(str(n)).reason == "above_100"


@given(st.text(max_size=30))
def test_any_reply_gives_a_rating_or_a_reason(reply):
    rating = read_rating(reply)
    assert (rating.value is None) == (rating.reason != "")
    assert rating.value is None or 0.0 <= rating.value <= 1.0
