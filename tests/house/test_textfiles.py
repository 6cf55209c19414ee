"""Files that people give: every cell is itself, and what cannot be read is one line that names it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdr.errors import BadInput
from vdr.textfiles import measured_table, real_number, text_of, text_table, whole_number

ODD = ["NA", "nan", "None", "null", '"a', 'say "x"', "007", "1e5", " x ", "a,b", "two\nlines", "", "é☃"]


def test_every_cell_is_itself(tmp_path: Path) -> None:
    written = pd.DataFrame({"id": ODD, "text": ODD[::-1]})
    written.to_csv(tmp_path / "a.csv", index=False)
    assert text_table(tmp_path / "a.csv", ("id", "text")).to_numpy().tolist() == written.to_numpy().tolist()


@given(cells=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")), min_size=1))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, cells: list[str]) -> None:
    path = tmp_path_factory.mktemp("t") / "a.csv"
    pd.DataFrame({"id": cells, "last": "x"}).to_csv(path, index=False)
    assert text_table(path, ["id"])["id"].tolist() == cells


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such CSV file"),
        ("folder", "this is a folder, a CSV file is needed"),
        (b"\xff\xfe", r"not UTF-8 text \(byte 0\)"),
        (b"id,text\n1,a\x00b\n", "not text: a null byte in line 2"),
        (b"", "an empty CSV file; columns: id, text"),
        (b"id\n1\n", "no column 'text'"),
        (b"id,id,text\n1,2,3\n", "column 'id' stands twice"),
        (b"id,text\n1,2,3\n", "line 2 has 3 cells, the header has 2"),
        (b"id,text\n1\n", "line 2 has 1 cells, the header has 2"),
        (b'id,text\n1,"never closed\n', "not a CSV file"),
        (b'id,text\n1,"a"b\n', "not a CSV file"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, content: bytes | str | None, said: str) -> None:
    path = tmp_path / "a.csv"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(BadInput, match=f"a.csv: {said}") as caught:
        text_table(path, ("id", "text"))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("\ufeffid,text\r\n1,é\r\n\r\n".encode())
    assert text_table(tmp_path / "a.csv", ("id", "text")).values.tolist() == [["1", "é"]]


def test_a_name_that_no_file_can_have_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 300), Path("a\0b"), tmp_path / "file" / "below"):
        (tmp_path / "file").touch()
        with pytest.raises(BadInput):
            text_of(path)


def test_measured_figures_keep_names_that_look_like_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("source,share\nNA,0.5\nnull,\n")
    table = measured_table(tmp_path / "a.csv")
    assert table["source"].tolist() == ["NA", "null"]
    assert table["share"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "whole", "real"),
    [
        ("5", 5, 5.0), ("-5", -5, -5.0), ("007", 7, 7.0), ("0.5", None, 0.5), (".5", None, 0.5), ("5.", None, 5.0), ("1e-3", None, 1e-3),
        ("--5", None, None), ("²", None, None), ("٥", None, None), ("1_000", None, None), (" 5", None, None), ("", None, None),
        ("nan", None, None), ("inf", None, None), ("1e999", None, None), ("0x1", None, None), ("5-", None, None), ("+5", None, 5.0),
        ("9" * 5000, None, None),
    ],
)  # fmt: skip
def test_numbers(text: str, whole: int | None, real: float | None) -> None:
    assert (whole_number(text), real_number(text)) == (whole, real)
