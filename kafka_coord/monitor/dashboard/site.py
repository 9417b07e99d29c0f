"""Serves the dashboard over HTTP: the page's files, the JSON API, and the stream of changes.

The dashboard is read-only unless there are operators, who may send POST requests
(:mod:`kafka_coord.monitor.dashboard.operating`).

There are no CORS headers, so other origins cannot read the responses. The page's policy allows only scripts and styles
from this server, and connections to this server and to other instances, which the page checks for liveness.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode

from msgspec import json

from kafka_coord.errors import NotFound
from kafka_coord.groups.group import encode
from kafka_coord.groups.reset import write_csv
from kafka_coord.model.names import no_formula
from kafka_coord.monitor.dashboard.documents import ErrorDocument, SessionDocument
from kafka_coord.monitor.dashboard.live import Live, PageEvent
from kafka_coord.monitor.dashboard.operating import Operating
from kafka_coord.monitor.dashboard.routes import PREFIX, found

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Headers = list[tuple[str, str]]

PAGE = "/dashboard/"
MAX_STREAMS = 64
"""The maximum number of open pages."""
MAX_PATHS = 12
"""The maximum number of documents in one stream."""
BEAT_S = 5.0
_SOON_S = 2.0
_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "json": "application/json",
    "svg": "image/svg+xml",
}
_URL = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\]):\d{1,5}")
_ALWAYS: Headers = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


_AS_FILE: Headers = [("Content-Disposition", "attachment")]


class Site:
    """The WSGI application that serves the dashboard."""

    def __init__(self, live: Live, operating: Operating | None = None) -> None:
        self._live, self._operating = live, operating
        self._streams = 0

    def close(self) -> None:
        """Ends the open pages' streams."""
        self._live.close()

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        path, _, query = str(environ.get("REQUEST_URI", "/")).partition("?")
        if environ["REQUEST_METHOD"] == "POST" and self._operating is not None and path.startswith(f"{PREFIX}/"):
            return _json(start, *self._operating.answer(environ, path))
        if environ["REQUEST_METHOD"] != "GET":
            return _text(start, "405 Method Not Allowed", "the dashboard is read-only", [("Allow", "GET")])
        if path in {"/", "/dashboard"}:
            return _text(start, "302 Found", "", [("Location", PAGE)])
        if path == f"{PREFIX}/events":
            return self._stream(environ, start, parse_qs(query).get("path", []))
        if path == f"{PREFIX}/openapi.json":
            return self._asset(environ, start, "openapi.json")
        if path == f"{PREFIX}/session":
            acts = self._operating
            who = acts.who(environ) if acts is not None else None
            return _json(start, HTTPStatus.OK, SessionDocument.of(who, actions=acts is not None))
        if path.startswith(f"{PREFIX}/"):
            return self._document(start, path.removeprefix(PREFIX) + (f"?{query}" if query else ""))
        if path.startswith(PAGE):
            return self._asset(environ, start, path.removeprefix(PAGE) or "index.html")
        return _text(start, "404 Not Found", f"the dashboard is at {PAGE}, and its API is at {PREFIX}")

    def _asset(self, environ: dict[str, Any], start: StartResponse, name: str) -> Iterable[bytes]:
        if name not in _assets():
            return _text(start, "404 Not Found", "no such file")
        packed = "gzip" in environ.get("HTTP_ACCEPT_ENCODING", "")
        content = _assets()[name][packed]
        kind = _TYPES.get(name.rpartition(".")[2], "text/plain")
        headers = [("Content-Type", f"{kind}; charset=utf-8"), ("Cache-Control", "no-cache"), *_ALWAYS]
        headers += [("Vary", "Accept-Encoding"), *([("Content-Encoding", "gzip")] if packed else [])]
        if kind == "text/html":
            headers += [("Content-Security-Policy", self._policy()), ("Cross-Origin-Opener-Policy", "same-origin")]
        start("200 OK", headers)
        return [content]

    def _policy(self) -> str:
        others = " ".join(self._others())
        return (
            f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' {others}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
            "trusted-types 'none'"
        )

    def _others(self) -> list[str]:
        """Returns the instances' URLs, or an empty list if they cannot be read in time. Reading them also opens the
        session that the page will need."""
        event = self._live.get("/cluster", _SOON_S)
        instances = json.decode(event.data)["instances"] if event.status == HTTPStatus.OK else ()
        urls = {f"{scheme}://{at}" for one in instances for scheme, at in one["endpoints"].items()}
        return sorted(url for url in urls if _URL.fullmatch(url))

    def _document(self, start: StartResponse, path: str) -> Iterable[bytes]:
        path, wanted = exported(path)
        try:
            event = self._live.get(path)
        except NotFound as error:
            event = PageEvent("trouble", path, json.encode(str(error)), 404)
        if event.status != HTTPStatus.OK:
            return _json(start, HTTPStatus(event.status), ErrorDocument(error=json.decode(event.data)))
        if wanted is None:
            return _json(start, HTTPStatus.OK, event.data)
        rows = table_of(json.decode(event.data), wanted.get("table", ""))
        if rows is None:
            told = f"there is no table {wanted.get('table', '')[:100]!r} at {PREFIX}{path[:200]}"
            return _json(start, HTTPStatus.NOT_FOUND, ErrorDocument(error=told))
        if wanted.get("format", "json") == "json":
            return _json(start, HTTPStatus.OK, json.encode(rows), _AS_FILE)
        start(
            "200 OK", [("Content-Type", "text/csv; charset=utf-8"), ("Cache-Control", "no-store"), *_AS_FILE, *_ALWAYS]
        )
        return [csv_of(rows)]

    def _stream(self, environ: dict[str, Any], start: StartResponse, paths: list[str]) -> Iterable[bytes]:
        if not 0 < len(paths) <= MAX_PATHS:
            return _text(start, "400 Bad Request", f"give path= between 1 and {MAX_PATHS} times")
        if self._streams >= MAX_STREAMS:
            return _text(start, "503 Service Unavailable", f"{MAX_STREAMS} pages are already open, which is the limit")
        try:
            for path in paths:
                found(path)
        except NotFound as error:
            return _text(start, "404 Not Found", str(error))
        start("200 OK", [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), *_ALWAYS])
        environ["kafka_coord.lasts"]()
        return self._events(paths)

    def _events(self, paths: list[str]) -> Iterator[bytes]:
        """Yields events until the page is closed, the reader is too slow, or the server stops."""
        self._streams += 1
        reader = None
        try:
            yield b"retry: 1000\n\n"
            reader = self._live.join(paths)
            while not reader.over:
                event = reader.next(BEAT_S)
                yield b": still here\n\n" if event is None else _written(event)
        finally:
            self._streams -= 1
            if reader is not None:
                self._live.leave(reader)


def exported(written: str) -> tuple[str, dict[str, str] | None]:
    """Takes ``format`` and ``table`` out of a path's query. Returns the rest of the path, and both, or ``None`` if
    neither is given."""
    path, _, query = written.partition("?")
    given = parse_qsl(query, keep_blank_values=True, max_num_fields=20)
    found = {name: value for name, value in given if name in {"format", "table"}}
    if not found:
        return written, None
    rest = urlencode([one for one in given if one[0] not in found])
    return f"{path}?{rest}" if rest else path, found


def table_of(document: Any, name: str) -> list[dict[str, Any]] | None:
    """Returns the rows of the table ``name`` of a document, or of a document that is a table itself (``""``). The rows
    of ``groups.offsets`` are those of each group, and begin with the group's first field. Returns ``None`` if there is
    no such table."""
    name, _, below = name.partition(".")
    rows = document.get(name) if name and isinstance(document, dict) else None if name else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return None
    if not below:
        return rows
    found = []
    for row in rows:
        theirs = table_of(row, below)
        if theirs is None:
            return None
        found += [dict([next(iter(row.items()))]) | one for one in theirs]
    return found


def csv_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the rows as CSV. A value that is a list or an object is written as JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    cells = ([_cell(row.get(name)) for name in names] for row in rows)
    write_csv([tuple(names), *map(tuple, cells)] if names else [], text)
    return text.getvalue().encode()


def _cell(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, str):
        return no_formula(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return json.encode(value).decode()


def _written(event: PageEvent) -> bytes:
    about = json.encode({"path": event.path, "status": event.status})
    return b"event: %s\ndata: %s\ndata: %s\n\n" % (event.kind.encode(), about, event.data)


def _json(start: StartResponse, status: HTTPStatus, document: Any, headers: Headers | None = None) -> Iterable[bytes]:
    """Sends a JSON response. ``document`` is a value to encode, or bytes that are already JSON."""
    start(
        f"{status.value} {status.phrase}",
        [("Content-Type", "application/json"), ("Cache-Control", "no-store"), *(headers or []), *_ALWAYS],
    )
    body = document if isinstance(document, bytes) else encode(document)
    return [body + b"\n"]


def _text(start: StartResponse, status: str, text: str, headers: Headers | None = None) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), *(headers or []), *_ALWAYS])
    return [f"{text}\n".encode()]


@cache
def _assets() -> dict[str, tuple[bytes, bytes]]:
    """Returns the page's files, each as it is and compressed."""
    folder = resources.files("kafka_coord.monitor.dashboard") / "assets"
    files = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    return {name: (content, gzip.compress(content, mtime=0)) for name, content in files.items()}
