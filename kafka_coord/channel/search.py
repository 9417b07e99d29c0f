"""Finds the coordinator: decides which host to ask next and how long to wait. Does no I/O.

The owner of the sockets calls :meth:`CoordinatorSearch.next`, carries out the returned step and reports the result.
``lease_left_s`` is how many more seconds the membership is certain to last. No single wait takes more than a quarter of
that time, so one silent host cannot use up the whole lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from kafka_coord.channel.messages import WAIT_MS, ClusterMetadata, Coordinator, MetadataQuestion
from kafka_coord.errors import SettingsError

CONNECT_S = 3.0
"""The time limit for connecting to a host and receiving its response, in seconds."""
SILENCE = 0.5
"""The shortest silence after which a connection counts as lost, as a fraction of the session timeout. The client waits
up to a tenth longer, which still leaves it enough of its lease to find another coordinator."""
SHARE_OF_LEASE = 0.25
"""The longest single wait, as a fraction of the remaining lease."""
LEAST_LEASE_S = 0.1
"""A lease with fewer seconds left than this counts as lost."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
HURRIED_PAUSE_S = 0.4
"""The longest pause while some of the lease remains, in seconds."""
MAX_HOSTS = 1_000


def addresses(bootstrap: str) -> tuple[str, ...]:
    """Parses ``host:port,host:port``. Raises :class:`SettingsError`."""
    parsed = tuple(part.strip() for part in bootstrap.split(",") if part.strip())
    for address in parsed:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise SettingsError(f"bootstrap address {address[:80]!r} must have the form host:port")
    if not parsed:
        raise SettingsError("bootstrap is empty; give the host:port of at least one broker that runs kafka-coord")
    return parsed


def longest_wait(limit_s: float, lease_left_s: float) -> float:
    """Returns ``limit_s``, or a share of the remaining lease if that is shorter. Ignores a lease that has all but
    ended."""
    return min(limit_s, lease_left_s * SHARE_OF_LEASE) if lease_left_s >= LEAST_LEASE_S else limit_s


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask ``host`` for the cluster's metadata. Connecting and receiving the response may take ``within_s`` seconds in
    total."""

    host: str
    question: MetadataQuestion
    within_s: float


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the coordinator within ``within_s`` seconds."""

    coordinator: Coordinator
    endpoint: str
    within_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause before the next round of hosts, because a whole round has failed. ``problem`` says why."""

    seconds: float
    problem: str


class CoordinatorSearch:
    """Chooses each step, based on the hosts that a consumer knows and on their responses. ``uniform``
    (:func:`random.uniform` or, in a simulation, its substitute) spreads out the reconnects of consumers that have lost
    the same coordinator. ``session_s`` is the consumer's session timeout, in seconds."""

    def __init__(
        self, bootstrap: Iterable[str], uniform: Callable[[float, float], float], session_s: float = float("inf")
    ) -> None:
        # A consumer that waits has a session timeout from the next election on, in which it must resume.
        self._longest_pause_s = min(LONGEST_PAUSE_S, session_s * SHARE_OF_LEASE)
        self._hosts = sorted(bootstrap, key=lambda _host: uniform(0.0, 1.0))
        self._uniform = uniform
        self._left_in_round = len(self._hosts)
        self._found: Coordinator | None = None
        self._waits = False
        self._not_epoch: int | None = None
        self._pause_s = FIRST_PAUSE_S
        self._problem = "no host is configured"

    def next(self, lease_left_s: float) -> Ask | Connect | Wait:
        """Returns the next step."""
        coordinator, self._found = self._found, None
        if coordinator is not None and coordinator.endpoint is not None:
            return Connect(coordinator, coordinator.endpoint, longest_wait(CONNECT_S, lease_left_s))
        if self._left_in_round <= 0:
            self._left_in_round = len(self._hosts)
            return Wait(self._next_pause(lease_left_s), self._problem)
        self._left_in_round -= 1
        host = self._hosts.pop(0)
        self._hosts.append(host)
        if not self._waits:
            return Ask(host, MetadataQuestion(), longest_wait(CONNECT_S, lease_left_s))
        within_s = longest_wait(CONNECT_S + WAIT_MS / 1000, lease_left_s)
        wait_ms = min(WAIT_MS, int(within_s / 2 * 1000))  # leaves half for connecting and for the response to arrive
        return Ask(host, MetadataQuestion(wait_ms, self._not_epoch), within_s)

    def _next_pause(self, lease_left_s: float) -> float:
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, self._longest_pause_s)
        if lease_left_s >= LEAST_LEASE_S:
            pause_s = longest_wait(min(pause_s, HURRIED_PAUSE_S), lease_left_s)
        return pause_s * self._uniform(0.8, 1.0)

    def take_answer(self, host: str, metadata: ClusterMetadata) -> None:
        self._learn(metadata.instances)
        coordinator = metadata.coordinator
        self._wait_for_another_than(coordinator)  # in case this coordinator cannot be reached
        if coordinator is None or coordinator.endpoint is None:
            self._problem = f"{host} does not know of a coordinator that accepts consumers"
        else:
            self._found = coordinator

    def failed(self, host: str, problem: object) -> None:
        """Records that a host or the coordinator could not be reached or did not respond."""
        self._problem = f"{host}: {problem}"

    def connected(self) -> None:
        self._waits, self._not_epoch = False, None

    def ended(self, coordinator: Coordinator, why: str, *, silent: bool, lasted: bool) -> None:
        """Records that the connection has ended. ``silent`` means that the coordinator was silent for too long, and
        ``lasted`` that the connection did not break immediately. If either is set, the search asks all hosts again
        without a pause. It asks a silent coordinator's host last."""
        if silent:
            self._wait_for_another_than(coordinator)
            if coordinator.endpoint in self._hosts:
                self._hosts.remove(coordinator.endpoint)
                self._hosts.append(coordinator.endpoint)
        if lasted:
            self._pause_s = FIRST_PAUSE_S
        else:
            self._problem = f"the coordinator closed the connection immediately: {why}"
        self._left_in_round = len(self._hosts) if lasted or silent else 0

    def _learn(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            if host not in self._hosts and len(self._hosts) < MAX_HOSTS:
                with suppress(SettingsError):
                    self._hosts += addresses(host)

    def _wait_for_another_than(self, coordinator: Coordinator | None) -> None:
        self._waits = True
        self._not_epoch = coordinator.epoch if coordinator is not None else None
