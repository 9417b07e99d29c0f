"""Network links that can be cut: TCP proxies on loopback, all on one thread.

A cut link behaves as a network that drops packets, not as a closed connection: nothing passes, what was sent is
delivered when it is mended, and neither side hears of the other's end meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.dev.ports import LOOPBACK, free_port

_CHUNK = 65_536


class Direction(StrEnum):
    """What passes nothing: that from the client to the server, that to it, or both."""

    TO_SERVER = "to_server"
    FROM_SERVER = "from_server"
    BOTH = "both"


@dataclass(slots=True)
class _Condition:
    latency_s: float = 0.0
    bytes_per_s: float = 0.0


class Link:
    """One client's way to each of ``targets`` (ports on loopback), by as many ports of its own. Thread-safe."""

    def __init__(self, network: Network, targets: Sequence[int], patience_s: float) -> None:
        self._network = network
        self._patience_s = patience_s
        self.ports = tuple(free_port() for _ in targets)
        self._targets = tuple(targets)
        self._condition = _Condition()
        self._open = {Direction.TO_SERVER: asyncio.Event(), Direction.FROM_SERVER: asyncio.Event()}
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Let nothing pass that way until :meth:`mend`."""
        ways = self._open if direction is Direction.BOTH else (direction,)

        def make() -> None:
            for way in ways:
                self._open[way].clear()

        self._network.call(make)

    def slow(self, latency_s: float, bytes_per_s: float = 0.0) -> None:
        """From now on each chunk comes this much later, and no more than so many bytes pass in a second (0: any)."""

        def make() -> None:
            self._condition = _Condition(latency_s, bytes_per_s)

        self._network.call(make)

    def reset(self) -> None:
        """Break every connection that is open (RST), and accept new ones."""

        def make() -> None:
            for writer in tuple(self._writers):
                writer.transport.abort()

        self._network.call(make)

    def mend(self) -> None:
        """Everything passes again, at full speed."""

        def make() -> None:
            self._condition = _Condition()
            for way in self._open.values():
                way.set()

        self._network.call(make)

    async def listen(self) -> list[asyncio.Server]:
        for way in self._open.values():
            way.set()
        return [
            await asyncio.start_server(
                lambda reader, writer, target=target: self._serve(reader, writer, target),  # type: ignore[misc]
                LOOPBACK,
                port,
            )
            for port, target in zip(self.ports, self._targets, strict=True)
        ]

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
            pass  # refused, or broken: the other side hears of it below
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
                # Neither ZooKeeper nor its clients use half-open connections: an end is the end of both ways.
                raise ConnectionResetError
            writer.write(chunk)
            await writer.drain()


class Network:
    """All links of a run. ``with`` starts and ends them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-network", daemon=True)
        self._servers: list[asyncio.Server] = []

    def link(self, targets: Sequence[int], *, patience_s: float = 0.0) -> Link:
        """A new link, working.

        Where nobody listens at a target, a connection is held for ``patience_s`` before it is broken. A proxy cannot
        refuse one; a client that would try again at a refusal takes a broken one for more than that (a ZooKeeper
        server goes back to the election for it, while the leader it was to follow waits ten seconds for it).
        """
        link = Link(self, targets, patience_s)
        self._servers += asyncio.run_coroutine_threadsafe(link.listen(), self._loop).result(10)
        return link

    def call(self, change: Callable[[], None]) -> None:
        """Do it on the network's thread, and wait until it is done."""
        done = threading.Event()

        def run() -> None:
            with contextlib.suppress(RuntimeError):
                change()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        serving = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
