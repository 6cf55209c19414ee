"""From a page's facts to a drawn page: the layout families.

In-domain families (``letter``, ``memo``, ``table``, ``article``, ``barchart``, ``poster``) make the training corpus;
the out-of-domain families (``ledger``, ``slide``, ``prose``, ``receipt``, ``columns``, ``legend``) draw the same kinds of
facts in arrangements that training never shows. ``scatter`` is for learning to read: words anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vdr.corpus import vocabulary as words
from vdr.corpus.draw import COLUMNS, LINES, Canvas
from vdr.corpus.world import PageRecord, pick

INKS = ((0.0, 0.0, 0.0), (0.1, 0.1, 0.35), (0.3, 0.05, 0.05), (0.05, 0.25, 0.1), (0.2, 0.2, 0.2))
PAPERS = ((1.0, 1.0, 1.0), (0.97, 0.95, 0.88), (0.9, 0.94, 0.98), (0.93, 0.93, 0.93))
ACCENTS = ((0.75, 0.85, 0.95), (0.95, 0.85, 0.75), (0.8, 0.92, 0.8), (0.92, 0.82, 0.92))


def render(page: PageRecord) -> tuple[np.ndarray, np.ndarray]:
    """Draw a page: (uint8 pixels ``[112, 224, 3]``, characters uint8 ``[8, 32]``)."""
    rng = np.random.default_rng(page.layout_seed)
    canvas = Canvas(paper=pick(rng, PAPERS), ink=pick(rng, INKS))
    FAMILIES[page.family](canvas, page, rng)
    if page.distractor:
        canvas.text(LINES - 1, int(rng.integers(0, 8)), page.distractor, style=2)
    return canvas.finish(rng, noise=float(rng.uniform(0.0, 0.06))), canvas.characters


def _pairs(page: PageRecord) -> list[tuple[str, str]]:
    return [(page.wording[key], page.values[(key, "")]) for key in page.attributes]


def _letter(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    (entity,), (year,) = page.slots["entity"], page.slots["year"]
    c.text(0, int(rng.integers(0, 12)), f"{entity} {pick(rng, ('Company', 'Limited', 'Group'))}", style=1)
    c.text(1, int(rng.integers(0, 14)), f"{pick(rng, ('Invoice', 'Request', 'Notice', 'Record'))} {year}")
    c.rule(1)
    line = 2
    for label, value in _pairs(page):
        c.text(line, int(rng.integers(0, 3)), f"{label}: {value}")
        line += 1


def _memo(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    (entity,), (year,) = page.slots["entity"], page.slots["year"]
    c.box(0, 0, 1, COLUMNS, pick(rng, ACCENTS))
    c.text(0, 1, "Memo", style=1)
    c.text(0, 8, f"{entity} {year}", style=1)
    left = 14 + int(rng.integers(0, 3))
    for i, (label, value) in enumerate(_pairs(page)):
        c.text(1 + i, 1, label, style=1)
        c.text(1 + i, left, value)
        if rng.random() < 0.4:
            c.rule(1 + i, 1, 30)


def _table(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    (entity,), years = page.slots["entity"], page.slots["year"]
    c.text(0, int(rng.integers(0, 8)), f"{entity} {pick(rng, ('accounts', 'statement', 'balance'))}", style=1)
    left, step = 17, 5
    for j, year in enumerate(years):
        c.text(1, left + step * j, year, style=1)
    c.rule(1)
    shade = pick(rng, ACCENTS)
    for i, key in enumerate(page.attributes):
        if rng.random() < 0.5:
            c.box(2 + i, 0, 1, COLUMNS, shade)
        c.text(2 + i, 0, page.wording[key])
        for j, year in enumerate(years):
            c.text(2 + i, left + step * j, page.values[(key, year)])


def _article(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    (topic,) = page.slots["topic"]
    c.text(0, int(rng.integers(0, 6)), f"{topic} {pick(rng, ('report', 'review', 'study'))}".upper(), style=1)
    c.rule(0)
    line = 1
    for label, value in _pairs(page):
        c.text(line, 0, label, style=1)
        if len(page.attributes) <= 3 and rng.random() < 0.6:
            c.text(line + 1, 1, value)
            line += 2
        else:
            c.text(line, len(label) + 2, value)
            line += 1


def _barchart(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    c.text(0, 0, f"Figure {int(rng.integers(1, 9))}", style=1)
    line = 1
    for key in page.attributes:
        c.text(line, 0, page.wording[key], style=1)
        line += 1
        for dataset in page.slots["dataset"]:
            best = page.values[(key, dataset)]
            c.text(line, 0, dataset)
            c.bar(line, 9, int(rng.integers(60, 100)), pick(rng, ACCENTS))
            c.text(line, 10, best)
            line += 1


def _poster(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    c.box(0, 0, 1, COLUMNS, (0.15, 0.25, 0.45))
    for j, place in enumerate(page.slots["place"]):
        c.text(0, 11 + 7 * j, place, style=1, ink=(1.0, 1.0, 1.0))
    for i, key in enumerate(page.attributes):
        line = 1 + 2 * i
        c.box(line, 0, 1, 10, pick(rng, ACCENTS))
        c.text(line, 0, page.wording[key], style=1)
        for j, place in enumerate(page.slots["place"]):
            c.text(line, 12 + 7 * j, page.values[(key, place)], style=1)


def _ledger(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    """Years down, attributes across in blocks of two: the table turned round."""
    (entity,), years = page.slots["entity"], page.slots["year"]
    c.text(LINES - 2, 2, f"{pick(rng, ('Source', 'Prepared by'))} {entity}", style=2)
    line = 0
    for start in range(0, len(page.attributes), 2):
        block = page.attributes[start : start + 2]
        for j, key in enumerate(block):
            c.text(line, 5 + 14 * j, page.wording[key], style=1)
        for i, year in enumerate(years):
            c.text(line + 1 + i, 0, year)
            for j, key in enumerate(block):
                c.text(line + 1 + i, 7 + 14 * j, page.values[(key, year)])
        line += len(years) + 1


def _slide(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    (topic,) = page.slots["topic"]
    c.box(LINES - 2, 0, 1, COLUMNS, pick(rng, ACCENTS))
    c.text(LINES - 2, 10, f"Lecture: {topic}", style=1)
    for i, (label, value) in enumerate(_pairs(page)):
        c.text(i, 0, f"* {value} - {label.lower()}")


def _prose(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    """Finance facts in running sentences."""
    (entity,), years = page.slots["entity"], page.slots["year"]
    text = [f"In {' and '.join(years)} {entity} reports"]
    text += [
        f"{page.wording[key].lower()} of {', '.join(page.values[(key, y)] for y in years)};" for key in page.attributes
    ]
    _flow(c, " ".join(text).split(" "), 0)


def _receipt(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    """Values above their labels, issuer at the foot."""
    (entity,), (year,) = page.slots["entity"], page.slots["year"]
    pairs = _pairs(page)
    for i, (label, value) in enumerate(pairs):
        line, column = 2 * (i // 2), 17 * (i % 2)
        c.text(line, column, value, style=1)
        c.text(line + 1, column, label.upper())
    c.text(LINES - 2, 6, f"issued {year} {entity}", style=2)


def _columns(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    (topic,) = page.slots["topic"]
    for i, (label, value) in enumerate(_pairs(page)):
        line, column = 3 * (i // 2), 17 * (i % 2)
        c.text(line, column, label.lower(), style=2)
        first, second = value.split(" ", 1)
        c.text(line + 1, column, first)
        c.text(line + 2, column, second)
    c.text(LINES - 2, 8, f"- {topic} -", style=1)


def _legend(c: Canvas, page: PageRecord, rng: np.random.Generator) -> None:
    line = 0
    for dataset in page.slots["dataset"]:
        for key in page.attributes:
            c.bar(line, 0, int(rng.integers(40, 150)), pick(rng, ACCENTS))
            c.text(line, 0, f"{page.values[(key, dataset)]}: {page.wording[key]}, {dataset}")
            line += 1
    c.text(LINES - 2, 3, "comparison of approaches", style=2)


def _flow(c: Canvas, tokens: list[str], line: int) -> None:
    column = 0
    for token in tokens:
        if column + len(token) > COLUMNS:
            line, column = line + 1, 0
        column = c.text(line, column, token) + 1


FAMILIES: dict[str, Callable[[Canvas, PageRecord, np.random.Generator], None]] = {
    "letter": _letter, "memo": _memo, "table": _table, "article": _article, "barchart": _barchart, "poster": _poster,
    "ledger": _ledger, "slide": _slide, "prose": _prose, "receipt": _receipt, "columns": _columns, "legend": _legend,
}  # fmt: skip


def reading_words() -> list[str]:
    """Every word that can be printed or asked, for the tokenizer and for pages that only teach reading."""
    found: dict[str, None] = {}
    texts: list[str] = [w for a in words.ATTRIBUTES.values() for w in (*a.page, *a.query)]
    for table in (words.COMMON, words.RARE):
        texts += [v for values in table.values() for v in values]
    texts += [
        *words.METHODS,
        *words.SURNAMES,
        *words.MONTHS,
        *words.OFFICES,
        *words.CARRIERS,
        *words.ROLES,
        *words.SUBJECTS,
    ]
    texts += [*words.FILLERS, *words.FILLER_NOUNS, *words.DISTRACTORS, *words.GRADE_WORDS]
    texts += ["Company Limited Group Invoice Request Notice Record Memo accounts statement balance report review study"]
    texts += ["Figure Source Prepared by Lecture In and reports of issued comparison approaches Acme"]
    for phrasing in ("train", "other"):
        texts += [t for group in words.TEMPLATES[phrasing].values() for t in group]
        texts += [t for group in words.CONDITIONS[phrasing].values() for t in group]
    for text in texts:
        for word in text.replace("{a}", "").replace("{}", "").replace("?", "").replace(":", "").split():
            found.setdefault(word, None)
    return list(found)


def scatter(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A page of words and numbers in arbitrary places, for learning to read: pixels and characters as ``render`` gives."""
    vocabulary = _reading_vocabulary()
    canvas = Canvas(paper=pick(rng, PAPERS), ink=pick(rng, INKS))
    for line in range(LINES):
        column = int(rng.integers(0, 6))
        if rng.random() < 0.15:
            canvas.box(line, 0, 1, COLUMNS, pick(rng, ACCENTS))
        style = int(rng.integers(0, 3))
        while column < COLUMNS - 2 and rng.random() < 0.85:
            word = pick(rng, vocabulary) if rng.random() < 0.75 else _number(rng)
            case = rng.random()
            word = (
                word.upper()
                if case < 0.12
                else word.lower()
                if case < 0.3
                else word.capitalize()
                if case < 0.45
                else word
            )
            if column + len(word) > COLUMNS:
                break
            column = canvas.text(line, column, word, style=style) + int(rng.integers(1, 4))
        if rng.random() < 0.1:
            canvas.rule(line)
    return canvas.finish(rng, noise=float(rng.uniform(0.0, 0.06))), canvas.characters


def _reading_vocabulary(cache: list[str] = []) -> list[str]:  # noqa: B006 - one list for the process
    if not cache:
        cache.extend(reading_words())
    return cache


def _number(rng: np.random.Generator) -> str:
    kind = int(rng.integers(4))
    if kind == 0:
        return str(int(rng.integers(2004, 2020)))
    if kind == 1:
        return f"{int(rng.integers(1, 100))}%"
    if kind == 2:
        return f"${int(rng.integers(1, 9999))}"
    return str(int(rng.integers(0, 9999)))
