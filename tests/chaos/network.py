"""Runs all links of a run: ``python -m tests.chaos.network``. All traffic of ZooKeeper's clients and servers passes
through this process. It is separate from the testbed, whose threads would delay each message by the interpreter's lock.

Each line of JSON on standard input is an order. A line on standard output answers ``{}``, or ``{"error": …}`` on
failure. The process ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka_coord.dev.cluster.ports import LOOPBACK
from tests.chaos.links import Direction

_CHUNK = 65_536
_WITHIN_S = 10.0


@dataclass(slots=True)
class _Condition:
    latency_s: float = 0.0
    bytes_per_s: float = 0.0


class _Proxy:
    """Does the work of a link, on the loop's thread. :class:`tests.chaos.links.Link` has the same methods."""

    def __init__(self, ports: list[int], targets: list[int], patience_s: float) -> None:
        self._patience_s = patience_s
        self._ports, self._targets = ports, targets
        self._condition = _Condition()
        self._open = {Direction.TO_SERVER: asyncio.Event(), Direction.FROM_SERVER: asyncio.Event()}
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []

    def cut(self, direction: str) -> None:
        for way in self._open if direction == Direction.BOTH else (Direction(direction),):
            self._open[way].clear()

    def slow(self, latency_s: float, bytes_per_s: float) -> None:
        self._condition = _Condition(latency_s, bytes_per_s)

    def reset(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    def mend(self) -> None:
        self._condition = _Condition()
        for way in self._open.values():
            way.set()

    async def listen(self) -> None:
        self.mend()
        for port, target in zip(self._ports, self._targets, strict=True):
            self._servers.append(
                await asyncio.start_server(
                    lambda reader, writer, target=target: self._serve(reader, writer, target),  # type: ignore[misc]
                    LOOPBACK,
                    port,
                )
            )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        self._writers.add(writer)
        server_writer: asyncio.StreamWriter | None = None
        try:
            await self._open[Direction.TO_SERVER].wait()
            server_reader, server_writer = await self._connect(target)
            self._writers.add(server_writer)
            await asyncio.gather(
                self._pump(reader, server_writer, Direction.TO_SERVER),
                self._pump(server_reader, writer, Direction.FROM_SERVER),
            )
        except OSError:
            pass  # the connection was refused or broke; both sides are closed below
        finally:
            for one in (writer, server_writer):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _connect(self, target: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return await asyncio.open_connection(LOOPBACK, target)
            except ConnectionRefusedError:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(0.02)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        while True:
            chunk = await reader.read(_CHUNK)
            condition = self._condition
            if condition.latency_s or condition.bytes_per_s:
                drawn_out_s = len(chunk) / condition.bytes_per_s if condition.bytes_per_s else 0.0
                await asyncio.sleep(condition.latency_s + drawn_out_s)
            await self._open[way].wait()
            if not chunk:
                if writer.can_write_eof():
                    writer.write_eof()
                # Neither ZooKeeper nor its clients use half-open connections, so one end closes both directions.
                raise ConnectionResetError
            writer.write(chunk)
            await writer.drain()


class _Proxies:
    """All links, by their numbers."""

    def __init__(self) -> None:
        self._proxies: dict[int, _Proxy] = {}

    async def do(self, wanted: Mapping[str, Any]) -> None:
        number, what, more = wanted["link"], wanted["do"], wanted["with"]
        if what == "listen":
            self._proxies[number] = _Proxy(**more)
            await self._proxies[number].listen()
            return
        proxy = self._proxies[number]
        doing: dict[str, Callable[..., None]]
        doing = {"cut": proxy.cut, "slow": proxy.slow, "reset": proxy.reset, "mend": proxy.mend}
        doing[what](**more)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C, and ends its network last
    loop, proxies = asyncio.new_event_loop(), _Proxies()
    threading.Thread(target=loop.run_forever, name="chaos-network", daemon=True).start()
    for line in sys.stdin:
        answer: dict[str, str] = {}
        try:
            asyncio.run_coroutine_threadsafe(proxies.do(json.loads(line)), loop).result(_WITHIN_S)
        except Exception as error:  # noqa: BLE001  the caller must get every error
            answer = {"error": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
