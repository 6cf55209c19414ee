"""What the mini teacher is taught: queries for a page, their ratings, and where their words stand on the page.

Queries come from easy (written for another page) to hard (one constraint off), as a curriculum. The scale is the
prompt's: 100 directly contains the answer, 50 or 75 part of it (50 where the query is broad and has no single answer), 20
a near miss that meets some but not all constraints, 0 irrelevant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu

from vdr.corpus import vocabulary as words
from vdr.corpus import world
from vdr.corpus.world import PageRecord, QueryRecord
from vdr.models.pretraining.pages import IN_DOMAIN

__all__ = ["Lesson", "auc", "describe", "draw_lesson", "draw_lesson_page", "rating_of"]


@dataclass(frozen=True)
class Lesson:
    """One (page, query) pair with the truth about it. ``presence``: query word → whether what it names holds of the page."""

    query: QueryRecord
    grade: int
    rating: int
    presence: dict[str, bool]


def draw_lesson_page(rng: np.random.Generator, page_id: str) -> PageRecord:
    """A page of the teacher's own split: in-domain layouts, a tenth of its names from the rare vocabulary."""
    domain, family = world.pick(rng, IN_DOMAIN)
    return world.draw_page(rng, page_id, "teacher", domain, family, rare_share=0.1)


def rating_of(query: QueryRecord, page: PageRecord, grade: int) -> int:
    """The integer 0–100 that a careful reader of the prompt would give."""
    if grade == 3:
        return 100
    if grade == 2:
        return 50 if query.breadth == "broad" else 75
    if grade == 1 and any(k in page.attributes for k in query.asked):
        met = [any(v in page.slots.get(slot, ()) for v in values) for slot, values in query.conditions.items()]
        return 20 if any(met) else 0
    return 0


def draw_lesson(
    rng: np.random.Generator,
    page: PageRecord,
    others: list[PageRecord],
    hard_share: float,
    *,
    written_for_page: bool = False,
) -> Lesson:
    """One query for ``page``: written for it (always, if asked), written for it with one constraint changed, or for another page."""
    kind = 0.0 if written_for_page else rng.random()
    specificity = _any_specificity(page.domain)
    if kind < 0.42:
        query = world.draw_query(rng, "", page, specificity, two_parts=0.15)
    elif kind < 0.42 + 0.58 * hard_share:
        query = _near_miss(rng, page, specificity)
    else:
        other = world.pick(rng, others)
        query = world.draw_query(rng, "", other, _any_specificity(other.domain), two_parts=0.15)
    grade = world.grade(query, page)
    return Lesson(query, grade, rating_of(query, page, grade), _presence(query, page))


def _any_specificity(domain: str) -> dict[str, float]:
    slots = [s for s, _, _ in world.DOMAIN_SLOTS[domain]]
    sets = {"none": 0.4, **dict.fromkeys(slots, 0.6 / len(slots))}
    return sets | {"+".join(slots): 0.3} if len(slots) > 1 else sets


def _near_miss(rng: np.random.Generator, page: PageRecord, specificity: dict[str, float]) -> QueryRecord:
    """A query for the page with one constraint changed to something that does not hold of it."""
    query = world.draw_query(rng, "", page, specificity, two_parts=0.15)
    slots = list(query.conditions)
    asked, conditions = list(query.asked), dict(query.conditions)
    if slots and rng.random() < 0.6:
        slot = world.pick(rng, slots)
        others = [v for v in words.COMMON[slot] if v not in page.slots[slot]]
        conditions[slot] = (world.pick(rng, others),) + conditions[slot][1:]
    else:
        absent = [a.key for a in world.DOMAINS[page.domain] if a.key not in page.attributes]
        asked[int(rng.integers(len(asked)))] = world.pick(rng, absent)
    text = world.phrase(rng, page.domain, asked, conditions, "train")
    return QueryRecord("", text, page.source, page.domain, tuple(asked), conditions)


def _presence(query: QueryRecord, page: PageRecord) -> dict[str, bool]:
    """For each content word of the query: does the attribute or the slot value it names hold of the page?"""
    found = {}
    for key in query.asked:
        for wording in words.ATTRIBUTES[key].query:
            found[wording.lower()] = key in page.attributes
    for slot, values in query.conditions.items():
        for value in values:
            found[value.lower()] = value in page.slots.get(slot, ())
    return found


def auc(truth: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve, ties counting a half: Mann–Whitney's U over the number of pairs."""
    yes, no = score[truth], score[~truth]
    return float(mannwhitneyu(yes, no).statistic / (len(yes) * len(no)))


def describe(query: QueryRecord, page: PageRecord) -> str:
    """The region that answers: the printed label, the words of its value, and what the page is about (in the page's own words).

    Bare numbers are left out: a teacher of this size cannot copy digits, and a student of this size does not read them.
    """
    parts = []
    for key in query.asked:
        if key in page.attributes:
            column = next((v for values in query.conditions.values() for v in values if (key, v) in page.values), None)
            if column is None:
                column = next(c for k, c in page.values if k == key)
            value = [w for w in page.values[(key, column)].split(" ") if w.isalpha() and len(w) > 2]
            parts.append(" ".join([page.wording[key], *value]))
    about = " ".join(v for values in page.slots.values() for v in values)
    return f"{', '.join(parts)}; {about}".lower()
