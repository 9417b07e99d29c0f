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
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.channel.conversation import Answered, Asked, Conversation, Refused
from kafka_coord.channel.frames import BadFrame, Fault, Frame
from kafka_coord.channel.messages import (
    Ask,
    Code,
    Ping,
    Register,
    Registered,
    read_command,
    read_offsets,
    write_offsets,
)
from kafka_coord.channel.operations import Offsets, Registration
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

Send = Callable[[Frame], None]


@dataclass(slots=True)
class _Obeying:
    request: int
    command: Command
    answered: bool = False


@dataclass(slots=True)
class _Asking:
    """A request on its way: what it was about, and the answer once it is there."""

    about: object
    answer: Frame | None = None
    refusal: Refused | None = None


@dataclass(slots=True)
class _Connected:
    """All that ends with a connection."""

    number: int
    send: Send
    hang_up: Callable[[], None]
    conversation: Conversation = field(default_factory=Conversation)
    asking: dict[str, tuple[int, _Asking]] = field(default_factory=dict)
    register_sent: float = 0.0
    registration: Registration | None = None
    timeout_s: float = 0.0
    proven_from: float = float("-inf")
    commands: dict[CommandId, _Obeying] = field(default_factory=dict)
    done: int = 0
    pings: dict[int, tuple[float, dict[TopicPartition, int]]] = field(default_factory=dict)
    offered: dict[TopicPartition, int] = field(default_factory=dict)
    confirmed: dict[TopicPartition, int] = field(default_factory=dict)
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
        self._news = threading.Condition(threading.RLock())
        self._listeners: list[SessionListener] = []
        self._watchers: list[Watcher] = []
        self._numbers = 0
        self._connected: _Connected | None = None
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
        """The number of the connection: a consumer that connects again is registered anew."""
        connected = self._connected
        return connected.number if connected is not None else 0

    @property
    def suspended_since(self) -> float | None:
        return self._suspended_since

    def mine_until(self) -> float:
        """The coordinator certainly counts this consumer among the living until its session timeout after the answer
        was sent that a ping calls heard (docs/socket-protocol.md)."""
        connected = self._connected
        if connected is None or connected.lost:
            return 0.0
        return connected.proven_from + connected.timeout_s * (1 - SAFETY)

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- the connection ----------------------------------------------------------------------------------------------

    def connected(self, send: Send, hang_up: Callable[[], None]) -> None:
        """There is a connection to the coordinator. ``send`` may raise ``OSError``; ``hang_up`` ends it."""
        with self._news:
            self._numbers += 1
            self._connected = _Connected(self._numbers, send, hang_up)
            self._suspended_since = None
            self._change(SessionState.CONNECTED)

    def lost(self, why: str) -> None:
        """The connection is gone."""
        with self._news:
            connected = self._connected
            if connected is None:
                return
            connected.lost = connected.lost or why
            self._suspended_since = self.clock.monotonic()
            self._connected = None
            self._change(SessionState.LOST)
            self._tell_watchers()

    def close(self) -> None:
        """No more connections: the consumer ends."""
        with self._news:
            self._hang_up()
            self._connected = None
            self._change(SessionState.CLOSED)

    def _hang_up(self) -> None:
        if self._connected is not None:
            self._connected.hang_up()

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
        if asked.type == Ask.PING:
            self.handle_ping_request(connected, asked)
        elif asked.type in (Ask.STOP_FETCHER, Ask.START_FETCHER):
            self._handle_command(connected, asked)
        else:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"a coordinator does not ask for {asked.type[:60]!r}", asked.id)

    def handle_ping_request(self, connected: _Connected, asked: Asked) -> None:
        """Notes what is heard and stored, and answers with what was consumed since."""
        ping = Ping.from_json(asked.frame)
        for number in [number for number in connected.pings if number <= ping.heard]:
            sent, offsets = connected.pings.pop(number)
            connected.proven_from = max(connected.proven_from, sent)
            connected.confirmed |= offsets
        news = ping.done > connected.done
        connected.done = max(connected.done, ping.done)
        offered, connected.offered = connected.offered, {}
        connected.pings[asked.id] = self.clock.monotonic(), offered
        self._send(connected, connected.conversation.answer(asked.id, {"offsets": write_offsets(offered)}))
        if news:
            self._tell_news()

    def _handle_command(self, connected: _Connected, asked: Asked) -> None:
        """A stop-fetcher or start-fetcher: the connector obeys it in its turn."""
        name, command = read_command(asked.frame)
        command_id = parse_command_id(name)
        if command_id is None or connected.registration is None:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"{name[:60]!r} is no command for this consumer", asked.id)
        connected.commands[command_id] = _Obeying(asked.id, command)
        self._tell_watchers()
        self._tell_news()

    def _answered(self, connected: _Connected, answered: Answered) -> None:
        number, asking = connected.asking.get(answered.type, (0, None))
        if asking is not None and number == answered.id:
            asking.answer = answered.frame
            if answered.type == Ask.REGISTER:
                self._registered(connected, Registered.from_json(answered.frame))
        self._tell_news()

    def _registered(self, connected: _Connected, found: Registered) -> None:
        self.consumer = found.consumer
        connected.registration = Registration(
            self.group, found.consumer, found.incarnation, 0, session_id=connected.number
        )
        connected.timeout_s = found.session_timeout_ms / 1000
        connected.proven_from = connected.register_sent

    def _refused(self, connected: _Connected, refused: Refused) -> None:
        number, asking = connected.asking.get(refused.type, (0, None))
        if asking is not None and number == refused.id:
            asking.refusal = refused
            if refused.code in (Code.MEMBERSHIP_LOST, Code.NOT_COORDINATOR):
                connected.lost = refused.message
        elif refused.id == 0:
            connected.lost = f"{refused.code}: {refused.message}"
        self._tell_watchers()
        self._tell_news()

    # --- asking ------------------------------------------------------------------------------------------------------

    def _send(self, connected: _Connected, frame: Frame) -> None:
        try:
            connected.send(frame)
        except OSError as error:
            connected.lost = connected.lost or f"cannot send: {error}"
            raise StoreUnavailable(f"the connection to the coordinator is lost: {error}") from None

    def _here(self, registration: Registration | None = None) -> _Connected:
        connected = self._connected
        if connected is None:
            raise StoreUnavailable("not connected to a coordinator")
        if registration is not None and connected.registration != registration:
            raise MembershipLost(
                f"consumer {self.consumer!r} is no longer registered as the incarnation this was done under"
            )
        if connected.lost:
            raise StoreUnavailable(f"the connection to the coordinator is lost: {connected.lost}")
        return connected

    def _ask(self, connected: _Connected, request: Ask, about: object, wanted: Mapping[str, Any]) -> Frame:
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
            if request is Ask.REGISTER:
                connected.register_sent = self.clock.monotonic()
            self._send(connected, frame)
        self._wait(connected, lambda: asking.answer is not None or asking.refusal is not None)
        del connected.asking[request]
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
            member = Member.from_json(fields.load(value, "registration"), self.consumer, 0, "registration")
            wanted = Register(self.group, member, self._auto_commit, self._resume_key, self._secret)
            try:
                self._ask(connected, Ask.REGISTER, value, wanted.to_json())
            except _NameTaken as error:
                return Holder(error.incarnation, 0, None)
            if connected.registration is None:
                raise StoreUnavailable("the coordinator's answer told no registration")
            return connected.registration

    def abandon(self, registration: Registration) -> None:
        """The connection of that incarnation is closed: the next one registers anew."""
        with self._news:
            connected = self._connected
            if connected is not None and connected.registration == registration:
                connected.lost = connected.lost or "given up"
                connected.hang_up()

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        """As far as this end knows."""
        with self._news:
            if watcher is not None:
                self._watchers.append(watcher)
            connected = self._connected
            return connected is not None and connected.registration == registration and not connected.lost

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        """The commands that came and are not done with, in their order."""
        with self._news:
            if watcher is not None:
                self._watchers.append(watcher)
            return tuple(sorted(self._here().commands)), ()

    def read(self, command: CommandId) -> Command | None:
        with self._news:
            obeying = self._here().commands.get(command)
            return obeying.command if obeying is not None else None

    def drop(self, command: CommandId) -> None:
        """Refuses a command for another incarnation."""
        with self._news:
            connected = self._here()
            obeying = connected.commands.pop(command, None)
            if obeying is not None:
                self._send(
                    connected,
                    connected.conversation.refuse(
                        obeying.request, Code.WRONG_INCARNATION, f"it is for incarnation {obeying.command.incarnation}"
                    ),
                )

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        """Answers the command, and comes back when that is stored."""
        with self._news:
            connected = self._here(registration)
            obeying = connected.commands.get(command)
            if obeying is None:
                return frozenset()
            if not obeying.answered:
                if isinstance(obeying.command, StopFetcher):
                    for tp in obeying.command.partitions:
                        connected.offered.pop(tp, None)
                        connected.confirmed.pop(tp, None)
                        for _, sent in connected.pings.values():
                            sent.pop(tp, None)
                obeying.answered = True
                self._send(
                    connected, connected.conversation.answer(obeying.request, {"offsets": write_offsets(offsets)})
                )
            self._wait(connected, lambda: connected.done >= obeying.request)
            del connected.commands[command]
            return frozenset()

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        """As over ZooKeeper."""
        if not offsets:
            return frozenset()
        with self._news:
            connected = self._here(registration)
            return self._settled(connected, Ask.COMMIT, offsets)

    def leave(self, registration: Registration, offsets: Offsets, also: Iterable[Op] = ()) -> frozenset[str]:
        """As over ZooKeeper; ``also`` cannot be done without it and is left out."""
        del also
        with self._news:
            connected = self._here(registration)
            return self._settled(connected, Ask.LEAVE, offsets)

    def _settled(self, connected: _Connected, request: Ask, offsets: Offsets) -> frozenset[str]:
        answer = self._ask(connected, request, dict(offsets), {"offsets": write_offsets(offsets)})
        for tp in offsets:
            connected.offered.pop(tp, None)
        refused = answer.get("refused", [])
        return (
            frozenset(topic for topic in refused if isinstance(topic, str))
            if isinstance(refused, list)
            else frozenset()
        )

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        """Hands offsets over, to go with the next ping's answer; gives those that have been stored since."""
        with self._news:
            connected = self._here(registration)
            connected.offered |= offsets
            confirmed, connected.confirmed = connected.confirmed, {}
            return confirmed

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Nothing: the coordinator knows what it told."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The stored offsets; ``None`` where there is none."""
        wanted = dict.fromkeys(partitions, 0)
        with self._news:
            answer = self._ask(self._here(), Ask.COMMITTED, wanted, {"offsets": write_offsets(wanted)})
        found = answer.get("offsets", {})
        stored = {
            topic: {partition: offset for partition, offset in of.items() if offset is not None}
            for topic, of in (found if isinstance(found, dict) else {}).items()
            if isinstance(of, dict)
        }
        return dict.fromkeys(wanted) | read_offsets({"offsets": stored}, Ask.COMMITTED)


class _NameTaken(StoreError):
    def __init__(self, message: str, incarnation: int) -> None:
        super().__init__(message)
        self.incarnation = incarnation


_LATER = frozenset({Code.SLOW_DOWN, Code.UNAVAILABLE, Code.NOT_COORDINATOR, Code.SHUTTING_DOWN})


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
