"""A study of five own pages and two queries, without corpus, teacher or ratings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from vdr.audit.analysis import analyse_relevance
from vdr.audit.commands import app
from vdr.audit.journal import Journal
from vdr.audit.judgements import study_from_folder
from vdr.audit.ownpages import design_own, read_own_pages
from vdr.audit.study import freeze, write_study
from vdr.errors import BadInput

QUERIES = "query_id,query,breadth,labelled_page\nq1,What is the total?,specific,two.png\nq2,Who signed?,broad,\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    pages = tmp_path / "pages"
    pages.mkdir()
    for number, name in enumerate(("one.png", "two.png", "three.png", "four.jpg", "five.png")):
        Image.new("RGB", (60, 80), (40 * number, 90, 200)).save(pages / name)
    (pages / "one.txt").write_text("Total: 12")
    (tmp_path / "queries.csv").write_text(QUERIES)
    return tmp_path


def test_three_people_grade_five_pages(folder):
    own = read_own_pages(folder / "pages", folder / "queries.csv")
    assert own.transcripts == {"one.png": "Total: 12"}
    design = design_own(own, annotators=3, seed=0)
    assert [len(items) for items in design.orders.values()] == [10, 10, 10]
    frozen = freeze(write_study(folder / "study", design, own.source(), title="Mine", transcripts=own.transcripts))
    page_of = frozen.pairs.set_index("item")["page_id"]
    for name, items in frozen.orders.items():
        file = frozen.path / "judgements" / f"{name}.jsonl"
        journal = Journal(file, study_id=frozen.study_id, annotator=name, items=items, grades=("3", "2", "1", "0", "x"))
        journal.consent()
        for item in items:
            journal.judge(item, "3" if page_of[item] in ("one.png", "two.png") else "0", 5.0, revision=0)
    result = analyse_relevance(study_from_folder(frozen))
    # No ratings: what concerns the teacher has no value, agreement among people has.
    assert result["headline"]["precision"]["value"] is None
    assert result["headline"]["teacher_human_kappa"]["value"] is None
    assert result["headline"]["human_human_kappa"]["value"] == pytest.approx(1.0)
    assert result["headline"]["relevant_per_query"]["value"] == pytest.approx(2.0)  # q2, of five
    assert [row["gold_relevant"] for row in result["annotators"]] == [1, 1, 1]


def test_ratings_restrict_the_pairs(folder):
    (folder / "ratings.csv").write_text(
        "query_id,page,score\nq1,one.png,0.9\nq1,two.png,0.4\nq2,two.png,0.5\nq2,five.png,0\n"
    )
    own = read_own_pages(folder / "pages", folder / "queries.csv", folder / "ratings.csv")
    assert len(own.pairs) == 4
    table = own.pairs.set_index(["query_id", "page_id"])
    assert table.loc[("q1", "two.png"), "role"] == "labelled"
    assert table.loc[("q1", "two.png"), "rank"] == 0
    assert table.loc[("q2", "two.png"), "rank"] == 1
    assert design_own(own, annotators=3, seed=0).queries.set_index("query_id")["hedge"].to_dict() == {
        "q1": False,
        "q2": True,
    }


@pytest.mark.parametrize(
    ("queries", "what"),
    [
        ("query_id,query\nq1,a\n", "at least two"),
        ("query_id,query\nq1,a\nq1,b\n", "twice"),
        ("query_id,query\nq1,a\nq2, \n", "row 2: query_id or query is blank"),
        ("query_id,query,breadth\nq1,a,wide\nq2,b,\n", "wide"),
        ("query_id,query,labelled_page\nq1,a,../../etc/passwd\nq2,b,\n", "is not in"),
        ("id,text\n1,a\n", "query_id"),
    ],
)
def test_bad_queries_are_refused(folder, queries, what):
    (folder / "queries.csv").write_text(queries)
    with pytest.raises(BadInput, match=what):
        read_own_pages(folder / "pages", folder / "queries.csv")


@pytest.mark.parametrize(
    "row", ["q9,one.png,1", "q1,../one.png,1", "q1,one.png,1.5", "q1,one.png,nan", "q1,one.png,high"]
)
def test_bad_ratings_are_refused(folder, row):
    (folder / "ratings.csv").write_text(f"query_id,page,score\n{row}\n")
    with pytest.raises(BadInput, match=r"ratings.csv, row 1"):
        read_own_pages(folder / "pages", folder / "queries.csv", folder / "ratings.csv")


def test_a_file_that_is_no_image_is_named(folder):
    (folder / "pages" / "five.png").write_bytes(b"not an image")
    own = read_own_pages(folder / "pages", folder / "queries.csv")
    with pytest.raises(BadInput, match=r"five.png"):
        write_study(folder / "study", design_own(own, annotators=3, seed=0), own.source(), title="Mine")


def test_folder_without_images(folder):
    with pytest.raises(BadInput, match="no page images"):
        read_own_pages(_empty(folder), folder / "queries.csv")
    with pytest.raises(BadInput, match="no such folder"):
        read_own_pages(folder / "nowhere", folder / "queries.csv")


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_image_orientation_and_profile_are_flattened(folder):
    image = Image.fromarray(np.zeros((10, 30, 3), dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(folder / "pages" / "five.jpg", exif=exif)
    (folder / "pages" / "five.png").unlink()
    own = read_own_pages(folder / "pages", folder / "queries.csv")
    study = write_study(folder / "study", design_own(own, annotators=3, seed=0), own.source(), title="Mine")
    sizes = set()
    for file in (study / "open" / "pages").iterdir():
        with Image.open(file) as saved:
            sizes.add(saved.size)
            assert saved.info == {}
    assert (10, 30) in sizes


def test_what_is_given_is_read_before_anything_is_made(folder, monkeypatch):
    monkeypatch.setattr("vdr.audit.commands._from_artefacts", lambda *_: pytest.fail("made before the input was read"))

    def ask(*words):
        with pytest.raises(BadInput) as caught:
            CliRunner().invoke(app, ["design", *map(str, words)], catch_exceptions=False)
        return str(caught.value)

    assert "nowhere.yaml: no such plan file" in ask(folder / "study", "--plan", folder / "nowhere.yaml")
    assert "this is a folder" in ask(folder / "study", "--plan", folder)
    assert "pages: this is a folder" in ask(folder / "study", "--pages", folder / "pages", "--queries", folder / "pages")
    assert "is there already" in ask(folder)
    assert not (folder / "study").exists()
    for number in ("0", "1"):
        assert CliRunner().invoke(app, ["design", str(folder / "study"), "--annotators", number]).exit_code == 2
