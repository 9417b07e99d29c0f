"""Network links that can be cut: TCP proxies on loopback, all in one process of their own (``network``).

A cut link behaves like a network that drops packets, not like a closed connection. No data passes, neither side learns
of the other's end, and the data arrives when the link is mended.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from enum import StrEnum

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.errors import DevClusterError

_END_S = 10.0


class Direction(StrEnum):
    """The direction in which nothing passes: from the client to the server, from the server to the client, or both."""

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
        """Delays each chunk by this much from now on, and limits the bytes per second (0: no limit)."""
        self._network.do(self._number, "slow", latency_s=latency_s, bytes_per_s=bytes_per_s)

    def reset(self) -> None:
        """Breaks every open connection (RST), and accepts new ones."""
        self._network.do(self._number, "reset")

    def mend(self) -> None:
        """Lets all data pass again, at full speed."""
        self._network.do(self._number, "mend")


class Network:
    """All links of a run. ``with`` starts and ends their process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def link(self, targets: Sequence[int], *, patience_s: float = 0.0) -> Link:
        """A new link to ``targets`` (ports on loopback), working.

        Where nobody listens at a target, a connection is held for ``patience_s`` before it is broken. A proxy cannot
        refuse one; a client that would try again at a refusal takes a broken one for more than that (a ZooKeeper
        server goes back to the election for it, while the leader it was to follow waits ten seconds for it).
        """
        link = Link(self, next(self._numbers), [free_port() for _ in targets])
        self.do(link._number, "listen", ports=link.ports, targets=tuple(targets), patience_s=patience_s)
        return link

    def do(self, link: int, what: str, **more: object) -> None:
        """Sends the order to the process, and waits until it is carried out."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise DevClusterError("the network of the run is not there")
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
