"""Reading a rating out of a teacher's reply (WT App. B).

The paper's rule: an integer from 0 to 100, divided by 100; a reply with no integer, or with an integer above 100,
is unparseable and dropped, never clipped. Where that leaves a choice, this reader takes the strict side:

* The *first* free-standing number of the reply decides ("I'd say 85", "85%", "85/100", "85 of 100" all read 85).
Later numbers neither replace it nor spoil it.
* That number must be an integer: "85.5" and "85.0" hold no integer (and "85.5 of 100" must not read as 100).
* A minus sign makes it a negative number, which is no rating: "-5" is unparseable. A dash between two numbers ("80-90")
  is not a sign; the first number is read.
* A reply whose first numbers are the scale itself ("I would say 0-100: 70", "from 0 to 100") is unparseable. Its 0 is the
  scale's end and no rating; taking the number after it would be a guess (there may be none, or it may be part of a
  sentence about the scale), and the paper drops what it cannot parse. A rating that comes before the scale ("70 on a
  scale of 0-100") is the first number and counts.
* Digits that belong to a word ("CR36L", "Q3", "1e2") are not numbers; digits of other scripts are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["REASONS", "Rating", "parse_rating", "read_rating"]

Reason = Literal["", "no_integer", "not_an_integer", "negative", "above_100", "scale_echoed"]
#: Why a reply holds no rating, in the order of the columns of `drops.csv`.
REASONS: tuple[str, ...] = tuple(reason for reason in get_args(Reason) if reason)

#: A number that no letter, digit or point touches from the left: sign, digits, and any decimal or thousands groups.
_NUMBER = re.compile(
    r"(?<![^\W_])(?<![0-9][.,])"
    r"(?P<sign>[-+\N{MINUS SIGN}]?)(?P<digits>(?:(?<![.,\w])[.,])?[0-9]+(?:[.,][0-9]+)*)(?![^\W_])"
)
#: The prompt's scale, said again: 0 (or 1) and 100 with a range between them. "0/100" and "0 of 100" are ratings.
_SCALE = re.compile(
    r"[01]\s*%?\s*"
    r"(?:[-\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}~,;]|\.{2,3}|\N{HORIZONTAL ELLIPSIS}|to|and|through|until)"
    r"\s*100(?![0-9]|[.,][0-9])"
)


@dataclass(frozen=True)
class Rating:
    """value: rating in [0, 1], or None where the reply is unparseable for `reason`."""

    value: float | None
    reason: Reason


def read_rating(reply: str) -> Rating:
    """The rating of a reply, with the reason where there is none (see the module's rules).

    >>> read_rating("85"), read_rating("101").reason
    (Rating(value=0.85, reason=''), 'above_100')
    """
    match = _NUMBER.search(reply)
    if match is None:
        return Rating(None, "no_integer")
    if _SCALE.match(reply, match.start("digits")):
        return Rating(None, "scale_echoed")
    if not match["digits"].isdigit():
        return Rating(None, "not_an_integer")
    digits = match["digits"].lstrip("0") or "0"
    if match["sign"] in ("-", "\N{MINUS SIGN}") and digits != "0":
        return Rating(None, "negative")
    # Length first: a reply may repeat a digit beyond what int() accepts.
    if len(digits) > 3 or int(digits) > 100:
        return Rating(None, "above_100")
    return Rating(int(digits) / 100, "")


def parse_rating(reply: str) -> float | None:
    """The rating in [0, 1], or None for an unparseable reply."""
    return read_rating(reply).value
