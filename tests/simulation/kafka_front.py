"""The listener for Kafka clients of a simulated instance, with the real terms of managed groups and simulated sockets.

Requests and answers travel as values. Actors do the work of a real instance's event loop and thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from greenlet import GreenletExit

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.sessions import Sessions
from kafka_coord.errors import StoreError, TreeRefused
from kafka_coord.frontends.kafka.managed.member import MemberRequest
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.trees import claim_term
from kafka_coord.zk.root import OwnTree
from kafka_coord.zk.store import Store
from tests.simulation.group_kind import GROUP
from tests.simulation.scheduler import Scheduler
from tests.simulation.sockets import Wire

PARTITION = partition_of(GROUP)
"""The simulated group's partition of the groups log."""


class Ask(Protocol):
    """Passes a client's request to the terms, for the client ``caller``. ``broker_id`` is that of the instance."""

    def __call__(self, terms: ManagedTerms, caller: Any, broker_id: int, /) -> Coroutine[Any, Any, Any]: ...


@dataclass(frozen=True, slots=True)
class NotCoordinator:
    """The answer of an instance without a term."""

    error: Error = Error.NOT_COORDINATOR


class SimulatedTerms(ManagedTerms):
    """Runs the terms in an actor instead of a thread. ``failed`` receives exceptions that only a defect can raise, and
    ``heard`` receives the member id of each heartbeat."""

    def __init__(
        self,
        store: Store,
        lost: Callable[[int, str], None],
        scheduler: Scheduler,
        session_timeout_s: float,
        failed: Callable[[Exception], None],
        heard: Callable[[str], None],
    ) -> None:
        super().__init__(store, lost, lambda _request: None, session_timeout_s)
        self._failed, self._heard = failed, heard

        def wait(timeout: float) -> None:
            scheduler.sleep(scheduler.clock.now + timeout, self._news.is_set)

        self._news.wait = wait  # type: ignore[assignment, method-assign]

    def _begin(self, partition: int, number: int, sessions: Sessions) -> None:
        super()._begin(partition, number, sessions)
        served = self._served[partition]
        step, arrived = served.step, served.members.arrived

        def noted(request: MemberRequest, now: float) -> None:
            self._heard(request.member_id)
            arrived(request, now)

        served.members.arrived = noted  # type: ignore[method-assign]

        def watched() -> float:
            try:
                return step()
            except (StoreError, GreenletExit):
                raise
            except Exception as error:
                self._failed(error)
                raise

        served.step = watched  # type: ignore[method-assign]

    def _guarded(self, call: Callable[[], None]) -> None:
        def watched() -> None:
            try:
                call()
            except Exception as error:
                self._failed(error)
                raise

        super()._guarded(watched)

    run = ManagedTerms._run


class _Loop:
    """The part of an event loop that futures need."""

    def __init__(self) -> None:
        self.has_news = False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        self.has_news = True
        call(*args)

    def get_debug(self) -> bool:
        return False


@dataclass(eq=False, slots=True)
class _Peer:
    """The listener's end of a connection (:class:`~kafka_coord.frontends.kafka.calls.Caller`). It answers one request
    at a time. ``running`` is the current request, which waits for ``awaited``."""

    wire: Wire
    number: int
    requests: deque[tuple[int, Ask]] = field(default_factory=deque)
    running: tuple[int, Coroutine[Any, Any, Any]] | None = None
    awaited: asyncio.Future[Any] | None = None
    release: Callable[[], None] | None = None
    has_closed: bool = False

    def holding(self, release: Callable[[], None] | None) -> None:
        self.release = release
        if release is not None and self.requests:
            release()


class SimulatedListener:
    """Takes requests, lets the terms answer them, and sends the answers in the order of the requests."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        tree: OwnTree,
        terms: Callable[[Callable[[int, str], None]], SimulatedTerms],
    ) -> None:
        """``terms`` creates the terms. Its argument is called for a lost membership."""
        self.serves = False
        self.terms = terms(self._lost)
        self._store, self._broker_id, self._tree = store, broker_id, tree
        self._loop = _Loop()
        self._peers: list[_Peer] = []
        self._numbers = itertools.count(1)

    def _lost(self, _partition: int, _why: str) -> None:
        self.serves = False

    def follow(self, *, leads: bool) -> None:
        """Claims the term if the instance's broker leads the partition. Otherwise, gives the term up."""
        if leads and not self.serves:
            try:
                number = claim_term(self._store, PARTITION, self._broker_id, self._tree).version
            except (StoreError, TreeRefused):
                return
            self.serves = True
            self.terms.begin(PARTITION, number, Sessions())
        elif self.serves and not leads:
            self.serves = False
            self.terms.end(PARTITION)

    def accept(self, wire: Wire) -> None:
        self._peers.append(_Peer(wire, next(self._numbers)))

    def is_awake(self) -> bool:
        return self._loop.has_news or any(peer.wire.to_read_above() for peer in self._peers)

    def turn(self) -> None:
        self._loop.has_news = False
        asyncio._set_running_loop(self._loop)  # type: ignore[arg-type]
        try:
            for peer in list(self._peers):
                self._serve(peer)
        finally:
            asyncio._set_running_loop(None)

    def _serve(self, peer: _Peer) -> None:
        wire = peer.wire
        peer.requests += wire.up
        wire.up.clear()
        if peer.release is not None and peer.requests:
            peer.release()
        while peer.running is not None or peer.requests:
            if peer.running is None:
                number, ask = peer.requests.popleft()
                peer.running, peer.awaited = (number, self._asking(ask, peer)), None
            if peer.awaited is not None and not peer.awaited.done():
                break
            number, asking = peer.running
            try:
                peer.awaited = asking.send(None)
            except StopIteration as done:
                peer.running = None
                wire.say_down((number, done.value), close=False)
        if wire.up_ended:
            self._peers.remove(peer)
            if peer.running is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    peer.running[1].throw(asyncio.CancelledError())

    async def _asking(self, ask: Ask, peer: _Peer) -> Any:
        return await ask(self.terms, peer, self._broker_id) if self.serves else NotCoordinator()

    def break_all(self) -> tuple[Wire, ...]:
        """Ends the process."""
        wires = tuple(peer.wire for peer in self._peers)
        self._peers = []
        return wires
