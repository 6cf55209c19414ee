"""The annotation page's server: standard library, one secret link per annotator, every judgement on disk before it is
confirmed.

It opens `open/`, `plan.yaml`, `manifest.json`, `links.csv` and `judgements/` of a study, never `sealed/`. Only the
exact paths below exist; a path is matched as it was sent, so there is nothing to decode or to climb:

    GET  /a/<secret>/                    the page            POST /a/<secret>/consent
    GET  /a/<secret>/state.json          items and grades    POST /a/<secret>/judge
    GET  /a/<secret>/page/p0001.png      a page image        GET  /static/app.js, /static/app.css
    GET  /a/<secret>/transcript/p0001.txt
"""

from __future__ import annotations

import fcntl
import hmac
import ipaddress
import json
import re
import socket
import threading
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from vdr.audit.journal import Changed, Journal
from vdr.audit.scales import scale_named
from vdr.audit.study import load_frozen, make_links
from vdr.errors import BadInput, Busy, VdrError

__all__ = ["AuditServer", "is_loopback"]

MAX_BODY = 4096
SECONDS_A_JUDGEMENT = 37.5  # WT App. K: forty pages are about 25 minutes
ROUTE = re.compile(
    r"/a/(?P<secret>[A-Za-z0-9_-]{16,64})/"
    r"(?P<rest>|state\.json|consent|judge|page/(?P<image>p[0-9]{4,})\.png|transcript/(?P<text>p[0-9]{4,})\.txt)"
)
STATIC = {
    "/static/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/static/app.css": ("app.css", "text/css; charset=utf-8"),
}
PLAIN = {
    404: "There is nothing under this link. Check it, or ask the person who sent it.",
    421: "This host name is not known to the server; whoever started it can add it with --name.",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the link is the secret
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AuditServer(ThreadingHTTPServer):
    """Serve one frozen study. Raises `Busy` when another server holds it, `BadInput` or `DamagedArtefact` as
    `load_frozen` does.

    `host` other than loopback must be asked for; `names` are further host names under which the page may be reached
    (a request for any other name is refused, so that a foreign site cannot make a browser talk to this server).
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", port: int = 8417, names: tuple[str, ...] = ()) -> None:
        self.host = f"[{host}]" if ":" in host else host
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.study = load_frozen(Path(folder), open_only=True)
        self.links = make_links(self.study)
        self.design: dict[str, Any] = json.loads((self.study.path / "open" / "design.json").read_text(encoding="utf-8"))
        self.scale = scale_named(self.design["scale"])
        journals = self.study.path / "judgements"
        journals.mkdir(exist_ok=True)
        self._lock_file = open(journals / ".lock", "w")  # noqa: SIM115 (held as long as the server lives)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise Busy(
                "another server serves this study", where=self.study.path, todo="use that one, or stop it"
            ) from None
        try:
            self.journals = {
                name: Journal(
                    journals / f"{name}.jsonl",
                    study_id=self.study.study_id,
                    annotator=name,
                    items=items,
                    grades=self.scale.values,
                )
                for name, items in self.study.orders.items()
            }
            web = resources.files("vdr.audit").joinpath("web")
            self.index = web.joinpath("index.html").read_bytes()
            self.static = {path: (web.joinpath(name).read_bytes(), kind) for path, (name, kind) in STATIC.items()}
            self.pages_of = {
                name: {self.design["items"][item]["page"] for item in items}
                for name, items in self.study.orders.items()
            }
            try:
                super().__init__((host, port), Handler)
            except OSError as error:
                raise BadInput(
                    f"cannot listen: {error.strerror}", where=f"{host}:{port}", todo="take another --port or --host"
                ) from None
        except BaseException:
            self._lock_file.close()
            raise
        shown = {self.host, *names} | ({"127.0.0.1", "localhost", "[::1]"} if is_loopback(host) else set())
        self.hosts = {f"{name}:{self.server_port}" for name in shown} | set(names)

    def url(self, annotator: str, base: str | None = None) -> str:
        """The secret link of one annotator."""
        base = base or f"http://{self.host}:{self.server_port}"
        return f"{base.rstrip('/')}/a/{self.links[annotator]}/"

    def annotator_of(self, secret: str) -> str | None:
        """Whose link this is; every secret is compared, in constant time."""
        found = None
        for name, token in self.links.items():
            if hmac.compare_digest(token.encode(), secret.encode()):
                found = name
        return found

    def state(self, annotator: str) -> dict[str, Any]:
        """What one annotator's page shows: nothing of other annotators, nothing of the sealed tables."""
        given = self.journals[annotator].state()
        items = []
        for item in self.study.orders[annotator]:
            shown = self.design["items"][item]
            page = self.design["pages"][shown["page"]]
            entry = given.get(item)
            items.append(
                {
                    "item": item,
                    "query": shown["query"],
                    "page": shown["page"],
                    **page,
                    "grade": entry.grade if entry else None,
                    "revision": entry.revision if entry else 0,
                }
            )
        return {
            "title": self.design["title"],
            "annotator": annotator,
            "simulated": self.design["simulated"],
            "consented": self.journals[annotator].consented,
            "minutes": max(1, round(len(items) * SECONDS_A_JUDGEMENT / 60)),
            "scale": asdict(self.scale),
            "items": items,
        }

    def start(self) -> threading.Thread:
        """Serve in a background thread (tests, notebooks)."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        return thread

    def server_close(self) -> None:
        super().server_close()
        self._lock_file.close()


class Handler(BaseHTTPRequestHandler):
    """One request. Anything unexpected is a short answer without detail; secrets are never logged."""

    server: AuditServer
    protocol_version = "HTTP/1.1"
    server_version = "vdr-audit"
    sys_version = ""
    timeout = 60

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: a log line would hold the secret link."""

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status >= 400:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value, ensure_ascii=False).encode("utf-8"), "application/json; charset=utf-8")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Plain text instead of the library's HTML, which repeats what was sent."""
        text = PLAIN.get(int(code), HTTPStatus(int(code)).phrase)
        self._send(int(code), f"{text}\n".encode(), "text/plain; charset=utf-8")

    def _route(self) -> tuple[str, re.Match[str]] | None:
        if self.headers.get("Host") not in self.server.hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        match = ROUTE.fullmatch(self.path)
        annotator = self.server.annotator_of(match["secret"]) if match else None
        if match is None or annotator is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return annotator, match

    def do_GET(self) -> None:
        if self.path in self.server.static:
            if self.headers.get("Host") not in self.server.hosts:
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
                return
            body, kind = self.server.static[self.path]
            self._send(200, body, kind)
            return
        routed = self._route()
        if routed is None:
            return
        annotator, match = routed
        folder = self.server.study.path / "open"
        page = match["image"] or match["text"]
        if page is not None:
            # The name is one of this annotator's, taken from the frozen design: no other file can be named.
            known = page in self.server.pages_of[annotator]
            file = (
                folder / ("pages" if match["image"] else "transcripts") / f"{page}.{'png' if match['image'] else 'txt'}"
            )
            if not known or not file.is_file():
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self._send(200, file.read_bytes(), "image/png" if match["image"] else "text/plain; charset=utf-8")
        elif match["rest"] == "":
            self._send(200, self.server.index, "text/html; charset=utf-8")
        elif match["rest"] == "state.json":
            self._json(200, self.server.state(annotator))
        else:
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        routed = self._route()
        if routed is None:
            return
        annotator, match = routed
        origin = self.headers.get("Origin")
        kind = (self.headers.get("Content-Type") or "").split(";")[0].strip()
        if (origin and origin.split("//")[-1] not in self.server.hosts) or kind != "application/json":
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10) or int(length) > MAX_BODY:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            body = None
        if not isinstance(body, dict) or match["rest"] not in ("consent", "judge"):
            self.send_error(HTTPStatus.BAD_REQUEST if match["rest"] in ("consent", "judge") else HTTPStatus.NOT_FOUND)
            return
        journal = self.server.journals[annotator]
        try:
            if match["rest"] == "consent":
                journal.consent()
                self._json(200, {"consented": True})
                return
            revision = body.get("revision")
            if not isinstance(revision, int):
                raise BadInput("revision is no whole number", where="judgement, field revision")
            entry = journal.judge(
                str(body.get("item")), str(body.get("grade")), body.get("seconds", -1), revision=revision
            )
            self._json(200, {"grade": entry.grade, "revision": entry.revision})
        except Changed as changed:
            self._json(409, {"grade": changed.entry.grade, "revision": changed.entry.revision})
        except VdrError as error:
            self._json(400, {"error": str(error)})
        except OSError:
            self._json(507, {"error": "the judgement could not be written to disk; it is not saved"})
