"""The server over plain HTTP: blinding, secrets, path tricks, hostile bodies, two windows, torn files."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator

import pandas as pd
import pytest

from vdr.audit.journal import Journal, read_journal
from vdr.audit.judgements import study_from_folder
from vdr.audit.server import AuditServer, is_loopback
from vdr.audit.study import load_frozen
from vdr.errors import BadInput, Busy, DamagedArtefact

SECRET_WORDS = ("0.8371", "labelled", "mined", "score", "rank", "rating", "hedge", "breadth", "specific", "hidden-id")


class Client:
    """Raw requests: paths go out as they are written."""

    def __init__(self, server: AuditServer, annotator: str = "v01") -> None:
        self.server = server
        self.base = f"/a/{server.links[annotator]}/"

    def request(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=10)
        sent = {"Content-Type": "application/json", **(headers or {})} if method == "POST" else (headers or {})
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, body=data, headers=sent)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def get(self, rest: str):
        return self.request("GET", self.base + rest)

    def state(self) -> dict:
        return json.loads(self.get("state.json")[2])

    def consent(self) -> None:
        assert self.request("POST", self.base + "consent", {})[0] == 200

    def judge(self, item: str, grade: str, seconds: object = 3.0, revision: object = 0):
        status, _, content = self.request(
            "POST", self.base + "judge", {"item": item, "grade": grade, "seconds": seconds, "revision": revision}
        )
        return status, json.loads(content)


@pytest.fixture
def server(served_folder) -> Iterator[AuditServer]:
    server = AuditServer(served_folder, port=0)
    server.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def client(server) -> Client:
    return Client(server)


def test_no_response_holds_a_rating_or_a_label(server, served_folder):
    """Every address that an annotator can reach, and every header, searched for what they must not see."""
    sealed = pd.read_csv(served_folder / "sealed" / "pairs.csv")
    assert 0.8371 in sealed["score"].tolist()
    assert "labelled" in sealed["role"].tolist()
    seen = 0
    for annotator in server.links:
        client = Client(server, annotator)
        client.consent()
        state = client.state()
        client.judge(state["items"][0]["item"], "2")
        paths = ["", "state.json"] + [f"page/{entry['page']}.png" for entry in state["items"]]
        paths += [f"transcript/{entry['page']}.txt" for entry in state["items"]]
        answers = [client.get(path) for path in paths]
        answers += [
            client.request("GET", path) for path in ("/static/app.js", "/static/app.css", "/", "/sealed/pairs.csv")
        ]
        for status, headers, content in answers:
            assert status in (200, 404)
            told = content + json.dumps(headers).encode()
            for word in (*SECRET_WORDS, *sealed["page_id"], *sealed["query_id"].unique()):
                # whole words: a style sheet may say "specificity", a PNG may hold any three bytes
                found = re.search(rb"(?<![A-Za-z0-9.])" + re.escape(word.encode()) + rb"(?![A-Za-z0-9])", told)
                if len(word) > 2 or b"PNG" not in content[:8]:
                    assert not found, (word, content[:80])
            seen += 1
    assert seen > 60


def test_state_shows_one_annotator_only(server, client):
    other = Client(server, "v02")
    other.consent()
    item = other.state()["items"][0]["item"]
    other.judge(item, "3")
    mine = client.state()
    assert all(entry["grade"] is None for entry in mine["items"])
    assert not mine["consented"]
    assert len(mine["items"]) == 16
    assert set(mine) == {"title", "annotator", "simulated", "consented", "minutes", "scale", "items"}
    assert set(mine["items"][0]) == {"item", "query", "page", "width", "height", "transcript", "grade", "revision"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a/",
        "/a/AAAAAAAAAAAAAAAAAAAAAA/",
        "/a/AAAAAAAAAAAAAAAAAAAAAA/state.json",
        "{base}../../sealed/pairs.csv",
        "{base}page/../../sealed/pairs.csv",
        "{base}page/%2e%2e%2f%2e%2e%2fsealed%2fpairs.csv",
        "{base}page/..%5c..%5csealed",
        "{base}page/p0001.png/../../../../manifest.json",
        "{base}page/p0001.png%00.txt",
        "{base}page//etc/passwd",
        "{base}page/p9999.png",
        "{base}transcript/p9999.txt",
        "{base}state.json?x=1",
        "{base}links.csv",
        "/sealed/pairs.csv",
        "/links.csv",
        "/judgements/v01.jsonl",
        "/static/../plan.py",
        "/static/index.html",
        "//a//",
        "{base}" + "x" * 5000,
    ],
)
def test_path_tricks_find_nothing(client, path):
    status, _, content = client.request("GET", path.replace("{base}", client.base))
    assert status == 404
    assert content.startswith(b"There is nothing under this link")


def test_pages_of_others_are_not_reachable(server, client):
    mine = {entry["page"] for entry in client.state()["items"]}
    theirs = {entry["page"] for entry in Client(server, "v02").state()["items"]} - mine
    assert theirs
    for page in theirs:
        assert client.get(f"page/{page}.png")[0] == 404
        assert client.get(f"transcript/{page}.txt")[0] == 404


def test_items_of_others_cannot_be_judged(server, client):
    client.consent()
    mine = {entry["item"] for entry in client.state()["items"]}
    theirs = sorted({entry["item"] for entry in Client(server, "v02").state()["items"]} - mine)
    status, answer = client.judge(theirs[0], "3")
    assert status == 400
    assert "not among" in answer["error"]


def test_nothing_is_taken_without_consent(client):
    status, answer = client.judge(client.state()["items"][0]["item"], "3")
    assert status == 400
    assert "consent" in answer["error"]


@pytest.mark.parametrize(
    ("grade", "seconds", "revision"),
    [
        ("4", 1, 0), ("", 1, 0), ("3; DROP", 1, 0), ("3", -1, 0), ("3", 1e9, 0), ("3", "soon", 0), ("3", None, 0),
        ("3", 1, "a"), ("3", 1, None), ("3", float("nan"), 0),
    ],
)  # fmt: skip
def test_bad_judgements_are_refused(client, grade, seconds, revision):
    client.consent()
    item = client.state()["items"][0]["item"]
    assert client.judge(item, grade, seconds, revision)[0] == 400
    assert client.state()["items"][0]["grade"] is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff\xfe", b'"x"', b"[" * 3000])
def test_bad_bodies_are_refused(client, body):
    assert client.request("POST", client.base + "judge", body)[0] == 400


def test_large_bodies_and_foreign_sites_are_refused(client, server):
    assert client.request("POST", client.base + "judge", b" " * 5000)[0] == 413
    assert client.request("POST", client.base + "consent", {}, {"Origin": "https://elsewhere.example"})[0] == 403
    assert client.request("POST", client.base + "consent", {}, {"Content-Type": "text/plain"})[0] == 403
    assert client.request("GET", client.base, headers={"Host": "elsewhere.example"})[0] == 421
    assert client.request("GET", "/static/app.js", headers={"Host": "elsewhere.example"})[0] == 421
    assert client.request("POST", client.base + "nothing", {})[0] == 404
    assert client.request("GET", client.base + "judge")[0] == 405
    assert not client.state()["consented"]


def test_headers_forbid_everything_foreign(client):
    _, headers, _ = client.get("")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


def test_two_windows_of_one_annotator(client):
    client.consent()
    item = client.state()["items"][0]["item"]
    assert client.judge(item, "2", 4.0, 0) == (200, {"grade": "2", "revision": 1})
    # A second window that has not seen the first answer is told of it; nothing is overwritten unseen.
    assert client.judge(item, "0", 9.0, 0) == (409, {"grade": "2", "revision": 1})
    assert client.judge(item, "2", 9.0, 0) == (
        200,
        {"grade": "2", "revision": 1},
    )  # the same answer: no conflict, no line
    assert client.judge(item, "0", 9.0, 1) == (200, {"grade": "0", "revision": 2})
    lines = read_journal(client.server.journals["v01"].path)
    assert [line["event"] for line in lines] == ["consent", "judge", "judge"]
    assert client.server.journals["v01"].state()[item].seconds == 4.0  # time of the first judgement


def test_many_windows_at_once_lose_nothing(client):
    client.consent()
    items = [entry["item"] for entry in client.state()["items"]]
    answers: list[int] = []

    def window(grade: str) -> None:
        for item in items:
            answers.append(client.judge(item, grade)[0])

    threads = [threading.Thread(target=window, args=(grade,)) for grade in "321"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(200) == len(items)
    assert answers.count(409) == 2 * len(items)
    assert len(read_journal(client.server.journals["v01"].path)) == 1 + len(items)


def test_one_server_a_study(server, served_folder):
    with pytest.raises(Busy):
        AuditServer(served_folder, port=0)


def test_port_in_use_is_one_line(server, served_folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(served_folder, copy)
    with pytest.raises(BadInput, match="cannot listen"):
        AuditServer(copy, port=server.server_port)


def test_a_changed_page_is_not_served(served_folder):
    page = next((served_folder / "open" / "pages").iterdir())
    page.write_bytes(page.read_bytes() + b"x")
    with pytest.raises(DamagedArtefact, match=page.name):
        AuditServer(served_folder, port=0)


def test_server_never_opens_the_sealed_tables(served_folder):
    for file in (served_folder / "sealed").iterdir():
        file.unlink()
    server = AuditServer(served_folder, port=0)  # works without them
    server.server_close()
    with pytest.raises(DamagedArtefact):
        load_frozen(served_folder)


def test_a_torn_line_is_set_aside_and_nothing_else_lost(served_folder):
    frozen = load_frozen(served_folder)
    file = served_folder / "judgements" / "v01.jsonl"

    def journal() -> Journal:
        items = frozen.orders["v01"]
        return Journal(file, study_id=frozen.study_id, annotator="v01", items=items, grades=("3", "2", "1", "0", "x"))

    first, second = frozen.orders["v01"][:2]
    opened = journal()
    opened.consent()
    opened.judge(first, "3", 1.0, revision=0)
    with open(file, "ab") as handle:
        handle.write(b'{"event": "judge", "ite')
    reopened = journal()
    assert reopened.state()[first].grade == "3"
    reopened.judge(second, "1", 1.0, revision=0)
    assert len(read_journal(file)) == 3
    assert file.with_suffix(".torn").read_bytes() == b'{"event": "judge", "ite\n'


def test_full_disk_takes_the_line_back(served_folder, monkeypatch):
    frozen = load_frozen(served_folder)
    file = served_folder / "judgements" / "v01.jsonl"
    items = frozen.orders["v01"]
    journal = Journal(file, study_id=frozen.study_id, annotator="v01", items=items, grades=("3", "2"))
    journal.consent()
    before = file.read_bytes()
    real = os.write

    def short(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError, match="short write"):
        journal.judge(items[0], "3", 1.0, revision=0)
    assert file.read_bytes() == before
    assert journal.state() == {}


def test_journals_of_another_study_or_stranger_are_refused(served_folder):
    frozen = load_frozen(served_folder)
    folder = served_folder / "judgements"
    folder.mkdir()
    line = {
        "event": "judge",
        "study": "another",
        "annotator": "v01",
        "item": frozen.orders["v01"][0],
        "grade": "3",
        "seconds": 1,
    }
    (folder / "v01.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(DamagedArtefact, match=r"v01.jsonl, line 1.*another study"):
        study_from_folder(frozen)
    line |= {"study": frozen.study_id, "item": "i9999"}
    (folder / "v01.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(DamagedArtefact, match="i9999"):
        study_from_folder(frozen)
    (folder / "v01.jsonl").rename(folder / "v77.jsonl")
    with pytest.raises(BadInput, match="v77"):
        study_from_folder(frozen)


def test_loopback():
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")
