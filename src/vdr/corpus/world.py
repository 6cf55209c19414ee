"""Pages and queries as facts: what a page bears, what a query asks, and the exact grade of any pair.

A page bears *attributes* (a date, a revenue, benefits …) under *slots* (entity, years, topic, place, data set). A query
asks for one or two attributes under conditions on slots. Grades follow the four-point scale of WT App. K (UMBRELA):

* 3, full answer: every condition holds and every asked part is on the page;
* 2, part of the answer: every condition holds and some asked part is on the page;
* 1, on topic: an asked attribute is on the page but a condition fails, or the conditions hold but nothing asked is there;
* 0, unrelated.

An asked part is an (attribute, year) pair where the query names years, else an attribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from vdr.corpus import vocabulary as words

T = TypeVar("T")

DOMAINS = {
    "form": words.FORM,
    "finance": words.FINANCE,
    "report": words.REPORT,
    "chart": words.CHART,
    "stat": words.STATISTIC,
}
# Which slots a page of a domain has, with the number of values it can hold.
DOMAIN_SLOTS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "form": (("entity", 1, 1), ("year", 1, 1)),
    "finance": (("entity", 1, 1), ("year", 2, 2)),
    "report": (("topic", 1, 1),),
    "chart": (("dataset", 1, 2),),
    "stat": (("place", 2, 3),),
}
DOMAIN_ATTRIBUTES = {"form": (3, 5), "finance": (3, 5), "report": (2, 4), "chart": (1, 2), "stat": (2, 3)}
# Attributes of a domain are borne with frequencies falling as 1/rank**popularity: most forms have a date, few a return address.
POPULARITY = {"form": 1.6, "finance": 1.2, "report": 0.5, "chart": 0.8, "stat": 0.3}
# A family that has room for fewer attributes than its domain may hold.
FAMILY_ROOM = {"ledger": 4}


@dataclass(frozen=True)
class PageRecord:
    """The truth behind a page. ``values`` maps ``(attribute, slot value or "")`` to the printed answer."""

    page_id: str
    source: str
    domain: str
    family: str
    slots: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    wording: dict[str, str]
    values: dict[tuple[str, str], str]
    distractor: str | None = None
    layout_seed: int = 0


@dataclass(frozen=True)
class QueryRecord:
    """The truth behind a query: asked attributes under conditions (slot → values, years may be two)."""

    query_id: str
    text: str
    source: str
    domain: str
    asked: tuple[str, ...]
    conditions: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def breadth(self) -> str:
        """``broad`` if the query names no slot, so that it has no single determinate answer; else ``specific``."""
        return "specific" if self.conditions else "broad"


def pick(rng: np.random.Generator, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
    """One of ``options`` (kept as the Python object it is)."""
    if weights is None:
        return options[int(rng.integers(len(options)))]
    return options[int(rng.choice(len(options), p=np.asarray(weights) / np.sum(weights)))]


def slot_values(slot: str, rare_share: float, rng: np.random.Generator) -> tuple[str, ...]:
    """The vocabulary that a slot's value is drawn from this time: common, or rare with probability ``rare_share``."""
    return words.RARE[slot] if rng.random() < rare_share else words.COMMON[slot]


def draw_page(
    rng: np.random.Generator,
    page_id: str,
    source: str,
    domain: str,
    family: str,
    *,
    rare_share: float = 0.0,
    distractor_share: float = 0.25,
) -> PageRecord:
    """One page of ``domain`` with random facts.

    ``distractor_share``: probability of a footer that names a slot value without the page being about it, so that a
    keyword match is not relevance (WT App. K's warning to annotators).
    """
    slots: dict[str, tuple[str, ...]] = {}
    for slot, low, high in DOMAIN_SLOTS[domain]:
        values = slot_values(slot, rare_share, rng)
        count = int(rng.integers(low, high + 1))
        if slot == "year" and count > 1:
            start = int(rng.integers(len(values) - count + 1))
            slots[slot] = tuple(values[start : start + count])
        else:
            slots[slot] = tuple(values[i] for i in rng.permutation(len(values))[:count])
    low, high = DOMAIN_ATTRIBUTES[domain]
    high = min(high, FAMILY_ROOM.get(family, high))
    group = DOMAINS[domain]
    popularity = 1.0 / (1.0 + np.arange(len(group))) ** POPULARITY[domain]
    count = int(rng.integers(low, high + 1))
    chosen = [
        group[i] for i in sorted(rng.choice(len(group), size=count, replace=False, p=popularity / popularity.sum()))
    ]
    wording = {a.key: pick(rng, a.page) for a in chosen}
    values_map: dict[tuple[str, str], str] = {}
    for attribute in chosen:
        for column in _columns(domain, slots):
            values_map[(attribute.key, column)] = _value(rng, attribute.key, slots)
    distractor = None
    if rng.random() < distractor_share:
        slot = pick(rng, list(slots))
        others = [v for v in words.COMMON[slot] if v not in slots[slot]]
        distractor = pick(rng, words.DISTRACTORS).format(pick(rng, others))
    return PageRecord(
        page_id,
        source,
        domain,
        family,
        slots,
        tuple(a.key for a in chosen),
        wording,
        values_map,
        distractor,
        int(rng.integers(2**31)),
    )


def _columns(domain: str, slots: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What a value is keyed by besides its attribute: years of a table, places of an infographic, methods of a chart."""
    return {"finance": slots.get("year", ()), "stat": slots.get("place", ()), "chart": slots.get("dataset", ())}.get(
        domain, ("",)
    )


def _value(rng: np.random.Generator, key: str, slots: dict[str, tuple[str, ...]]) -> str:
    domain, name = key.split(".")
    if domain == "finance":
        return str(int(rng.integers(20, 999)))
    if domain == "stat":
        return f"{int(rng.integers(3, 98))}%"
    if domain == "chart":
        return pick(rng, words.METHODS)
    if domain == "report":
        return f"{pick(rng, words.FILLERS)} {pick(rng, words.FILLER_NOUNS)}"
    year = slots["year"][0]
    person = f"{'ABCDEFGHJKLM'[int(rng.integers(12))]}. {pick(rng, words.SURNAMES)}"
    return {
        "date": f"{int(rng.integers(1, 29))} {pick(rng, words.MONTHS)} {year}",
        "amount": f"${int(rng.integers(10, 9999))}",
        "phone": f"{int(rng.integers(100, 999))}-{int(rng.integers(1000, 9999))}",
        "department": pick(rng, words.OFFICES),
        "order": f"{'ABCD'[int(rng.integers(4))]}{int(rng.integers(100, 9999))}",
        "carrier": pick(rng, words.CARRIERS),
        "title": pick(rng, words.ROLES),
        "subject": pick(rng, words.SUBJECTS),
    }.get(name, person)


def draw_query(
    rng: np.random.Generator,
    query_id: str,
    page: PageRecord,
    specificity: dict[str, float],
    *,
    phrasing: str = "train",
    two_parts: float = 0.12,
) -> QueryRecord:
    """A query written against one page (its grade there is 3).

    ``specificity`` maps condition sets (slot names joined by ``+``, or ``none``) to their probabilities.
    """
    names = list(specificity)
    chosen = pick(rng, names, [specificity[n] for n in names])
    slots = [] if chosen == "none" else chosen.split("+")
    conditions: dict[str, tuple[str, ...]] = {slot: (pick(rng, page.slots[slot]),) for slot in slots}
    asked = [pick(rng, page.attributes)]
    if rng.random() < two_parts:
        if "year" in conditions and len(page.slots["year"]) > 1:
            start = int(rng.integers(len(page.slots["year"]) - 1))
            conditions["year"] = page.slots["year"][start : start + 2]
        elif len(page.attributes) > 1:
            asked.append(pick(rng, [a for a in page.attributes if a != asked[0]]))
    text = phrase(rng, page.domain, asked, conditions, phrasing)
    return QueryRecord(query_id, text, page.source, page.domain, tuple(asked), conditions)


def phrase(
    rng: np.random.Generator, domain: str, asked: Sequence[str], conditions: dict[str, tuple[str, ...]], phrasing: str
) -> str:
    """The query's words: a template of the domain, the conditions after the asked attributes."""
    template = pick(rng, words.TEMPLATES[phrasing][domain])
    names = " and ".join(pick(rng, words.ATTRIBUTES[key].query) for key in asked)
    tail = "".join(
        " " + pick(rng, words.CONDITIONS[phrasing][slot]).format(" and ".join(values))
        for slot, values in conditions.items()
    )
    text = template.format(a=names)
    return text[:-1] + tail + "?" if text.endswith("?") else text + tail


def grade(query: QueryRecord, page: PageRecord) -> int:
    """The relevance grade 0–3 of a page for a query; see the module's docstring for the scale."""
    if query.domain != page.domain:
        return 0
    years = query.conditions.get("year", ())
    hard = {slot: values for slot, values in query.conditions.items() if slot != "year"}
    held = all(any(v in page.slots.get(slot, ()) for v in values) for slot, values in hard.items())
    borne = [key in page.attributes for key in query.asked]
    year_held = [y in page.slots.get("year", ()) for y in years] or [True]
    parts = [b and y for b in borne for y in year_held]
    if held and all(parts):
        return 3
    if held and any(parts):
        return 2
    if any(borne) or (query.conditions and held and any(year_held)):
        return 1
    return 0


def grades(queries: Sequence[QueryRecord], pages: Sequence[PageRecord]) -> np.ndarray:
    """Grades of every pair, int8 ``[len(queries), len(pages)]``; queries with the same facts are graded once."""
    out = np.zeros((len(queries), len(pages)), dtype=np.int8)
    cache: dict[tuple, np.ndarray] = {}
    for i, query in enumerate(queries):
        facts = (query.domain, query.asked, tuple(sorted(query.conditions.items())))
        if facts not in cache:
            cache[facts] = np.fromiter((grade(query, page) for page in pages), dtype=np.int8, count=len(pages))
        out[i] = cache[facts]
    return out
