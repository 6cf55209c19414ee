import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.hub.conftest import cell, picture
from vdr.corpus.access import load_suites
from vdr.corpus.hub import HubSource
from vdr.corpus.hub_suites import build_suite_dataset
from vdr.errors import BadInput, DamagedArtefact


def corpus(ids, key="corpus-id", images=None):
    return {
        "test": {key: list(ids), "image": [cell(picture(i)) for i in range(len(ids))] if images is None else images}
    }


@pytest.fixture
def flat():
    """One config each, integer ids, languages in a column (as in ViDoRe v2)."""
    return {
        "corpus": corpus([10, 11, 12]),
        "queries": {
            "test": {
                "query-id": [0, 1, 2, 3],
                "query": ["a?", "b?", "c?", "  "],
                "language": ["english", "french", "english", "french"],
            }
        },
        "qrels": {
            "test": {
                "query-id": [0, 0, 1, 2, 3, 0, 9],
                "corpus-id": [10, 11, 12, 12, 10, 10, 10],
                "score": [1, 2, 1, 0, 1, 2, 1],
            }
        },
    }


def read(folder):
    qrels = {}
    for line in (folder / "qrels.tsv").read_text().splitlines()[1:]:
        query, page, grade = line.split("\t")
        qrels.setdefault(query, {})[page] = int(grade)
    return pq.read_table(folder / "pages.parquet").to_pylist(), pd.read_parquet(folder / "queries.parquet"), qrels


def test_flat_layout(hub_directory, flat, tmp_path):
    build_suite_dataset(HubSource(hub_directory("esg", flat)), "v2", "esg", tmp_path, measures := {})
    pages, queries, qrels = read(tmp_path / "suites/v2/esg")
    assert [p["page_id"] for p in pages] == ["10", "11", "12"]
    assert pages[0]["image"]["bytes"] == picture(0)
    assert queries["query_id"].tolist() == ["0", "1"]  # 2 has no relevant page, 3 no text
    assert queries["language"].tolist() == ["english", "french"]
    assert qrels == {"0": {"10": 2, "11": 2}, "1": {"12": 1}}  # the better of two grades of one pair
    report = measures["v2/esg"]
    assert report["dropped"] == {"blank_queries": 1, "judgements_of_unknown": 1, "queries_without_a_relevant_page": 1}
    assert (report["pages"], report["queries"], report["relevant"]) == (3, 2, 3)
    assert report == json.loads((tmp_path / "suites/v2/esg/report.json").read_text())


def test_one_language_of_a_flat_layout(hub_directory, flat, tmp_path):
    build_suite_dataset(HubSource(hub_directory("esg", flat)), "v2", "esg", tmp_path, {}, languages=["french"])
    _, queries, qrels = read(tmp_path / "suites/v2/esg")
    assert queries["query"].tolist() == ["b?"]
    assert list(qrels) == ["1"]


def test_same_source_same_bytes(hub_directory, flat, tmp_path):
    source = HubSource(hub_directory("esg", flat))
    for name in ("a", "b"):
        build_suite_dataset(source, "v2", "esg", tmp_path / name, {})
    for file in (tmp_path / "a/suites/v2/esg").iterdir():
        assert file.read_bytes() == (tmp_path / "b/suites/v2/esg" / file.name).read_bytes()


@pytest.fixture
def by_language():
    """A config per language and part, string ids, every language with its own copy of the pages (as in ViDoRe v3)."""
    out = {}
    for language, text in (("french", "quelle date ?"), ("english", "which date?")):
        out[f"{language}-corpus"] = corpus(["corpus-test-0", "corpus-test-1"], "id")
        out[f"{language}-queries"] = {"test": {"id": ["query-test-0"], "text": [text], "language": [language]}}
        out[f"{language}-qrels"] = {
            "test": {"query-id": ["query-test-0"], "corpus-id": ["corpus-test-1"], "score": [2]}
        }
    return out


def test_languages_share_their_pages(hub_directory, by_language, tmp_path):
    build_suite_dataset(HubSource(hub_directory("fin", by_language)), "v3", "finance_en", tmp_path, measures := {})
    pages, queries, qrels = read(tmp_path / "suites/v3/finance_en")
    assert len(pages) == 2
    assert queries["query_id"].tolist() == ["english-query-test-0", "french-query-test-0"]
    assert qrels == {f"{x}-query-test-0": {"corpus-test-1": 2} for x in ("english", "french")}
    assert measures["v3/finance_en"]["languages"] == ["english", "french"]
    build_suite_dataset(HubSource(hub_directory("fin", by_language)), "v3", "en", tmp_path, {}, languages=["english"])
    assert len(read(tmp_path / "suites/v3/en")[1]) == 1


def test_languages_with_other_pages_are_refused(hub_directory, by_language, tmp_path):
    by_language["french-corpus"] = corpus(["corpus-test-0", "corpus-test-7"], "id")
    with pytest.raises(BadInput, match="french has other pages than english"):
        build_suite_dataset(HubSource(hub_directory("fin", by_language)), "v3", "fin", tmp_path, {})


def test_equal_pages_are_kept_and_counted_and_ids_made_fit_for_run_files(hub_directory, flat, tmp_path):
    same = cell(picture(5))
    flat["corpus"] = {"test": {"corpus-id": ["a page", "b", "c"], "image": [same, same, cell(picture(6))]}}
    flat["qrels"] = {"test": {"query-id": [0], "corpus-id": ["a page"], "score": [1]}}
    build_suite_dataset(HubSource(hub_directory("esg", flat)), "v2", "esg", tmp_path, measures := {})
    pages, _, qrels = read(tmp_path / "suites/v2/esg")
    assert [p["page_id"] for p in pages] == ["a%20page", "b", "c"]
    assert qrels == {"0": {"a%20page": 1}}
    assert measures["v2/esg"]["pages_equal_to_another"] == 1


def test_a_damaged_page_is_an_error(hub_directory, flat, tmp_path):
    flat["corpus"] = corpus([10, 11, 12], images=[cell(picture(1)), cell(picture(2)[:60]), cell(picture(3))])
    with pytest.raises(DamagedArtefact, match="v2/esg corpus: page 11: image cannot be decoded"):
        build_suite_dataset(HubSource(hub_directory("esg", flat)), "v2", "esg", tmp_path, {})


def test_what_cannot_be_a_suite(hub_directory, flat, tmp_path):
    def build(name, configs, **more):
        build_suite_dataset(HubSource(hub_directory(name, configs)), "v2", "esg", tmp_path / name, {}, **more)

    with pytest.raises(BadInput, match="3 pages and 0 queries with a relevant page"):
        build("empty", {**flat, "qrels": {"test": {"query-id": [0], "corpus-id": [10], "score": [0]}}})
    with pytest.raises(BadInput, match="no configs corpus, queries and qrels"):
        build("other", {"default": {"test": {"query": ["a"]}}})
    with pytest.raises(BadInput, match="grade -1"):
        build("grade", {**flat, "qrels": {"test": {"query-id": [0], "corpus-id": [10], "score": [-1]}}})
    with pytest.raises(BadInput, match="page id occurs twice"):
        build("twice", {**flat, "corpus": corpus([10, 10, 12])})
    with pytest.raises(BadInput, match="none of the columns query, text"):
        build("columns", {**flat, "queries": {"test": {"query-id": [0], "words": ["a"]}}})
    with pytest.raises(BadInput, match="cannot be read"):
        build("split", flat, split="dev")


def test_ids_that_look_like_nothing_are_ids(hub_directory, flat, tmp_path):
    odd = ["NA", "nan", "None", "null", '"a', "007"]
    flat["corpus"] = corpus(odd)
    flat["queries"] = {"test": {"query-id": odd, "query": ["NA", "null", '"', "what?", "None", "7"]}}
    flat["qrels"] = {"test": {"query-id": odd, "corpus-id": odd[::-1], "score": [1] * 6}}
    build_suite_dataset(HubSource(hub_directory("esg", flat)), "v2", "esg", tmp_path, {})
    (suite,) = load_suites(tmp_path)
    written = ["NA", "nan", "None", "null", "%22a", "007"] if "%22a" in suite.queries else odd
    assert set(suite.pages.ids) == set(suite.queries) == set(written)
    assert suite.qrels == {query: {page: 1} for query, page in zip(written, written[::-1], strict=True)}
    assert suite.queries["NA"] == "NA" and suite.queries["nan"] == "null"
