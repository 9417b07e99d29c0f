"""The consumer's end of the socket channel: what a connector takes for a session and a channel, over one connection.

No I/O and no thread here. Whoever has the socket (:mod:`kafka_coord.channel.client`) calls
:meth:`SocketLink.connected`, :meth:`SocketLink.received` and :meth:`SocketLink.lost`; the connector calls the rest, as
it calls the channel over ZooKeeper. What needs an answer either waits for it (``patience_s``) or, where nobody may
wait, raises :class:`StoreUnavailable`: asked for again, it goes on where it was.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.channel.frames import BadFrame, Fault, Frame
from kafka_coord.channel.messages import (
    ClusterMetadata,
    Code,
    MessageType,
    Ping,
    Register,
    Registered,
    Resume,
    read_command,
    read_offsets,
    read_outstanding,
    write_offsets,
)
from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.channel.rpc import Answered, Asked, Conversation, Refused
from kafka_coord.channel.zookeeper import Holder
from kafka_coord.errors import (
    KafkaCoordError,
    MalformedValue,
    MembershipLost,
    NoAuth,
    StoreError,
    StoreUnavailable,
)
from kafka_coord.model import Command, CommandId, Member, StopFetcher, TopicPartition, parse_command_id
from kafka_coord.model import json_fields as fields
from kafka_coord.zk.store import Clock, Op, SessionListener, SessionState, Watcher, WatchEvent, WatchType

log = logging.getLogger(__name__)

SAFETY = 0.1
"""Of the session timeout: what clocks and scheduling may cost between what this end knows and what it does."""

_LONGEST_RETRY_S = 60.0

_LATER = frozenset({Code.SLOW_DOWN, Code.UNAVAILABLE, Code.NOT_COORDINATOR, Code.SHUTTING_DOWN})
"""Refusals after which the same may be asked for again, here or elsewhere."""

Send = Callable[[Frame], None]


@dataclass(slots=True)
class _Obeying:
    """A command that came: ``request`` is the frame's id on the connection of now, 0 where it has not come on that one
    yet; ``settled`` what it was answered with, ``stored``: and that is stored."""

    command: Command
    request: int
    settled: Offsets | None = None
    stored: bool = False


@dataclass(slots=True)
class _Asking:
    """A request on its way: what it was about, and the answer once it is there."""

    about: object
    answer: Frame | None = None
    refusal: Refused | None = None


@dataclass(slots=True)
class _Membership:
    """All that outlives a connection: a registration, and what is under way in it."""

    registration: Registration
    timeout_s: float
    proven_from: float
    commands: dict[CommandId, _Obeying] = field(default_factory=dict)
    offered: dict[TopicPartition, int] = field(default_factory=dict)
    confirmed: dict[TopicPartition, int] = field(default_factory=dict)

    def lease_deadline(self) -> float:
        return self.proven_from + self.timeout_s * (1 - SAFETY)


@dataclass(slots=True)
class _Connected:
    """All that ends with a connection. ``introduced`` is when it was asked to register or to resume; ``not_before``: to
    register, it was told to come again then; ``pings``: when each was answered, and with what."""

    number: int
    send: Send
    hang_up: Callable[[], None]
    conversation: Conversation = field(default_factory=Conversation)
    asking: dict[str, tuple[int, _Asking]] = field(default_factory=dict)
    introduced: float = 0.0
    not_before: float = 0.0
    pings: dict[int, tuple[float, dict[TopicPartition, int]]] = field(default_factory=dict)
    lost: str = ""


class SocketLink:
    """One consumer's way to its coordinator. Thread-safe; ``wake`` is called, on any thread, when there is news.

    ``resume_key`` is a word of its own by which its registration is known when it comes back; ``auto_commit``: offsets
    handed to :meth:`auto_commit` travel with the answers to pings.
    """

    def __init__(
        self,
        group: str,
        consumer: str,
        clock: Clock,
        *,
        session_timeout_ms: int,
        resume_key: str,
        auto_commit: bool,
        wake: Callable[[], None],
        secret: str | None = None,
        patience_s: float = 0.0,
        on_metadata: Callable[[ClusterMetadata], None] = lambda _metadata: None,
    ) -> None:
        self.group = group
        self.consumer = consumer
        self.clock = clock
        self.timeout_ms = session_timeout_ms
        self._resume_key = resume_key
        self._auto_commit = auto_commit
        self._wake = wake
        self._secret = secret
        self._patience_s = patience_s
        self._on_metadata = on_metadata
        self._news = threading.Condition(threading.RLock())
        self._listeners: list[SessionListener] = []
        self._watchers: list[Watcher] = []
        self._numbers = 0
        self._connected: _Connected | None = None
        self._membership: _Membership | None = None
        self._evicted: Registration | None = None
        self._state = SessionState.CONNECTING
        self._suspended_since: float | None = clock.monotonic()

    # --- the session, as the connector sees it -----------------------------------------------------------------------

    @property
    def session(self) -> SocketLink:
        return self

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        """A number for each registration, and for each connection without one."""
        membership, connected = self._membership, self._connected
        if membership is not None:
            return membership.registration.session_id
        return connected.number if connected is not None else 0

    @property
    def suspended_since(self) -> float | None:
        return self._suspended_since

    def lease_deadline(self) -> float:
        """The coordinator certainly counts this consumer among the living until its session timeout after the answer
        was sent that a ping calls heard (docs/socket-protocol.md); whether there is a connection does not matter."""
        membership = self._membership
        return membership.lease_deadline() if membership is not None else 0.0

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- the connection ----------------------------------------------------------------------------------------------

    def connected(self, send: Send, hang_up: Callable[[], None]) -> None:
        """There is a connection to the coordinator. ``send`` may raise ``OSError``; ``hang_up`` ends it.

        A membership that certainly lives goes on where it was; otherwise the connector registers anew."""
        with self._news:
            connected = self._connected = _Connected(self._next_number(), send, hang_up)
            membership = self._membership
            if membership is not None and self.clock.monotonic() < membership.lease_deadline():
                self._resume(connected, membership)
                return
            self._membership = None
            self._suspended_since = None
            self._change(SessionState.CONNECTED)

    def ask_metadata(self) -> None:
        """Asks the coordinator for the cluster's metadata, if there is a connection to it; ``on_metadata`` hears it."""
        with self._news:
            connected = self._connected
            if connected is None or connected.lost or MessageType.CLUSTER_METADATA in connected.asking:
                return
            number, frame = connected.conversation.ask(MessageType.CLUSTER_METADATA)
            connected.asking[MessageType.CLUSTER_METADATA] = number, _Asking(None)
            with suppress(StoreUnavailable):
                self._send(connected, frame)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _resume(self, connected: _Connected, membership: _Membership) -> None:
        incarnation = membership.registration.incarnation
        wanted = Resume(self.group, self.consumer, incarnation, self._resume_key, self._secret)
        number, frame = connected.conversation.ask(MessageType.RESUME, wanted.to_json())
        connected.asking[MessageType.RESUME] = number, _Asking(membership)
        connected.introduced = self.clock.monotonic()
        for obeying in membership.commands.values():
            obeying.request = 0
        with suppress(StoreUnavailable):  # then it is lost again, and whoever reads it says so
            self._send(connected, frame)

    def _resumed(self, connected: _Connected, membership: _Membership, outstanding: frozenset[str]) -> None:
        """What the coordinator still waits for it sends again; of what it does not, the acknowledgement is stored."""
        if membership is not self._membership:
            connected.hang_up()
            return
        membership.proven_from = max(membership.proven_from, connected.introduced)
        for command_id, obeying in list(membership.commands.items()):
            if command_id.name in outstanding:
                continue
            if obeying.settled is not None:
                obeying.stored = True
            else:
                del membership.commands[command_id]
        self._suspended_since = None
        self._change(SessionState.CONNECTED)
        self._tell_watchers()

    def lost(self, why: str) -> None:
        """The connection is gone. The membership lives on for as long as that is proven."""
        with self._news:
            connected, self._connected = self._connected, None
            if connected is None:
                return
            connected.lost = connected.lost or why
            membership = self._membership
            if membership is None:
                self._end_membership()
                return
            unheard: dict[TopicPartition, int] = {}
            for _, (_, offsets) in sorted(connected.pings.items()):
                unheard |= offsets
            membership.offered = unheard | membership.offered
            self._suspended_since = self._suspended_since or self.clock.monotonic()
            self._change(SessionState.SUSPENDED)

    def _end_membership(self) -> None:
        self._membership = None
        self._suspended_since = self.clock.monotonic()
        self._change(SessionState.LOST)
        self._tell_watchers()
        if self._connected is not None:
            self._suspended_since = None
            self._change(SessionState.CONNECTED)

    def close(self) -> None:
        """No more connections: the consumer ends."""
        with self._news:
            if self._connected is not None:
                self._connected.hang_up()
            self._connected = self._membership = None
            self._change(SessionState.CLOSED)

    def _change(self, state: SessionState) -> None:
        self._state = state
        for listener in list(self._listeners):
            listener(state)
        self._tell_news()

    def _tell_news(self) -> None:
        self._news.notify_all()
        self._wake()

    def _tell_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(WatchEvent(WatchType.CHANGED, f"{self.group}/{self.consumer}"))

    # --- what the coordinator says -----------------------------------------------------------------------------------

    def received(self, frame: Frame) -> None:
        """A frame came. Raises :class:`BadFrame` for one that may not: end the connection."""
        with self._news:
            connected = self._connected
            if connected is None:
                return
            event = connected.conversation.take(frame)
            try:
                if isinstance(event, Asked):
                    self._asked(connected, event)
                elif isinstance(event, Answered):
                    self._answered(connected, event)
                else:
                    self._refused(connected, event)
            except MalformedValue as error:
                raise BadFrame(Fault.MALFORMED_FRAME, str(error), frame["id"]) from None

    def _asked(self, connected: _Connected, asked: Asked) -> None:
        membership = self._membership
        if membership is None:
            return  # given up just now: the connection is about to end
        if asked.type == MessageType.PING:
            self.handle_ping_request(connected, membership, asked)
        elif asked.type in (MessageType.STOP_FETCHER, MessageType.START_FETCHER):
            self._handle_command(connected, membership, asked)
        else:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"a coordinator does not ask for {asked.type[:60]!r}", asked.id)

    def handle_ping_request(self, connected: _Connected, membership: _Membership, asked: Asked) -> None:
        """Notes what is heard and stored, and answers with what was consumed since."""
        ping = Ping.from_json(asked.frame)
        for number in [number for number in connected.pings if number <= ping.heard]:
            sent, offsets = connected.pings.pop(number)
            membership.proven_from = max(membership.proven_from, sent)
            membership.confirmed |= offsets
        news = False
        for obeying in membership.commands.values():
            if 0 < obeying.request <= ping.done and not obeying.stored:
                obeying.stored = news = True
        offered, membership.offered = membership.offered, {}
        connected.pings[asked.id] = self.clock.monotonic(), offered
        self._send(connected, connected.conversation.answer(asked.id, {"offsets": write_offsets(offered)}))
        if news:
            self._tell_news()

    def _handle_command(self, connected: _Connected, membership: _Membership, asked: Asked) -> None:
        """A stop-fetcher or start-fetcher: the connector obeys it in its turn. One that was obeyed on an earlier
        connection is answered as it was then."""
        name, command = read_command(asked.frame)
        command_id = parse_command_id(name)
        if command_id is None:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"{name[:60]!r} is no command's name", asked.id)
        obeying = membership.commands.setdefault(command_id, _Obeying(command, asked.id))
        obeying.request = asked.id
        if obeying.settled is not None:
            self._answer(connected, obeying)
            return
        self._tell_watchers()
        self._tell_news()

    def _answer(self, connected: _Connected, obeying: _Obeying) -> None:
        """Where the command has not come on this connection yet, that is for when it does."""
        if not obeying.request:
            return
        settled = write_offsets(obeying.settled or {})
        self._send(connected, connected.conversation.answer(obeying.request, {"offsets": settled}))

    def _answered(self, connected: _Connected, answered: Answered) -> None:
        number, asking = connected.asking.get(answered.type, (0, None))
        if asking is not None and number == answered.id:
            asking.answer = answered.frame
            if answered.type == MessageType.REGISTER:
                self._registered(connected, Registered.from_json(answered.frame))
            elif answered.type == MessageType.CLUSTER_METADATA:
                del connected.asking[answered.type]
                self._on_metadata(ClusterMetadata.from_json(answered.frame))
            elif answered.type == MessageType.RESUME and isinstance(asking.about, _Membership):
                self._resumed(connected, asking.about, read_outstanding(answered.frame))
        self._tell_news()

    def _registered(self, connected: _Connected, found: Registered) -> None:
        self.consumer = found.consumer
        self._membership = _Membership(
            Registration(self.group, found.consumer, found.incarnation, 0, session_id=self._next_number()),
            timeout_s=found.session_timeout_ms / 1000,
            proven_from=connected.introduced,
        )

    def _refused(self, connected: _Connected, refused: Refused) -> None:
        number, asking = connected.asking.get(refused.type, (0, None))
        if asking is not None and number == refused.id:
            asking.refusal = refused
            if refused.type == MessageType.CLUSTER_METADATA or refused.code == Code.SLOW_DOWN:
                del connected.asking[refused.type]
            if refused.code == Code.SLOW_DOWN:
                connected.not_before = self.clock.monotonic() + _retry_s(refused.frame)
        if refused.type == MessageType.RESUME and refused.code not in _LATER:
            log.info("cannot go on where it was consumer=%s: %s", self.consumer, refused.message)
            self._end_membership()
        elif refused.code == Code.MEMBERSHIP_LOST:
            connected.lost = refused.message
            self._evicted = self._membership.registration if self._membership is not None else None
            self._end_membership()
        elif refused.id == 0:
            connected.lost = f"{refused.code}: {refused.message}"
        self._tell_news()

    # --- asking ------------------------------------------------------------------------------------------------------

    def _send(self, connected: _Connected, frame: Frame) -> None:
        try:
            connected.send(frame)
        except OSError as error:
            connected.lost = connected.lost or f"cannot send: {error}"
            raise StoreUnavailable(f"the connection to the coordinator is lost: {error}") from None

    def _here(self, registration: Registration | None = None) -> _Connected:
        if registration is not None:
            self._membership_of(registration)
        connected = self._connected
        if connected is None or self._state is not SessionState.CONNECTED:
            raise StoreUnavailable("not connected to a coordinator")
        if connected.lost:
            raise StoreUnavailable(f"the connection to the coordinator is lost: {connected.lost}")
        return connected

    def _membership_of(self, registration: Registration) -> _Membership:
        membership = self._membership
        if membership is None or membership.registration != registration:
            raise MembershipLost(
                f"consumer {self.consumer!r} is no longer registered as the incarnation this was done under"
            )
        return membership

    def _ask(self, connected: _Connected, request: MessageType, about: object, wanted: Mapping[str, Any]) -> Frame:
        """The answer, which raises what a refusal means. One request of a kind at a time: asked for something else,
        the one on its way is waited for first."""
        number, asking = connected.asking.get(request, (0, None))
        if asking is not None and asking.about != about:
            self._wait(connected, lambda a=asking: a.answer is not None or a.refusal is not None)  # type: ignore[misc]
            asking = None
        if asking is None:
            asking = _Asking(about)
            number, frame = connected.conversation.ask(request, wanted)
            connected.asking[request] = number, asking
            if request is MessageType.REGISTER:
                connected.introduced = self.clock.monotonic()
            self._send(connected, frame)
        self._wait(connected, lambda: asking.answer is not None or asking.refusal is not None)
        connected.asking.pop(request, None)
        if asking.refusal is not None:
            raise _error(asking.refusal)
        return asking.answer or {}

    def _wait(self, connected: _Connected, happened: Callable[[], bool]) -> None:
        """Until it has; raises :class:`StoreUnavailable` where it has not within the patience there is."""
        if self._patience_s > 0:
            self._news.wait_for(
                lambda: happened() or bool(connected.lost) or self._connected is not connected, self._patience_s
            )
        if not happened():
            raise StoreUnavailable(connected.lost or "the coordinator has not answered yet")

    # --- the channel, as the connector sees it -----------------------------------------------------------------------

    def register(self, value: bytes) -> Registration | Holder:
        """As :meth:`kafka_coord.channel.zookeeper.ConsumerChannel.register`."""
        with self._news:
            connected = self._here()
            found = self._registration()
            if found is not None:  # the answer came, and then another connection, before it was asked for
                connected.asking.pop(MessageType.REGISTER, None)
                return found
            if self.clock.monotonic() < connected.not_before:
                raise StoreUnavailable("the coordinator takes in others first")
            member = Member.from_json(fields.load(value, "registration"), self.consumer, 0, "registration")
            wanted = Register(self.group, member, self._auto_commit, self._resume_key, self._secret)
            try:
                self._ask(connected, MessageType.REGISTER, value, wanted.to_json())
            except _NameTaken as error:
                return Holder(error.incarnation, 0, None)
            found = self._registration()
            if found is None:
                raise StoreUnavailable("the registration is lost already")
            return found

    def _registration(self) -> Registration | None:
        return self._membership.registration if self._membership is not None else None

    def abandon(self, registration: Registration) -> None:
        """The connection of that incarnation is closed: the next one registers anew."""
        with self._news:
            membership = self._membership
            if membership is None or membership.registration != registration:
                return
            self._membership = None
            if self._connected is not None:
                self._connected.lost = self._connected.lost or "given up"
                self._connected.hang_up()

    def was_evicted(self, registration: Registration) -> bool:
        """Whether the coordinator said that it is a member no more."""
        return self._evicted == registration

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        """As far as this end knows."""
        with self._news:
            if watcher is not None:
                self._watchers.append(watcher)
            return self._membership is not None and self._membership.registration == registration

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        """The commands that came and are not done with, in their order."""
        with self._news:
            if watcher is not None:
                self._watchers.append(watcher)
            self._here()
            return tuple(sorted(self._membership.commands)) if self._membership is not None else (), ()

    def unwatch(self) -> None:
        """Tells no watcher of anything any more."""
        with self._news:
            self._watchers.clear()

    def read(self, command: CommandId) -> Command | None:
        with self._news:
            obeying = self._membership.commands.get(command) if self._membership is not None else None
            return obeying.command if obeying is not None else None

    def drop(self, command: CommandId) -> None:
        """Refuses a command for another incarnation; a coordinator sends none."""
        with self._news:
            connected = self._here()
            obeying = self._membership.commands.pop(command, None) if self._membership is not None else None
            if obeying is not None and obeying.request:
                message = f"it is for incarnation {obeying.command.incarnation}"
                self._send(connected, connected.conversation.refuse(obeying.request, Code.WRONG_INCARNATION, message))

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        """Answers the command, and comes back when that is stored."""
        with self._news:
            membership, connected = self._membership_of(registration), self._here(registration)
            obeying = membership.commands.get(command)
            if obeying is None:
                return frozenset()
            if obeying.settled is None:
                if isinstance(obeying.command, StopFetcher):
                    self._forget_offers(obeying.command.partitions)
                obeying.settled = dict(offsets)
                self._answer(connected, obeying)
            self._wait(connected, lambda: obeying.stored)
            if not isinstance(obeying.command, StopFetcher):
                # It has been answered before, and consumed meanwhile: what this says is stored has to be.
                newer = {tp: offset for tp, offset in offsets.items() if obeying.settled.get(tp) != offset}
                if newer:
                    self._settled(connected, MessageType.COMMIT, newer)
            del membership.commands[command]
            return frozenset()

    def _forget_offers(self, partitions: Iterable[TopicPartition]) -> None:
        """What is settled in another way must not be told once more by a ping's answer, which would be older."""
        if self._membership is None:
            return
        known = [self._membership.offered, self._membership.confirmed]
        if self._connected is not None:
            known += [sent for _, sent in self._connected.pings.values()]
        for tp in partitions:
            for offsets in known:
                offsets.pop(tp, None)

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        """As over ZooKeeper."""
        if not offsets:
            return frozenset()
        with self._news:
            return self._settled(self._here(registration), MessageType.COMMIT, offsets)

    def leave(self, registration: Registration, offsets: Offsets, also: Iterable[Op] = ()) -> frozenset[str]:
        """As over ZooKeeper. ``also`` is what a consumer that keeps its place writes to give it up (its eviction): the
        coordinator is asked to, and writes it itself."""
        wanted = {"for_good": True} if tuple(also) else {}
        with self._news:
            # Asked for again on one connection it is the same request, whatever was consumed meanwhile.
            connected = self._here(registration)
            return self._settled(connected, MessageType.LEAVE, offsets, wanted, about=registration)

    def _settled(
        self,
        connected: _Connected,
        request: MessageType,
        offsets: Offsets,
        more: Mapping[str, Any] | None = None,
        *,
        about: object = None,
    ) -> frozenset[str]:
        self._forget_offers(offsets)
        wanted = {"offsets": write_offsets(offsets), **(more or {})}
        answer = self._ask(connected, request, about or dict(offsets), wanted)
        refused = answer.get("refused", [])
        return (
            frozenset(topic for topic in refused if isinstance(topic, str))
            if isinstance(refused, list)
            else frozenset()
        )

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        """Hands offsets over, to go with the next ping's answer; gives those that have been stored since."""
        with self._news:
            membership = self._membership_of(registration)
            membership.offered |= offsets
            confirmed, membership.confirmed = membership.confirmed, {}
            return confirmed

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Nothing: the coordinator knows what it told."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The stored offsets; ``None`` where there is none."""
        wanted = dict.fromkeys(partitions, 0)
        with self._news:
            answer = self._ask(self._here(), MessageType.COMMITTED, wanted, {"offsets": write_offsets(wanted)})
        found = answer.get("offsets", {})
        stored = {
            topic: {partition: offset for partition, offset in of.items() if offset is not None}
            for topic, of in (found if isinstance(found, dict) else {}).items()
            if isinstance(of, dict)
        }
        return dict.fromkeys(wanted) | read_offsets({"offsets": stored}, MessageType.COMMITTED)


class _NameTaken(StoreError):
    def __init__(self, message: str, incarnation: int) -> None:
        super().__init__(message)
        self.incarnation = incarnation


def _retry_s(frame: Frame) -> float:
    """When a coordinator that has no time wants to be asked again."""
    retry_ms = frame.get("retry_ms")
    return min(retry_ms / 1000, _LONGEST_RETRY_S) if isinstance(retry_ms, int) and retry_ms > 0 else 0.0


def _error(refused: Refused) -> KafkaCoordError:
    """What a refusal means for whoever asked."""
    if refused.code == Code.DUPLICATE_CONSUMER:
        incarnation = refused.frame.get("incarnation")
        return _NameTaken(refused.message, incarnation if isinstance(incarnation, int) else 0)
    if refused.code in _LATER:
        return StoreUnavailable(refused.message)
    if refused.code == Code.MEMBERSHIP_LOST:
        return MembershipLost(refused.message)
    return NoAuth(f"the coordinator refused it ({refused.code}): {refused.message}")
