"""The machine transcript of a page: a search aid for the annotator, never evidence (WT App. K, Ethics).

Where a page has no text, RapidOCR reads it (optional: `pip install rapidocr onnxruntime`; its models come inside the
package).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from vdr.audit.design import PageSource
from vdr.errors import UnfitMachine
from vdr.pixels import page_image
from vdr.progress import track

__all__ = ["ocr_available", "transcribe"]


def ocr_available() -> bool:
    """Whether RapidOCR can be imported."""
    try:
        import rapidocr  # noqa: F401
    except ImportError:
        return False
    return True


def _reader():
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise UnfitMachine(
            "page transcripts need RapidOCR, which is not installed",
            where="audit transcripts",
            todo="pip install rapidocr onnxruntime, or design the study without --ocr",
        ) from None
    return RapidOCR()


def transcribe(pages: Iterable[str], source: PageSource, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Text per page id: `known` text where there is some, OCR elsewhere (small pages are enlarged first).

    Raises `UnfitMachine` where OCR is needed and not installed.
    """
    texts = dict(known or {})
    unread = [page for page in pages if not texts.get(page)]
    if not unread:
        return texts
    engine = _reader()
    for page in track(unread, label="transcripts", unit="pages"):
        image = page_image(source(page), f"page {page}")
        if max(image.size) < 1000:
            factor = int(np.ceil(1000 / max(image.size)))
            image = image.resize((image.width * factor, image.height * factor))
        lines = engine(np.asarray(image)).txts
        texts[page] = "\n".join(lines or ())
    return texts
