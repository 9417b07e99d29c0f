"""Network links that can be cut. They are TCP proxies on loopback, all in one separate process (``network``).

A cut link behaves like a network that drops packets, not like a closed connection. No data passes, and neither side
learns of the other side's end. The data arrives after the repair of the link.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.errors import DevClusterError

_END_S = 10.0


class Direction(StrEnum):
    """The direction in which no data passes: from the client to the server, from the server to the client, or both."""

    TO_SERVER = "to_server"
    FROM_SERVER = "from_server"
    BOTH = "both"


class Link:
    """The links of one client to several servers, each with its own port. Thread-safe. Every method raises
    :class:`DevClusterError` if the network process has ended.
    """

    def __init__(self, network: Network, number: int, ports: Sequence[int]) -> None:
        self._network = network
        self._number = number
        self.ports = tuple(ports)

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Lets no data pass in that direction until :meth:`mend`."""
        self._network.do(self._number, "cut", direction=direction)

    def slow(self, latency_s: float, bytes_per_s: float = 0.0) -> None:
        """Delays each chunk by ``latency_s``, and limits the bytes per second (0 means no limit)."""
        self._network.do(self._number, "slow", latency_s=latency_s, bytes_per_s=bytes_per_s)

    def reset(self) -> None:
        """Resets every open connection, and accepts new connections."""
        self._network.do(self._number, "reset")

    def mend(self) -> None:
        """Lets all data pass again at full speed."""
        self._network.do(self._number, "mend")


class Network:
    """All links of a run. ``with`` starts and ends their process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def link(self, targets: Sequence[int], *, patience_s: float = 0.0) -> Link:
        """Returns a new working link to ``targets`` (ports on loopback).

        If no server listens at a target, the proxy holds a connection for ``patience_s`` before it breaks the
        connection. A proxy cannot refuse a connection. A ZooKeeper server repeats a refused connection, but it restarts
        the election after a broken one, while its leader waits ten seconds.
        """
        link = Link(self, next(self._numbers), [free_port() for _ in targets])
        self.do(link._number, "listen", ports=link.ports, targets=tuple(targets), patience_s=patience_s)
        return link

    def do(self, link: int, what: str, **more: object) -> None:
        """Sends the order to the process, and waits until it is executed."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise DevClusterError("the network of the run is not running")
        try:
            with self._turn:
                process.stdin.write(json.dumps({"link": link, "do": what, "with": more}) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
        except (OSError, ValueError) as error:
            raise DevClusterError(f"the network of the run has ended: {error}") from None
        if not answer:
            raise DevClusterError(f"the network of the run has ended (exit code {process.poll()})")
        if "error" in (told := json.loads(answer)):
            raise DevClusterError(f"the network of the run could not {what}: {told['error']}")

    def __enter__(self) -> Network:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.network"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class _Direct:
    """What there is instead of a link: the server's own ports."""

    ports: tuple[int, ...]

    def mend(self) -> None:
        pass


class Unlinked(AbstractContextManager[None]):
    """A network without links, for runs without faults in the network: links take a part of the cores."""

    def link(self, ports: Sequence[int], **_: object) -> _Direct:
        return _Direct(tuple(ports))

    def __exit__(self, *_: object) -> None:
        pass
