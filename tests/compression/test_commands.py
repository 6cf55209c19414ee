"""`vdr hac`: an index of one's own vectors from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from vdr.compression.commands import app
from vdr.compression.demo import drawn_pages, index_lines
from vdr.errors import BadInput, UnfitMachine
from vdr.models.vectors import write_vectors

RUN = CliRunner()


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    place = tmp_path_factory.mktemp("vectors") / "set"
    write_vectors(place, *drawn_pages(pages=12))
    return place


def ask(*words: object) -> str:
    result = RUN.invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_build_search_verify_export(vectors, tmp_path):
    assert "12 pages, 576 vectors of width 32" in ask("index", vectors, tmp_path / "raw", "--method", "raw")
    assert "12 pages, 60 vectors of width 32" in ask("index", vectors, tmp_path / "hac", "-k", 5)
    lines = ask("search", tmp_path / "hac", vectors, "--depth", 3).splitlines()
    assert len(lines) == 36
    query, _, page, rank, score, tag = lines[0].split()
    assert (query, rank, tag) == ("query-00", "1", "hac")
    assert page.startswith("page-")
    assert 0 < float(score) <= 3
    manifest = json.loads(ask("info", tmp_path / "hac"))
    assert manifest["made_from"]["pooling"] == "hac-d32-k5"
    ask("export", tmp_path / "hac", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").stat().st_size > 60 * 32 * 2


def test_the_payload_of_the_paper():
    assert "3.81 GiB for 1000000 pages, 128.0 times smaller" in ask("payload", "-k", 32, "-d", 64)


def test_narrower_widths_have_to_be_trained(vectors, tmp_path):
    with pytest.raises(BadInput, match="width 16 was not trained"):
        ask("index", vectors, tmp_path / "narrow", "-d", 16)
    assert "width 16" in ask("index", vectors, tmp_path / "narrow", "-d", 16, "--trained", "16,32", "-k", 3)


@pytest.mark.parametrize(
    "words", [("-k", 0), ("-d", 0), ("--w-pos", "nan"), ("--w-pos", "2"), ("--trained", "a,b"), ("--trained", "16,,32")]
)
def test_impossible_sizes_are_refused(vectors, tmp_path, words):
    result = RUN.invoke(app, ["index", str(vectors), str(tmp_path / "new"), *map(str, words)])
    assert result.exit_code == 2 or isinstance(result.exception, BadInput)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [("reproduce", "ev-table99"), ("export", "nothing", "out"), ("info", "nothing")])
def test_errors_are_for_users(words, tmp_path):
    with pytest.raises((BadInput, UnfitMachine)):
        ask(*words)


def test_the_chapters_demonstration_finds_pages_again():
    lines = index_lines()
    assert len(lines) == 3
    found = [int(line.split("own page first: ")[1].split()[0]) for line in lines]
    assert found[0] >= 45
    assert found[2] >= found[1]


def test_chapters_read_their_record(tmp_path):
    from vdr.compression import chapters

    with pytest.raises(BadInput, match="no compression record"):
        chapters.open_chapter(tmp_path)
    assert chapters.agreement(pages=2, n=60) == "2 of 2 pages of 60 vectors: the same 16 clusters as SciPy's Ward"
    assert np.isfinite(chapters.position_figure((4, 3), 8).axes[0].images[0].get_array()).all()
