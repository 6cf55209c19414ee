"""The annotation page in a real headless Chromium, by keyboard alone, with the server killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vdr.audit.journal import read_journal
from vdr.audit.judgements import study_from_folder
from vdr.audit.study import load_frozen

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (a package for development)"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]
SCREENS = os.environ.get("VDR_SCREENSHOTS")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """`vdr audit serve` as a process of its own, so that it can be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[str] | None = None
        self.links: dict[str, str] = {}

    def start(self) -> None:
        code = "from vdr.audit.commands import app; app()"
        command = [sys.executable, "-c", code, "serve", str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        assert self.process.stdout is not None
        for _ in range(3):
            annotator, link = self.process.stdout.readline().split()
            self.links[annotator] = link

    def kill(self, how: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def served(served_folder) -> Iterator[Served]:
    served = Served(served_folder)
    served.start()
    yield served
    if served.process is not None and served.process.poll() is None:
        served.kill()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def window(browser, link: str, width: int = 1280, height: int = 800, **kwargs):
    context = browser.new_context(viewport={"width": width, "height": height}, **kwargs)
    context.set_default_timeout(120_000)  # a loaded machine is slow, not wrong
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("dialog", lambda dialog: page.faults.append(f"dialog {dialog.message}"))
    page.goto(link)
    yield page
    context.close()


def shot(page, name: str) -> None:
    if SCREENS:
        Path(SCREENS).mkdir(parents=True, exist_ok=True)
        page.wait_for_timeout(250)
        page.screenshot(path=Path(SCREENS) / f"{name}.png")


def until(page, expression: str, seconds: float = 120) -> None:
    """Wait for an expression. (Playwright's own wait evaluates a string in the page, which the page's policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never: {expression}"
        time.sleep(0.02)


def at(page, number: int) -> None:
    until(page, f"document.getElementById('position').textContent.startsWith('Judgement {number} of')")


def agree(page) -> None:
    page.wait_for_selector("#agree", state="visible")
    for _ in range(5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "agree":
            break
    page.keyboard.press("Enter")
    at(page, 1)


def grades(folder: Path, annotator: str = "v01") -> list[str]:
    lines = read_journal(folder / "judgements" / f"{annotator}.jsonl")
    return [line["grade"] for line in lines if line["event"] == "judge"]


def test_whole_session_by_keyboard_with_a_kill(browser, served):
    link = served.links["v01"]
    with window(browser, link) as page:
        agree(page)
        shot(page, "work")
        for number, key in enumerate("3210x", 2):
            page.keyboard.press(key)
            at(page, number)
        assert grades(served.folder) == list("3210x")
        # Back two, change one, look at the transcript, and use a key that is a letter of the search.
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        at(page, 4)
        assert page.get_attribute(".grade[aria-pressed=true]", "data-value") == "0"
        page.keyboard.press("2")
        until(page, "document.getElementById('live').textContent.startsWith('Saved: Gives part')")
        page.keyboard.press("ArrowRight")
        at(page, 5)
        page.keyboard.press("/")
        page.keyboard.type("x 3")  # keys typed into the search are not answers
        page.keyboard.press("Escape")
        page.keyboard.press("+")
        assert page.inner_text("#zoom-value") == "150 %"
        shot(page, "transcript")
        assert grades(served.folder) == list("3210x2")
        page.keyboard.press("ArrowRight")
        at(page, 6)

        # The server dies; the answer waits in the page, says so, and is sent when the server is back.
        served.kill()
        page.keyboard.press("1")
        page.wait_for_selector("#connection", state="visible")
        assert "No connection" in page.inner_text("#connection")
        shot(page, "no-connection")
        assert grades(served.folder) == list("3210x2")
        served.start()
        at(page, 7)
        page.wait_for_selector("#connection", state="hidden")
        assert grades(served.folder) == list("3210x21")
        assert page.faults == []
    # The window is closed and opened again: it goes on where it was.
    with window(browser, link) as page:
        at(page, 7)
        assert page.inner_text("#count") == "6"
        for number in range(7, 17):
            at(page, number)
            page.keyboard.press("2")
        page.wait_for_selector("#done", state="visible")
        shot(page, "done")
        assert page.faults == []
    served.kill(signal.SIGTERM)
    study = study_from_folder(load_frozen(served.folder))
    own = study.judgements[study.judgements["annotator"] == "v01"]
    assert len(own) == 16
    assert sorted(own["grade"]) == sorted("321" + "2x1" + "2" * 10)
    assert (own["seconds"] >= 0).all()
    assert own["seconds"].max() < 60


def test_hostile_text_stays_text(browser, served):
    for link in served.links.values():
        with window(browser, link) as page:
            agree(page)
            texts = []
            for number in range(1, 17):
                at(page, number)
                texts.append(page.inner_text("#query"))
                assert page.evaluate("document.querySelectorAll('#query *').length") == 0
                page.keyboard.press("ArrowRight")
            assert page.title() == "A small audit"
            assert page.faults == []
            if any("<script>" in text for text in texts):
                return
    pytest.fail("no annotator saw the hostile query")


def test_two_windows_ask_before_overwriting(browser, served):
    with window(browser, served.links["v02"]) as first, window(browser, served.links["v02"]) as second:
        agree(first)
        agree(second)
        first.keyboard.press("3")
        at(first, 2)
        second.keyboard.press("0")
        second.wait_for_selector("#conflict", state="visible")
        assert "Fully answers" in second.inner_text("#conflict-text")
        shot(second, "conflict")
        assert grades(served.folder, "v02") == ["3"]
        second.keyboard.press("Tab")
        second.keyboard.press("Enter")  # change to 0
        at(second, 2)
        assert grades(served.folder, "v02") == ["3", "0"]


def test_time_stands_still_while_hidden(browser, served):
    with window(browser, served.links["v01"]) as page:
        agree(page)
        page.wait_for_timeout(300)
        # A hidden window: the page is told so as a browser would tell it.
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        time.sleep(2.5)
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {get: () => false, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.keyboard.press("2")
        at(page, 2)
    line = read_journal(served.folder / "judgements" / "v01.jsonl")[-1]
    assert 0.2 < line["seconds"] < 2.4


@pytest.mark.parametrize(("width", "height"), [(360, 740), (768, 1024), (1280, 800)])
def test_fits_the_screen(browser, served, width, height):
    with window(browser, served.links["v03"], width, height, has_touch=width < 800) as page:
        page.wait_for_selector("#agree", state="visible")
        shot(page, f"start-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        agree(page)
        page.wait_for_timeout(200)
        shot(page, f"work-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for button in page.query_selector_all(".grade"):
            box = button.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= height  # every answer is on the screen without scrolling
            assert min(box["width"], box["height"]) >= 44
        image = page.query_selector("#page").bounding_box()
        assert image["width"] > 0.3 * min(width, 800)
        page.query_selector(".grade[data-value='1']").click()
        at(page, 2)


AUDIT_SCRIPT = """
() => {
  const lum = (c) => { const f = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const ground = (node) => { for (let n = node; n; n = n.parentElement) { const c = rgb(getComputedStyle(n).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
  const bad = [];
  for (const node of document.querySelectorAll('body *')) {
    if (!node.checkVisibility() || node.closest('.visually-hidden') || node.disabled || node.closest(':disabled')) continue;
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own) continue;
    const a = lum(rgb(getComputedStyle(node).color).slice(0, 3)), b = lum(ground(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push([node.tagName, node.className, node.textContent.trim().slice(0, 30), ratio.toFixed(2)]);
  }
  const unnamed = [];
  for (const node of document.querySelectorAll('button, input, img, progress, [role], dialog, fieldset, details')) {
    const labels = node.labels ? [...node.labels].map((l) => l.textContent).join('') : '';
    const by = node.getAttribute('aria-labelledby');
    const name = node.getAttribute('aria-label') || node.getAttribute('alt') || labels || (by && document.getElementById(by)) ||
      node.textContent.trim() || node.getAttribute('role') === 'status' || node.getAttribute('role') === 'alert';
    if (!name && node.checkVisibility()) unnamed.push(node.outerHTML.slice(0, 80));
  }
  const ids = [...document.querySelectorAll('[id]')].map((n) => n.id);
  return { bad, unnamed, doubled: ids.filter((id, i) => ids.indexOf(id) !== i), lang: document.documentElement.lang };
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_and_names(browser, served, scheme):
    """WCAG AA contrast (4.5 : 1) of every visible text and a name for every control, in each view and colour scheme."""
    with window(browser, served.links["v01"], color_scheme=scheme) as page:
        views = {}
        page.wait_for_selector("#agree", state="visible")
        views["start"] = page.evaluate(AUDIT_SCRIPT)
        agree(page)
        page.keyboard.press("t")
        page.keyboard.press("2")
        at(page, 2)
        page.keyboard.press("ArrowLeft")
        at(page, 1)
        shot(page, f"work-{scheme}")
        views["work"] = page.evaluate(AUDIT_SCRIPT)
        page.keyboard.press("?")
        page.wait_for_selector("#help[open]")
        shot(page, f"help-{scheme}")
        views["help"] = page.evaluate(AUDIT_SCRIPT)
        page.keyboard.press("Escape")
        for view, found in views.items():
            assert found["bad"] == [], view
            assert found["unnamed"] == [], view
            assert found["doubled"] == [], view
            assert found["lang"] == "en"


def test_shortcuts_can_be_switched_off(browser, served):
    with window(browser, served.links["v01"]) as page:
        agree(page)
        page.keyboard.press("?")
        page.wait_for_selector("#help[open]")
        page.uncheck("#shortcuts")
        page.click("#help-close")
        page.keyboard.press("3")
        page.wait_for_timeout(300)
        assert page.inner_text("#count") == "0"
        page.focus(".grade[data-value='3']")
        page.keyboard.press("Enter")  # the button itself still works
        at(page, 2)


def test_a_wrong_link_says_so(browser, served):
    with window(browser, f"http://127.0.0.1:{served.port}/a/{'A' * 22}/") as page:
        assert "nothing under this link" in page.inner_text("body")
