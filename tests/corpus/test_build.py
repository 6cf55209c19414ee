"""The drawn corpus: same bytes from a seed, complete truth, single labels in domain, and refusals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vdr.corpus.access import load_suites, load_train
from vdr.corpus.build import build_corpus, corpus_checksum
from vdr.corpus.world import PageRecord, QueryRecord, grade
from vdr.errors import BadInput, DamagedArtefact
from vdr.study.sections.corpus import CorpusSettings

SETTINGS = CorpusSettings.model_validate(
    {
        "seed": 5,
        "sources": {
            "DocVQA": {"domain": "form", "families": ["letter"], "pages": 10, "specificity": {"none": 0.5, "entity": 0.5}},
            "PDF": {"domain": "report", "families": ["article"], "pages": 10, "specificity": {"topic": 1.0}},
        },
        "datasets": [
            {"suite": "v1", "name": "a", "domain": "form", "families": ["memo"], "pages": 8, "queries": 5, "phrasing": "train",
             "labels": "single", "specificity": {"entity": 1.0}},
            {"suite": "v2", "name": "b", "domain": "finance", "families": ["ledger"], "pages": 8, "queries": 5,
             "specificity": {"none": 1.0}},
        ],
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("corpus")
    measures: dict = {}
    build_corpus(out, SETTINGS, ["v1", "v2"], measures)
    return out, measures


def test_labelled_page_answers_its_query_fully(corpus) -> None:
    train = load_train(corpus[0])
    truth = train.truth()
    assert truth is not None and truth.shape == (len(train.rows), len(train.pages))
    at = [train.pages.index(p) for p in train.rows["page_id"]]
    assert (truth[np.arange(len(at)), at] == 3).all()
    assert (truth >= 2).sum() > len(train.rows), "labels are incomplete by construction: other pages answer too"


def test_validation_pages_are_no_training_pages(corpus) -> None:
    train = load_train(corpus[0])
    by_split = train.rows.groupby("split")["page_id"].agg(set)
    assert not by_split["train"] & by_split["validation"]
    assert set(train.pages.table.loc[train.pages.table["split"] == "validation", "page_id"]) == by_split["validation"]


def test_suites_have_single_or_complete_labels(corpus) -> None:
    suites = {d.suite: d for d in load_suites(corpus[0])}
    assert all(len(judged) == 1 for judged in suites["v1"].qrels.values())
    assert set(suites["v2"].qrels) == set(suites["v2"].queries)
    assert sum(len(judged) for judged in suites["v2"].qrels.values()) > len(suites["v2"].queries)


def test_same_seed_same_corpus_other_seed_another(corpus, tmp_path) -> None:
    build_corpus(tmp_path / "same", SETTINGS, ["v1", "v2"], {})
    assert corpus_checksum(tmp_path / "same") == corpus[1]["checksum"]
    build_corpus(tmp_path / "other", SETTINGS.model_copy(update={"seed": 6}), ["v1", "v2"], {})
    assert corpus_checksum(tmp_path / "other") != corpus[1]["checksum"]


def test_a_suite_without_data_is_refused(tmp_path) -> None:
    with pytest.raises(BadInput, match="v9"):
        build_corpus(tmp_path, SETTINGS, ["v9"], {})


def test_a_row_without_its_page_or_query_is_refused(corpus, tmp_path) -> None:
    build_corpus(tmp_path, SETTINGS, ["v1"], {})
    file = tmp_path / "train" / "rows.parquet"
    rows = pd.read_parquet(file)
    rows.assign(query="  ").to_parquet(file)
    with pytest.raises(DamagedArtefact, match="no query"):
        load_train(tmp_path)
    rows.assign(page_id="gone").to_parquet(file)
    with pytest.raises(DamagedArtefact, match="not there"):
        load_train(tmp_path)


def _page(attributes: tuple[str, ...], **slots: tuple[str, ...]) -> PageRecord:
    return PageRecord("p", "s", "finance", "table", slots, attributes, {}, {})


@pytest.mark.parametrize(
    ("asked", "conditions", "expected"),
    [
        (("finance.tax",), {}, 3),
        (("finance.tax",), {"entity": ("Acme",), "year": ("2015",)}, 3),
        (("finance.tax", "finance.debt"), {}, 2),  # one of two asked attributes
        (("finance.tax",), {"year": ("2015", "2017")}, 2),  # one of two asked years
        (("finance.tax",), {"entity": ("Orion",)}, 1),  # asked attribute, another entity
        (("finance.debt",), {"entity": ("Acme",)}, 1),  # right entity, nothing asked
        (("finance.debt",), {}, 0),
        (("finance.debt",), {"entity": ("Orion",)}, 0),
    ],
)
def test_grades_by_hand(asked, conditions, expected) -> None:
    page = _page(("finance.tax", "finance.cash"), entity=("Acme",), year=("2015", "2016"))
    assert grade(QueryRecord("q", "t", "s", "finance", asked, conditions), page) == expected
