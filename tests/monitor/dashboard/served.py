"""A dashboard for tests, and a reader of its stream."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jsonschema import Draft202012Validator

from kafka_coord.groups.lag import LagService
from kafka_coord.monitor.dashboard.live import Live
from kafka_coord.monitor.dashboard.logins import Logins, OperatorsFile
from kafka_coord.monitor.dashboard.operating import Operating
from kafka_coord.monitor.dashboard.site import Site
from kafka_coord.monitor.dashboard.sources import Sources
from kafka_coord.monitor.exposition import Exposition
from kafka_coord.zk.session import connect

OPENAPI = json.loads((resources.files("kafka_coord.monitor.dashboard") / "assets" / "openapi.json").read_text())


def valid(document: Any, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": OPENAPI["components"]}
    Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(document)


@dataclass(frozen=True, slots=True)
class Served:
    port: int
    live: Live

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/dashboard/"

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Sends a request. Returns the status, the headers (in lower case) and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def document(self, path: str) -> Any:
        status, _, body = self.ask(f"/api/v1{path}")
        assert status == 200, body
        return json.loads(body)

    @contextmanager
    def follow(self, *paths: str) -> Iterator[Stream]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/api/v1/events?" + "&".join(f"path={quote(path)}" for path in paths))
        answer = connection.getresponse()
        try:
            yield Stream(answer, {}, {})
        finally:
            answer.close()
            connection.close()


@dataclass(frozen=True, slots=True)
class Stream:
    """An open page. ``documents`` are the page's current documents, and ``sizes`` the bytes of each kind of event."""

    answer: http.client.HTTPResponse
    documents: dict[str, Any]
    sizes: dict[str, int]

    def step(self) -> str:
        """Reads one event, and returns its kind, or "" for a sign of life."""
        lines = []
        while line := self.answer.readline().decode().rstrip("\n"):
            lines.append(line)
        assert lines, "the stream ended"
        if not lines[0].startswith("event: "):
            return ""
        kind, (about, data) = lines[0].removeprefix("event: "), (json.loads(line[6:]) for line in lines[1:])
        path = about["path"]
        self.sizes[kind] = self.sizes.get(kind, 0) + len(lines[2])
        self.documents[path] = applied(self.documents[path], data) if kind == "change" else data
        return kind

    def until(self, wanted: Any) -> None:
        """Reads events until ``wanted(documents)`` is true. The connection's timeout limits each wait."""
        while not wanted(self.documents):
            self.step()


def operators_file(folder: Path, **tokens: str) -> Path:
    """Writes a file of operators with these tokens, who may act on every group. Returns its path."""
    path = folder / "operators.toml"
    path.touch(0o600)
    hashes = {name: hashlib.sha256(token.encode()).hexdigest() for name, token in tokens.items()}
    tables = (f'[operators.{name}]\nsecret_sha256 = "{found}"\ngroups = [".*"]\n' for name, found in hashes.items())
    path.write_text("".join(tables))
    return path


@contextmanager
def serving(hosts: str, operators: Path | None = None, service: LagService | None = None) -> Iterator[Served]:
    service = service or LagService()

    def opened(wake: Any) -> Sources:
        store = connect(hosts, session_timeout_ms=10_000, connect_timeout_s=1.0)
        return Sources(store, hosts, {}, session_timeout_ms=10_000, tls=False, wake=wake, service=service)

    def for_an_action() -> closing[Any]:
        return closing(connect(hosts, session_timeout_ms=10_000, connect_timeout_s=1.0))

    operating = None
    if operators is not None:
        operating = Operating(Logins(OperatorsFile(operators).newest), for_an_action, {})
    live = Live(opened)
    server = Exposition("127.0.0.1:0", None, lambda: (True, {}), setting="--listen", site=Site(live, operating))
    try:
        yield Served(server.port, live)
    finally:
        live.close()
        server.close()


def applied(document: Any, told: list[Any]) -> Any:
    """Applies changes to a document, like the page (assets/live.js)."""
    for path, *value in told:
        if not path:
            document = [*document, *value[0]] if len(value) > 1 else value[0]
            continue
        at = document
        for key in path[:-1]:
            at = at[key]
        if len(value) > 1:
            at[path[-1]].extend(value[0])
        elif value:
            at[path[-1]] = value[0]
        else:
            del at[path[-1]]
    return document
