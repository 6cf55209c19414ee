"""Every fact of a page must be readable on it: the truth behind relevance is what is printed."""

from __future__ import annotations

import numpy as np
import pytest

from vdr.corpus import layouts, world
from vdr.corpus.draw import HEIGHT, WIDTH, words_on

DOMAIN_OF = {
    "letter": "form", "memo": "form", "receipt": "form", "table": "finance", "ledger": "finance", "prose": "finance",
    "article": "report", "slide": "report", "columns": "report", "barchart": "chart", "legend": "chart", "poster": "stat",
}  # fmt: skip


@pytest.mark.parametrize("family", sorted(layouts.FAMILIES))
@pytest.mark.parametrize("rare_share", [0.0, 1.0])
def test_every_fact_is_printed(family: str, rare_share: float) -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        page = world.draw_page(rng, "p", "s", DOMAIN_OF[family], family, rare_share=rare_share)
        pixels, characters = layouts.render(page)
        assert pixels.shape == (HEIGHT, WIDTH, 3) and pixels.dtype == np.uint8
        printed = {w.strip(":;,.*-").lower() for _, _, w in words_on(characters)}
        facts = [v for values in page.slots.values() for v in values] + [page.wording[k] for k in page.attributes]
        for fact in facts:
            assert {w.lower() for w in fact.split()} <= printed, (family, fact, characters.tobytes())


def test_same_record_draws_the_same_page() -> None:
    page = world.draw_page(np.random.default_rng(3), "p", "s", "finance", "table")
    assert np.array_equal(layouts.render(page)[0], layouts.render(page)[0])
