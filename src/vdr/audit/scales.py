"""The two grading scales: UMBRELA's four points (WT App. K) and the judge's answer completeness (EV App. C)."""

from __future__ import annotations

from dataclasses import dataclass

from vdr.errors import BadInput

__all__ = ["CANNOT_JUDGE", "EVIDENCE", "RELEVANCE", "SCALES", "TIERS", "Grade", "Scale", "scale_named"]

CANNOT_JUDGE = "x"
TIERS = ("full", "partial", "none")


@dataclass(frozen=True)
class Grade:
    """One answer: `value` is what is stored, `key` the keyboard key, the texts are shown to the annotator."""

    value: str
    key: str
    name: str
    meaning: str


@dataclass(frozen=True)
class Scale:
    name: str
    question: str
    grades: tuple[Grade, ...]
    boundary: str

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(grade.value for grade in self.grades)


RELEVANCE = Scale(
    "relevance",
    "How well does this page answer the query?",
    (
        Grade("3", "3", "Fully answers", "The page gives the whole answer to the query."),
        Grade(
            "2",
            "2",
            "Gives part of the answer",
            "You could write down some part of the true answer, citing only this page.",
        ),
        Grade("1", "1", "On topic, no answer", "The page is about the subject but does not answer the query."),
        Grade("0", "0", "Unrelated", "The page has nothing to do with the query."),
        Grade(
            CANNOT_JUDGE, "x", "Cannot judge", "Unreadable, in a language you do not read, or the query makes no sense."
        ),
    ),
    "The step from 1 to 2 matters most. Ask yourself: could I write down some part of the true answer, citing only "
    "this page? If yes, it is at least 2. A matching keyword is not an answer.",
)

EVIDENCE = Scale(
    "evidence",
    "How much evidence for an answer does this page hold?",
    (
        Grade("full", "f", "Full evidence", "The page alone supports a complete answer."),
        Grade("partial", "p", "Partial evidence", "The page holds useful support, but not enough for the answer."),
        Grade("none", "n", "No evidence", "The page does not support an answer."),
    ),
    "Judge the page alone. Useful but insufficient support is partial. A matching keyword is not evidence.",
)

SCALES = {scale.name: scale for scale in (RELEVANCE, EVIDENCE)}


def scale_named(name: str) -> Scale:
    """Look a scale up; raises `BadInput` for an unknown name."""
    if name not in SCALES:
        raise BadInput(
            f"unknown grading scale {name!r}", where="audit design, field scale", todo=f"known: {', '.join(SCALES)}"
        )
    return SCALES[name]
