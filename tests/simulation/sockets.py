"""Simulated sockets between the real gateway and a client. A connection may break without the knowledge of both ends.

Frames travel as bytes, through the real encoder and decoder. A broken connection loses the messages in flight. Each end
learns of this at its own time, or only by a timeout.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_coord.channel.frames import AnsweredRequest, BadFrame, Decoder, Frame, Rpc, encode
from kafka_coord.channel.link import LASTED_S, SocketLink
from kafka_coord.channel.messages import ClusterMetadata, Coordinator, MessageType
from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.channel.search import SILENCE, Ask, CoordinatorSearch, Wait, longest_wait
from kafka_coord.errors import StoreUnavailable
from kafka_coord.frontends.socket.connection import Connection
from kafka_coord.frontends.socket.gateway import Gateway, LeadershipView
from kafka_coord.model import CommandId, StopFetcher
from kafka_coord.zk.store import SessionState, Store
from tests.simulation.scheduler import Scheduler


class ProtocolBroken(AssertionError):
    """One end rejected a message of the other. Both ends are our code, so one of them is wrong."""


class Network(Protocol):
    """The part of the cluster that a connection needs."""

    def may_say(self, wire: Wire) -> bool:
        """Tells whether the connection carries the next message of this end. It may break instead."""

    def said(self, process: str) -> None:
        """Records that a process has input."""


@dataclass(eq=False, slots=True)
class Wire:
    """One connection from ``client`` to ``host``, both names of processes. ``up`` and ``down`` are in flight, as bytes
    or, for Kafka clients, as values. An end whose direction has ``ended`` learns this after it has read all earlier
    messages. A ``broken`` connection carries no more messages."""

    client: str
    host: str
    network: Network
    up: deque[Any] = field(default_factory=deque)
    down: deque[Any] = field(default_factory=deque)
    up_ended: bool = False
    down_ended: bool = False
    broken: bool = False
    hung_up: bool = False
    """Whether the client has closed the connection."""

    def say_up(self, data: Any) -> None:
        """Sends from the client. Raises ``OSError`` if this end knows that the connection has ended."""
        if self.hung_up or (self.down_ended and not self.down):
            raise OSError("the connection is closed")
        if self.network.may_say(self) and not self.broken:
            self.up.append(data)
            self.network.said(self.host)

    def say_down(self, data: Any, *, close: bool) -> None:
        if data and self.network.may_say(self) and not self.broken and not self.hung_up:
            self.down.append(data)
        if close and not self.broken:
            self.down_ended = True
        self.network.said(self.client)

    def hang_up(self) -> None:
        """Closes the connection at the client."""
        self.hung_up = True
        self.down.clear()
        if not self.broken:
            self.up_ended = True
        self.network.said(self.host)
        self.network.said(self.client)

    def to_read_above(self) -> bool:
        """Tells whether the host has input."""
        return bool(self.up) or self.up_ended

    def to_read_below(self) -> bool:
        """Tells whether the client has input."""
        return bool(self.down) or self.down_ended or self.hung_up


class SimulatedPeer:
    """The gateway's end of a connection (:class:`~kafka_coord.frontends.socket.connection.Peer`). Frames leave at the
    end of the gateway's turn, as over real sockets."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.decoder = Decoder()
        self.connection: Connection | None = None
        self.unsent: list[bytes] = []
        self.closing = False

    @property
    def address(self) -> str:
        return f"{self.wire.client}:1"

    @property
    def certificate(self) -> str | None:
        return None

    def send(self, frame: Frame) -> None:
        self.unsent.append(encode(frame))

    def rest(self, seconds: float) -> None:
        del seconds

    def close(self) -> None:
        self.closing = True


class _StrictGateway(Gateway):
    def broken(self, connection: Connection, error: BadFrame) -> None:
        raise ProtocolBroken(f"the gateway was told by {connection.peer.address} what it cannot take: {error}")


class SimulatedGateway:
    """The gateway of one instance, with the work that :class:`kafka_coord.frontends.socket.server.GatewayServer` does
    for it."""

    def __init__(self, store: Store, instance: int, leadership_view: LeadershipView, nonce: Callable[[], str]) -> None:
        self.gateway = _StrictGateway(store, instance, leadership_view, self._wake, nonce=nonce)
        self._peers: list[SimulatedPeer] = []
        self._awake = True

    def _wake(self) -> None:
        self._awake = True

    def is_awake(self) -> bool:
        return self._awake or any(peer.wire.to_read_above() for peer in self._peers)

    def accept(self, wire: Wire) -> None:
        self._peers.append(SimulatedPeer(wire))

    def turn(self) -> float:
        """Handles the input, does the due work and sends the output. Returns when to call it again."""
        self._awake = False
        self._take_in()
        due = self.gateway.step()
        self._send_out()
        return due

    def break_all(self) -> tuple[Wire, ...]:
        """Ends the process. Returns its connections, so the caller can decide what their other ends learn."""
        wires = tuple(peer.wire for peer in self._peers)
        self._peers = []
        return wires

    def _take_in(self) -> None:
        for peer in list(self._peers):
            wire = peer.wire
            if peer.connection is None:
                peer.connection = self.gateway.accepted(peer)
            while wire.up:
                for frame in peer.decoder.feed(wire.up.popleft()):
                    self.gateway.received(peer.connection, frame)
            if wire.up_ended:
                self.gateway.lost(peer.connection)
                if peer in self._peers:
                    self._peers.remove(peer)

    def _send_out(self) -> None:
        for peer in list(self._peers):
            data, peer.unsent = b"".join(peer.unsent), []
            if data or peer.closing:
                peer.wire.say_down(data, close=peer.closing)
            if peer.closing:
                self._peers.remove(peer)


class PipeliningLink(SocketLink):
    """A client that commits the final offsets directly before it answers a stop, and waits for neither reply."""

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        if offsets and isinstance(self.read(command), StopFetcher):
            with contextlib.suppress(StoreUnavailable):  # does not wait for the reply
                self.commit(registration, offsets)
        return super().acknowledge(registration, command, offsets)


class SimulatedClient:
    """Does the work of :class:`kafka_coord.channel.link.SocketClient` in the scheduler's time. ``dial`` returns a
    connection to a host, or ``None`` if the host does not answer."""

    def __init__(
        self,
        link: SocketLink,
        hosts: Sequence[str],
        dial: Callable[[str], Wire | None],
        scheduler: Scheduler,
        occurs: Callable[[str], None],
    ) -> None:
        self._link = link
        self._occurs = occurs
        self._search = CoordinatorSearch(hosts, scheduler.rng.uniform, link.timeout_ms / 1000)
        self._dial = dial
        self._scheduler = scheduler
        self._closed = self._resuming = self._told = False
        self.wire: Wire | None = None

    def close(self) -> None:
        """Closes the connection after the end of the consumer."""
        self._closed = True
        if self.wire is not None:
            self.wire.hang_up()

    def run(self) -> None:
        scheduler, search = self._scheduler, self._search
        while not self._closed:
            step = search.next(self._lease_left_s())
            if isinstance(step, Wait):
                scheduler.sleep(scheduler.clock.now + step.seconds)
            elif isinstance(step, Ask):
                self._ask(step)
            else:
                wire = self.wire = self._dial(step.endpoint)
                if wire is None:
                    search.failed(step.endpoint, "nobody answers there")
                else:
                    self._serve(wire, step.coordinator)

    def _serve(self, wire: Wire, coordinator: Coordinator) -> None:
        began = self._scheduler.clock.now
        resume_by = began + longest_wait(self._silence_s(), self._lease_left_s())
        self._search.connected()
        before = self._link.session_id
        self._link.connected(lambda frame: wire.say_up(encode(frame)), wire.hang_up)
        self._resuming, self._told = self._link.session_id == before, False
        why, silent = self._read_until_lost(wire, resume_by)
        wire.hang_up()
        self._link.lost()
        lasted = self._scheduler.clock.now - began > LASTED_S
        self._search.ended(coordinator, why, silent=silent, lasted=lasted)

    def _ask(self, step: Ask) -> None:
        """Asks one host and closes the connection."""
        wire = self._dial(step.host)
        if wire is None:
            self._search.failed(step.host, "nobody answers there")
            return
        rpc, decoder = Rpc(), Decoder()
        _, frame = rpc.ask(MessageType.CLUSTER_METADATA, step.question.to_json())
        wire.say_up(encode(frame))
        self._scheduler.sleep(self._scheduler.clock.now + step.within_s, wire.to_read_below)
        frames = [frame for data in wire.down for frame in decoder.feed(data)]
        wire.hang_up()
        for frame in frames:
            event = rpc.take(frame)
            if isinstance(event, AnsweredRequest):
                self._search.take_answer(step.host, ClusterMetadata.from_json(event.frame))
                return
        self._search.failed(step.host, "no answer")

    def _lease_left_s(self) -> float:
        return self._link.lease_deadline() - self._scheduler.clock.now

    def _silence_s(self) -> float:
        return self._link.timeout_ms / 1000 * SILENCE

    def _read_until_lost(self, wire: Wire, resume_by: float) -> tuple[str, bool]:
        scheduler, decoder = self._scheduler, Decoder()
        until = scheduler.clock.now + self._silence_s()
        while not wire.hung_up:
            by = resume_by if self._link.state is SessionState.SUSPENDED else until
            if wire.down:
                until = scheduler.clock.now + self._silence_s()
                self._read(decoder, wire.down.popleft())
                self._tell()
                scheduler.pause()
            elif wire.down_ended:
                return "the coordinator closed the connection", False
            elif scheduler.clock.now >= by:
                return "the coordinator is silent", True
            else:
                scheduler.sleep(by, wire.to_read_below)
        return "it was closed", False

    def _tell(self) -> None:
        """Counts how the connection ended."""
        if self._link.lease_deadline() > 0 and self._link.state is SessionState.CONNECTED and not self._told:
            self._told = True
            self._occurs("resumed over a new connection" if self._resuming else "registered over a socket")

    def _read(self, decoder: Decoder, data: bytes) -> None:
        try:
            for frame in decoder.feed(data):
                self._link.received(frame)
        except BadFrame as error:
            raise ProtocolBroken(f"{self._link.consumer} cannot take {data!r}: {error}") from error
