"""Drawing a page to pixels: a monospace cell grid, so that a 14-pixel patch holds two characters of one line.

The grid is the miniature's resolution: 224×112 pixels are 32 columns × 8 lines, 16×8 patches, and 8×4 = 32 merged
tokens of eight characters each. Ink, paper, noise, rules, boxes and bars vary; characters stay on their cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CELL_W, CELL_H = 7, 14
COLUMNS, LINES = 32, 8
WIDTH, HEIGHT = COLUMNS * CELL_W, LINES * CELL_H
STYLES = ("Mono", "Mono-Bold", "Mono-Oblique")
FIRST, LAST = 32, 126  # printable ASCII


@lru_cache(maxsize=1)
def glyphs() -> np.ndarray:
    """Coverage of every printable character: float32 ``[style, character, CELL_H, CELL_W]`` in [0, 1].

    DejaVu Sans Mono comes with Matplotlib, so that nothing has to be installed on the system.
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    out = np.zeros((len(STYLES), LAST - FIRST + 1, CELL_H, CELL_W), dtype=np.float32)
    for s, style in enumerate(STYLES):
        font = ImageFont.truetype(str(folder / f"DejaVuSans{style}.ttf"), 11, layout_engine=ImageFont.Layout.BASIC)
        for c in range(FIRST, LAST + 1):
            cell = Image.new("L", (CELL_W, CELL_H), 0)
            ImageDraw.Draw(cell).text((0, 0), chr(c), font=font, fill=255)
            out[s, c - FIRST] = np.asarray(cell, dtype=np.float32) / 255.0
    return out


@dataclass
class Canvas:
    """A page being drawn. ``characters`` keeps what stands in each cell: the truth that a reader is checked against."""

    paper: tuple[float, float, float] = (1.0, 1.0, 1.0)
    ink: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pixels: np.ndarray = field(init=False)
    characters: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.pixels = np.empty((HEIGHT, WIDTH, 3), dtype=np.float32)
        self.pixels[:] = self.paper
        self.characters = np.full((LINES, COLUMNS), ord(" "), dtype=np.uint8)

    def box(self, line: int, column: int, lines: int, columns: int, colour: tuple[float, float, float]) -> None:
        """Fill cells with a colour (clipped to the page)."""
        self.pixels[line * CELL_H : (line + lines) * CELL_H, column * CELL_W : (column + columns) * CELL_W] = colour

    def rule(self, line: int, column: int = 0, columns: int = COLUMNS, weight: int = 1) -> None:
        """A horizontal rule at the foot of a line."""
        y = (line + 1) * CELL_H - 1
        self.pixels[y - weight + 1 : y + 1, column * CELL_W : (column + columns) * CELL_W] = self.ink

    def bar(self, line: int, column: int, pixels_long: int, colour: tuple[float, float, float]) -> None:
        """A horizontal bar, ``pixels_long`` wide, starting at a cell."""
        y, x = line * CELL_H, column * CELL_W
        self.pixels[y + 3 : y + CELL_H - 3, x : x + pixels_long] = colour

    def text(
        self, line: int, column: int, text: str, style: int = 0, ink: tuple[float, float, float] | None = None
    ) -> int:
        """Write text from a cell on, cut at the page's edge; returns the column after it."""
        text = text[: COLUMNS - column]
        if not (0 <= line < LINES) or not text:
            return column
        codes = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)
        cover = glyphs()[style, codes - FIRST].transpose(1, 0, 2).reshape(CELL_H, -1, 1)
        y, x = line * CELL_H, column * CELL_W
        area = self.pixels[y : y + CELL_H, x : x + cover.shape[1]]
        area[:] = area * (1 - cover) + np.asarray(ink or self.ink, dtype=np.float32) * cover
        self.characters[line, column : column + len(codes)] = codes
        return column + len(text)

    def finish(self, rng: np.random.Generator, noise: float) -> np.ndarray:
        """The page with scanner noise, uint8 ``[HEIGHT, WIDTH, 3]``."""
        grain = rng.normal(0.0, noise, size=(HEIGHT, WIDTH, 1)).astype(np.float32)
        return (np.clip(self.pixels + grain, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def words_on(characters: np.ndarray) -> list[tuple[int, int, str]]:
    """The words of a page as (line, first column, word), in reading order, from its character grid."""
    out = []
    for line, row in enumerate(characters):
        text = row.tobytes().decode("ascii")
        column = 0
        for word in text.split(" "):
            if word:
                out.append((line, column, word))
            column += len(word) + 1
    return out
