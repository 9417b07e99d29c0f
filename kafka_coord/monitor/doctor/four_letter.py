"""Queries the state of ZooKeeper servers with four-letter words."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

TIMEOUT_S = 2.0
_MAX_ANSWER = 1 << 20
_VERSION = re.compile(r"version:?\s+(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server's responses. ``problem`` says why it did not answer. ``metrics`` is empty if the server's whitelist
    allows only ``srvr``, which ZooKeeper always allows."""

    server: str
    version: tuple[int, int, int] | None = None
    mode: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    reached: bool = False


def ask_servers(servers: Iterable[str]) -> tuple[ServerFacts, ...]:
    """Queries all servers (``host:port``) at once and returns their responses. Waits at most a few seconds for each
    server."""
    wanted = tuple(servers)
    with ThreadPoolExecutor(max_workers=min(16, max(1, len(wanted))), thread_name_prefix="doctor") as pool:
        return tuple(pool.map(_ask, wanted))


def _ask(server: str) -> ServerFacts:
    try:
        response = _word(server, "srvr")
    except OSError as problem:
        return ServerFacts(server, problem=problem.strerror or str(problem) or type(problem).__name__)
    version = _VERSION.search(response)
    if version is None:
        return ServerFacts(server, problem="does not answer srvr", reached=True)
    mode = next((line.partition(":")[2].strip() for line in response.splitlines() if line.startswith("Mode:")), "")
    major, minor, patch = (int(part or 0) for part in version.groups())
    return ServerFacts(server, (major, minor, patch), mode, _metrics(server), reached=True)


def _metrics(server: str) -> dict[str, str]:
    """Returns the values from ``mntr`` and ``conf`` in one mapping, which is empty if the whitelist forbids both."""
    metrics: dict[str, str] = {}
    for word, separator in (("mntr", "\t"), ("conf", "=")):
        try:
            lines = _word(server, word).splitlines()
        except OSError:
            continue
        metrics |= {name: value.strip() for name, mark, value in (line.partition(separator) for line in lines) if mark}
    return metrics


def _word(server: str, word: str) -> str:
    host, _, port = server.rpartition(":")
    answer = bytearray()
    with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(word.encode())
        while len(answer) < _MAX_ANSWER and (part := connection.recv(65_536)):
            answer += part
    return answer.decode("utf-8", errors="replace")
