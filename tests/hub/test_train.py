import json
from itertools import pairwise

import pandas as pd
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from PIL import Image

from tests.hub.conftest import cell, picture
from vdr.corpus.hub import HubSource, Subset, build_train, read_image
from vdr.errors import BadInput, DamagedArtefact
from vdr.pixels import pixel_hash

ONE, TWO, THREE = picture(1), picture(2), picture(3)


@pytest.fixture
def columns():
    truncated = THREE[: len(THREE) // 2]
    return {
        # The same pixels as PNG and as BMP are one page; rows 4 to 7 have no usable page or no query.
        "image": [
            cell(x) for x in (ONE, TWO, picture(1, "BMP"), ONE, truncated, b"not an image", None, TWO, THREE, ONE)
        ],
        "image_filename": ["a.png", "b.png", "a.bmp", "a.png", "c.png", "d.png", "e.png", "b.png", "f.png", "a.png"],
        "query": [
            "what is the date?",
            "what is the date?",
            "who signed?",
            "who signed?",
            "q4",
            "q5",
            "q6",
            " ",
            "q8",
            "who signed?",
        ],
        "answer": ["x"] * 10,
        "source": ["docvqa", "pdf", "docvqa", "docvqa", "pdf", "pdf", "pdf", "pdf", "arxiv_qa", "docvqa"],
    }


@pytest.fixture
def source(hub_directory, columns):
    test = {k: [v[i] for i in (1, 8)] for k, v in columns.items()}
    test["image"] = [cell(picture(9)), cell(ONE)]
    return HubSource(hub_directory("train_set", {"default": {"train": columns, "test": test}}))


def test_pages_are_joined_by_pixels_and_rows_frozen(source, tmp_path):
    build_train(source, tmp_path / "out", measures := {})
    rows = pd.read_parquet(tmp_path / "out/train/rows.parquet")
    train = rows[rows["split"] == "train"]
    assert train["row_id"].tolist() == [0, 1, 2, 3, 8, 9]
    assert train["query_id"].tolist()[:2] == ["train-0", "train-1"]
    assert train["page_id"].nunique() == 3
    assert train.set_index("row_id")["page_id"][[0, 2, 3, 9]].nunique() == 1
    pages = pq.read_table(tmp_path / "out/train/pages.parquet").to_pylist()
    assert [p["split"] for p in pages] == ["train", "train", "train", "validation"]
    assert [p["image"]["bytes"] for p in pages[:3]] == [ONE, TWO, THREE]
    assert all(pixel_hash(read_image(p["image"])) == p["sha256"] for p in pages)
    assert measures["dropped"] == {"no_usable_page": 3, "no_query": 1}
    assert (measures["train_rows"], measures["train_pages"], measures["rows_read"]) == (6, 3, 12)
    assert measures["train_duplicate_rows"] == 2  # "who signed?" three times on one page
    assert measures["train_strings_on_more_than_one_page"] == 1
    assert measures["image_filenames"] == 7
    assert measures["rows_by_source"] == {"arxiv_qa": 1, "docvqa": 4, "pdf": 1}
    assert measures["validation_rows_on_training_pages"] == 1
    assert json.loads((tmp_path / "out/train/report.json").read_text())["dropped"] == measures["dropped"]


def test_drops_are_listed_with_row_and_reason(source, tmp_path):
    build_train(source, tmp_path, {})
    drops = pd.read_csv(tmp_path / "train/drops.csv")
    assert drops["row"].tolist() == [4, 5, 6, 7]
    assert drops["reason"].tolist() == ["no_usable_page"] * 3 + ["no_query"]
    assert "truncated" in drops["detail"][0]
    assert drops["detail"][2] == "no image"


def test_the_artefact_is_itself_in_the_hubs_image_form(source, tmp_path):
    build_train(source, tmp_path / "out", {})
    data = load_dataset("parquet", data_files=str(tmp_path / "out/train/pages.parquet"), split="train", streaming=True)
    image = next(iter(data))["image"]
    assert isinstance(image, Image.Image)
    assert image.size == (20, 14)


def test_same_source_same_bytes(source, tmp_path):
    for name in ("a", "b"):
        build_train(source, tmp_path / name, {})
    for file in ("pages.parquet", "rows.parquet", "drops.csv", "report.json"):
        assert (tmp_path / "a/train" / file).read_bytes() == (tmp_path / "b/train" / file).read_bytes()


def test_a_subset_takes_whole_pages_and_grows(source, tmp_path):
    taken = []
    for share in (0.0, 0.5, 0.9, 1.0):
        try:
            build_train(source, tmp_path / str(share), measures := {}, subset=Subset(share))
        except BadInput as error:
            assert share < 0.9, error  # noqa: PT017
            taken.append(set())
            continue
        rows = pd.read_parquet(tmp_path / str(share) / "train/rows.parquet")
        taken.append(set(rows["page_id"]))
        assert len(rows) + measures["rows_outside_the_subset"] + measures["dropped"]["no_query"] == 9
    assert taken[0] == set()
    assert all(a <= b for a, b in pairwise(taken))
    assert len(taken[-1]) == 4


def test_bad_sources_are_named(hub_directory, columns, tmp_path):
    with pytest.raises(BadInput, match="no pinned revision"):
        HubSource("vidore/colpali_train_set")
    with pytest.raises(BadInput, match="no pinned revision"):
        HubSource("vidore/colpali_train_set", "main")
    with pytest.raises(BadInput, match="neither a directory nor a hub id"):
        HubSource(str(tmp_path / "nowhere/at/all"))
    no_query = hub_directory("no_query", {"default": {"train": {k: v for k, v in columns.items() if k != "query"}}})
    with pytest.raises(BadInput, match="no column 'query'"):
        build_train(HubSource(no_query), tmp_path / "x", {}, splits={"train": "train"})
    nothing = {k: [v[5]] for k, v in columns.items()}
    with pytest.raises(BadInput, match="no usable row among 1"):
        build_train(
            HubSource(hub_directory("nothing", {"default": {"train": nothing}})),
            tmp_path / "y",
            {},
            splits={"train": "train"},
        )
    good = HubSource(hub_directory("good", {"default": {"train": columns}}))
    with pytest.raises(BadInput, match=r"good test: cannot be read"):
        build_train(good, tmp_path / "z", {})


def test_images_are_decoded_to_the_end():
    for bad in (
        None,
        {},
        {"bytes": b"", "path": None},
        {"bytes": ONE[:-30], "path": None},
        {"bytes": b"GIF89a", "path": None},
    ):
        with pytest.raises(DamagedArtefact):
            read_image(bad)
    assert read_image({"bytes": ONE, "path": None}).size == (20, 14)
    assert pixel_hash(Image.new("RGB", (2, 3))) != pixel_hash(Image.new("RGB", (3, 2)))
    with pytest.raises(ValueError, match="RGB, not L"):
        pixel_hash(Image.new("L", (2, 3), 7))
