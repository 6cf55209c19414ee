"""Transcripts: known text is kept, the rest is read where RapidOCR is installed, and its absence is one line."""

from __future__ import annotations

import sys

import pytest
from PIL import Image, ImageDraw

from vdr.audit.transcripts import ocr_available, transcribe
from vdr.errors import UnfitMachine


def page(page_id: str) -> Image.Image:
    image = Image.new("RGB", (300, 120), "white")
    ImageDraw.Draw(image).text((20, 40), "Total 4711", fill="black", font_size=32)
    return image


def test_known_text_needs_no_ocr(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    assert transcribe(["a"], page, {"a": "text"}) == {"a": "text"}


def test_missing_ocr_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    assert not ocr_available()
    with pytest.raises(UnfitMachine, match="pip install rapidocr"):
        transcribe(["a"], page)


@pytest.mark.slow
@pytest.mark.skipif(
    not ocr_available(), reason="RapidOCR is not installed (optional: pip install rapidocr onnxruntime)"
)
def test_ocr_reads_a_page():
    assert "4711" in transcribe(["a", "b"], page, {"b": "known"})["a"]
