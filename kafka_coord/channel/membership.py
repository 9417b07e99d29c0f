"""A consumer's membership over the socket channel (docs/socket-protocol.md), as a state machine that does no I/O.

The methods of :class:`Membership` handle events, such as a new connection, a frame or a request from the connector, and
queue instructions for the caller (:meth:`Membership.instructions`). :mod:`kafka_coord.channel.link` adds a clock, a
lock and blocking calls.

A method that needs a response raises :class:`NotYet` until the response has arrived. The caller must then call the
method again. This does not resend the request on the same connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.channel.frames import AnsweredRequest, Asked, BadFrame, Fault, Frame, RefusedRequest, Rpc
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
    read_refused,
    write_offsets,
    write_unresolved,
)
from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.errors import KafkaCoordError, MalformedValue, MembershipLost, NoAuth, StoreError, StoreUnavailable
from kafka_coord.model import Command, CommandId, Member, StartFetcher, StopFetcher, TopicPartition, parse_command_id
from kafka_coord.model.member import Unresolved
from kafka_coord.zk.store import SessionState

log = logging.getLogger(__name__)

SAFETY = 0.1
"""The safety margin of a lease, for clock drift and scheduling delays, as a fraction of the session timeout."""
_LONGEST_RETRY_S = 60.0
_RETRIABLE = frozenset({Code.SLOW_DOWN, Code.UNAVAILABLE, Code.NOT_COORDINATOR, Code.SHUTTING_DOWN})
"""Refusals after which the consumer may retry, with the same instance or another."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame. If this fails, call :meth:`Membership.send_failed`."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the connection."""


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """Notify the session's listeners."""

    state: SessionState


@dataclass(frozen=True, slots=True)
class ChannelChanged:
    """Notify the watchers of the registration and the commands."""


@dataclass(frozen=True, slots=True)
class WakeWaiters:
    """Wake the waiting threads."""


@dataclass(frozen=True, slots=True)
class MetadataReceived:
    """Pass on the cluster metadata that the coordinator has sent."""

    metadata: ClusterMetadata


Instruction = Send | HangUp | SessionChanged | ChannelChanged | WakeWaiters | MetadataReceived
"""What a :class:`Membership` tells its caller to do."""


class NotYet(StoreUnavailable):
    """The coordinator has not answered yet."""


class NameTaken(StoreError):
    """Another consumer has registered under the requested name."""

    def __init__(self, message: str, incarnation: int) -> None:
        super().__init__(message)
        self.incarnation = incarnation


@dataclass(slots=True)
class _OpenCommand:
    """A received command. ``request`` is the id of its frame on the current connection, or 0 if it has not arrived on
    that connection yet. ``answer`` contains the offsets in the answer to the command, and ``stored`` is true once the
    coordinator has stored them."""

    command: Command
    request: int
    answer: Offsets | None = None
    stored: bool = False


@dataclass(slots=True)
class _Request:
    """A request: what it is ``about`` and, once there is one, the response or refusal."""

    about: object
    answer: Frame | None = None
    refusal: RefusedRequest | None = None

    @property
    def is_answered(self) -> bool:
        return self.answer is not None or self.refusal is not None


@dataclass(slots=True)
class _Registered:
    """The state that outlives a connection: a registration and its open commands. ``offered`` contains the offsets to
    send in the response to the next ping, and ``confirmed`` those that a ping has confirmed as stored."""

    registration: Registration
    timeout_s: float
    lease_start: float
    lease_began: float
    commands: dict[CommandId, _OpenCommand] = field(default_factory=dict)
    offered: dict[TopicPartition, int] = field(default_factory=dict)
    confirmed: dict[TopicPartition, int] = field(default_factory=dict)

    def lease_deadline(self) -> float:
        return self.lease_start + self.timeout_s * (1 - SAFETY)

    def renew(self, sent: float, now: float) -> None:
        """Records at ``now`` that the coordinator has confirmed what the consumer sent at ``sent``."""
        if self.lease_deadline() <= now:
            self.lease_began = now
        self.lease_start = max(self.lease_start, sent)


@dataclass(slots=True)
class _Connected:
    """The state that ends with a connection. ``introduced`` is when the consumer sent ``register`` or ``resume``, and
    ``not_before`` is the earliest time at which the coordinator will accept a registration. ``pings`` maps each
    unconfirmed ping to the time and the offsets of its response. If the connection is no longer usable, ``lost`` says
    why."""

    number: int
    rpc: Rpc = field(default_factory=Rpc)
    requests: dict[str, tuple[int, _Request]] = field(default_factory=dict)
    introduced: float = 0.0
    not_before: float = 0.0
    pings: dict[int, tuple[float, dict[TopicPartition, int]]] = field(default_factory=dict)
    lost: str = ""


class Membership:
    """The membership of one consumer. ``resume_key`` is a random string that lets a returning consumer claim its
    registration. If ``auto_commit`` is set, the coordinator commits the offsets in responses to pings. Times are in
    monotonic seconds."""

    def __init__(
        self, group: str, consumer: str, *, resume_key: str, auto_commit: bool, secret: str | None = None
    ) -> None:
        self.group = group
        self.consumer = consumer
        self.state = SessionState.CONNECTING
        self._resume_key = resume_key
        self._auto_commit = auto_commit
        self._secret = secret
        self._numbers = 0
        self._connected: _Connected | None = None
        self._registered: _Registered | None = None
        self._evicted: Registration | None = None
        self._uncollected: dict[str, _Request] = {}
        self._instructions: list[Instruction] = []

    def instructions(self) -> list[Instruction]:
        """Returns the instructions that have been queued since the last call, in order."""
        found, self._instructions = self._instructions, []
        return found

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        """The id of the session. It changes with every registration and, while there is none, with every connection."""
        registered, connected = self._registered, self._connected
        if registered is not None:
            return registered.registration.session_id
        return connected.number if connected is not None else 0

    def lease_deadline(self) -> float:
        """Returns when the lease ends. Until then, the consumer is certain to remain a member, even without a
        connection. The lease lasts one session timeout, less a margin, from when the consumer sent the latest
        registration, resume or ping response that the coordinator has confirmed."""
        registered = self._registered
        return registered.lease_deadline() if registered is not None else 0.0

    def lease_began(self) -> float:
        """Returns when the lease last began, or began again after it had ended."""
        return self._registered.lease_began if self._registered is not None else 0.0

    @property
    def registration(self) -> Registration | None:
        return self._registered.registration if self._registered is not None else None

    def was_evicted(self, registration: Registration) -> bool:
        """Returns whether the coordinator has reported that the given incarnation is no longer a member."""
        return self._evicted == registration

    # --- the connection ----------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """Starts using a connection to the coordinator. Resumes the membership, even if its lease has ended, because
        the coordinator knows whether it still exists. Without one, the connector must register."""
        connected = self._connected = _Connected(self._next_number())
        self._uncollected.clear()
        registered = self._registered
        if registered is not None:
            self._resume(connected, registered, now)
            return
        self._change(SessionState.CONNECTED)

    def send_failed(self, why: str) -> None:
        """Called when a frame could not be sent. No more requests are sent on the current connection."""
        if self._connected is not None:
            self._connected.lost = self._connected.lost or f"cannot send: {why}"

    def lost(self) -> None:
        """Called when the connection has ended. The membership continues until its lease ends."""
        connected, self._connected = self._connected, None
        if connected is None:
            return
        # the coordinator may have answered and closed the connection before the caller collected the response
        self._uncollected = {message: one for message, (_, one) in connected.requests.items() if one.is_answered}
        registered = self._registered
        if registered is None:
            self._end_membership()
            return
        unheard: dict[TopicPartition, int] = {}
        for _, (_, offsets) in sorted(connected.pings.items()):
            unheard |= offsets
        registered.offered = unheard | registered.offered
        self._change(SessionState.SUSPENDED)

    def close(self) -> None:
        """Ends the membership because the consumer is stopping. Do not call :meth:`connected` again."""
        if self._connected is not None:
            self._do(HangUp())
        self._connected = self._registered = None
        self._change(SessionState.CLOSED)

    def ask_metadata(self) -> None:
        """If connected, asks the coordinator for the cluster's metadata."""
        connected = self._connected
        if connected is not None and not connected.lost and MessageType.CLUSTER_METADATA not in connected.requests:
            self._ask(connected, MessageType.CLUSTER_METADATA, None, {})

    def _resume(self, connected: _Connected, registered: _Registered, now: float) -> None:
        incarnation = registered.registration.incarnation
        wanted = Resume(self.group, self.consumer, incarnation, self._resume_key, self._secret)
        connected.introduced = now
        for command in registered.commands.values():
            command.request = 0
        self._ask(connected, MessageType.RESUME, registered, wanted.to_json())

    def _resumed(self, connected: _Connected, registered: _Registered, outstanding: frozenset[str], now: float) -> None:
        """Handles the response to ``resume``. The coordinator resends the ``outstanding`` commands, and has stored the
        acknowledgements of all others."""
        if registered is not self._registered:
            self._do(HangUp())
            return
        registered.renew(connected.introduced, now)
        for command_id, command in list(registered.commands.items()):
            if command_id.name in outstanding:
                continue
            if command.answer is not None:
                command.stored = True
            else:
                del registered.commands[command_id]
        self._change(SessionState.CONNECTED)
        self._do(ChannelChanged())

    def _end_membership(self) -> None:
        self._registered = None
        self._change(SessionState.LOST)
        self._do(ChannelChanged())
        if self._connected is not None:
            self._change(SessionState.CONNECTED)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _change(self, state: SessionState) -> None:
        self.state = state
        self._do(SessionChanged(state), WakeWaiters())

    def _do(self, *instructions: Instruction) -> None:
        self._instructions += instructions

    # --- frames from the coordinator ---------------------------------------------------------------------------------

    def received(self, frame: Frame, now: float) -> None:
        """Handles a frame. Raises :class:`BadFrame` if the frame is not allowed at this point. The caller must then
        close the connection."""
        connected = self._connected
        if connected is None:
            return
        event = connected.rpc.take(frame)
        try:
            if isinstance(event, Asked):
                self._asked(connected, event, now)
            elif isinstance(event, AnsweredRequest):
                self._receive_answer(connected, event, now)
            else:
                self._refused(connected, event, now)
        except MalformedValue as error:
            raise BadFrame(Fault.MALFORMED_FRAME, str(error), frame["id"]) from None

    def _asked(self, connected: _Connected, asked: Asked, now: float) -> None:
        registered = self._registered
        if registered is None:
            return  # the registration has just been abandoned, and the connection is about to end
        if asked.type == MessageType.PING:
            self.handle_ping_request(connected, registered, asked, now)
        elif asked.type in (MessageType.STOP_FETCHER, MessageType.START_FETCHER):
            self._handle_command(connected, registered, asked)
        else:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"a coordinator must not send {asked.type[:60]!r}", asked.id)

    def handle_ping_request(self, connected: _Connected, registered: _Registered, asked: Asked, now: float) -> None:
        """Records which responses and acknowledgements the ping confirms, and answers it with the offsets offered since
        the last ping."""
        ping = Ping.from_json(asked.frame)
        for number in [number for number in connected.pings if number <= ping.heard]:
            sent, offsets = connected.pings.pop(number)
            registered.renew(sent, now)
            registered.confirmed |= offsets
        news = False
        for command in registered.commands.values():
            if 0 < command.request <= ping.done and not command.stored:
                command.stored = news = True
        offered, registered.offered = registered.offered, {}
        connected.pings[asked.id] = now, offered
        self._do(Send(connected.rpc.answer(asked.id, {"offsets": write_offsets(offered)})))
        if news:
            self._do(WakeWaiters())

    def _handle_command(self, connected: _Connected, registered: _Registered, asked: Asked) -> None:
        """Records a stop-fetcher or start-fetcher for the connector to carry out. If the command has already been
        answered, resends the answer."""
        name, command = read_command(asked.frame)
        command_id = parse_command_id(name)
        if command_id is None:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"{name[:60]!r} is not a command name", asked.id)
        open_command = registered.commands.setdefault(command_id, _OpenCommand(command, asked.id))
        open_command.request = asked.id
        if open_command.answer is not None:
            self._answer(connected, open_command)
            self._do(WakeWaiters())
        else:
            self._do(ChannelChanged(), WakeWaiters())

    def _answer(self, connected: _Connected, command: _OpenCommand) -> None:
        """Answers the command if it has arrived on the current connection. Otherwise, it is answered once it
        arrives."""
        if command.request:
            offsets = write_offsets(command.answer or {})
            self._do(Send(connected.rpc.answer(command.request, {"offsets": offsets})))

    def _receive_answer(self, connected: _Connected, answered: AnsweredRequest, now: float) -> None:
        number, request = connected.requests.get(answered.type, (0, None))
        if request is not None and number == answered.id:
            request.answer = answered.frame
            if answered.type == MessageType.REGISTER:
                self._note_registered(connected, Registered.from_json(answered.frame), now)
            elif answered.type == MessageType.CLUSTER_METADATA:
                del connected.requests[answered.type]
                self._do(MetadataReceived(ClusterMetadata.from_json(answered.frame)))
            elif answered.type == MessageType.RESUME and isinstance(request.about, _Registered):
                self._resumed(connected, request.about, read_outstanding(answered.frame), now)
        self._do(WakeWaiters())

    def _note_registered(self, connected: _Connected, response: Registered, now: float) -> None:
        self.consumer = response.consumer
        self._registered = _Registered(
            Registration(self.group, response.consumer, response.incarnation, 0, session_id=self._next_number()),
            timeout_s=response.session_timeout_ms / 1000,
            lease_start=connected.introduced,
            lease_began=now,
        )

    def _refused(self, connected: _Connected, refused: RefusedRequest, now: float) -> None:
        number, request = connected.requests.get(refused.type, (0, None))
        if request is not None and number == refused.id:
            request.refusal = refused
            if refused.type == MessageType.CLUSTER_METADATA or refused.code == Code.SLOW_DOWN:
                del connected.requests[refused.type]
            if refused.code == Code.SLOW_DOWN:
                connected.not_before = now + _retry_s(refused.frame)
        if refused.type == MessageType.RESUME and refused.code not in _RETRIABLE:
            log.info("cannot resume; registering again consumer=%s reason=%s", self.consumer, refused.message)
            self._end_membership()
        elif refused.code == Code.MEMBERSHIP_LOST:
            connected.lost = refused.message
            self._evicted = self.registration
            self._end_membership()
        elif refused.id == 0:
            connected.lost = f"{refused.code}: {refused.message}"
        self._do(WakeWaiters())

    # --- requests ----------------------------------------------------------------------------------------------------

    def _here(self, registration: Registration | None = None) -> _Connected:
        if registration is not None:
            self._of(registration)
        connected = self._connected
        if connected is None or self.state is not SessionState.CONNECTED:
            raise StoreUnavailable("not connected to a coordinator")
        if connected.lost:
            raise StoreUnavailable(f"lost the connection to the coordinator: {connected.lost}")
        return connected

    def _of(self, registration: Registration) -> _Registered:
        registered = self._registered
        if registered is None or registered.registration != registration:
            raise MembershipLost(f"consumer {self.consumer!r} is no longer registered as this incarnation")
        return registered

    def _ask(self, connected: _Connected, message: MessageType, about: object, wanted: Mapping[str, Any]) -> None:
        number, frame = connected.rpc.ask(message, wanted)
        connected.requests[message] = number, _Request(about)
        self._do(Send(frame))

    def _answer_to(
        self,
        message: MessageType,
        about: object,
        request_fields: Mapping[str, Any],
        registration: Registration | None = None,
    ) -> Frame:
        """Sends a request, unless it has already been sent, and returns the coordinator's response. Raises
        :class:`NotYet` until the response arrives, and the matching exception if the coordinator refuses the request.
        Only one request of each type can be outstanding, so an earlier request about something else must be answered
        first."""
        kept = self._uncollected.pop(message, None)
        if kept is not None and kept.about == about:
            return _result(kept)
        connected = self._here(registration)
        _, request = connected.requests.get(message, (0, None))
        if request is None or (request.is_answered and request.about != about):
            self._ask(connected, message, about, request_fields)
            raise NotYet("the coordinator has not answered yet")
        if not request.is_answered:
            raise NotYet("the coordinator has not answered yet")
        del connected.requests[message]
        return _result(request)

    # --- called by the connector -------------------------------------------------------------------------------------

    def register(self, member: Member, now: float) -> Registration:
        """Registers the consumer and returns the registration. Raises :class:`NameTaken`."""
        connected = self._connected
        if connected is not None:
            if self.registration is not None and self.state is SessionState.CONNECTED:
                connected.requests.pop(MessageType.REGISTER, None)
                return self.registration
            if now < connected.not_before:
                raise StoreUnavailable("the coordinator is still registering other consumers")
            _, request = connected.requests.get(MessageType.REGISTER, (0, None))
            if request is None or request.is_answered:
                connected.introduced = now
        message = Register(self.group, member, self._auto_commit, self._resume_key, self._secret)
        self._answer_to(MessageType.REGISTER, member, message.to_json())
        raise StoreUnavailable("the registration is already lost")

    def abandon(self, registration: Registration) -> None:
        """Gives up the registration and closes its connection. The connector registers again on the next connection."""
        if self.registration != registration:
            return
        self._registered = None
        if self._connected is not None:
            self._connected.lost = self._connected.lost or "the registration was abandoned"
            self._do(HangUp())

    def outstanding(self) -> tuple[CommandId, ...]:
        """Returns the unfinished commands that have arrived, in order of execution."""
        self._here()
        return tuple(sorted(self._registered.commands)) if self._registered is not None else ()

    def command(self, command: CommandId) -> Command | None:
        found = self._registered.commands.get(command) if self._registered is not None else None
        return found.command if found is not None else None

    def drop(self, command: CommandId) -> None:
        """Refuses a command for another incarnation, which a correct coordinator never sends."""
        connected = self._here()
        found = self._registered.commands.pop(command, None) if self._registered is not None else None
        if found is not None and found.request:
            message = f"it is for incarnation {found.command.incarnation}"
            self._do(Send(connected.rpc.refuse(found.request, Code.WRONG_INCARNATION, message)))

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> None:
        """Answers the command. Raises :class:`NotYet` until the coordinator has stored the response."""
        registered = self._of(registration)
        open_command = registered.commands.get(command)
        if open_command is None:
            return
        if open_command.answer is None or not open_command.stored:
            connected = self._here(registration)
        if open_command.answer is None:
            if isinstance(open_command.command, StopFetcher):
                self._forget_offers(open_command.command.partitions)
            open_command.answer = dict(offsets)
            self._answer(connected, open_command)
        if not open_command.stored:
            raise NotYet("the coordinator has not answered yet")
        if not isinstance(open_command.command, StopFetcher):
            # more records have been consumed since the command was answered, so the newer offsets must be stored too
            newer = {tp: offset for tp, offset in offsets.items() if open_command.answer.get(tp) != offset}
            if newer:
                self._settle(registration, MessageType.COMMIT, newer)
        del registered.commands[command]

    def _forget_offers(self, partitions: Iterable[TopicPartition]) -> None:
        """Withdraws the offered offsets of the given partitions, because another message carries newer ones."""
        if self._registered is None:
            return
        offers = [self._registered.offered, self._registered.confirmed]
        if self._connected is not None:
            offers += [sent for _, sent in self._connected.pings.values()]
        for tp in partitions:
            for offsets in offers:
                offsets.pop(tp, None)

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        """Commits offsets. Returns the topics that no longer exist."""
        if not offsets:
            return frozenset()
        return self._settle(registration, MessageType.COMMIT, offsets)

    def leave(self, registration: Registration, offsets: Offsets, *, for_good: bool) -> frozenset[str]:
        """Commits offsets, as :meth:`commit` does, and ends the registration. If ``for_good`` is set, the consumer also
        gives up its place."""
        wanted = {"for_good": True} if for_good else {}
        return self._settle(registration, MessageType.LEAVE, offsets, wanted)

    def _settle(
        self, registration: Registration, message: MessageType, offsets: Offsets, more: Mapping[str, Any] | None = None
    ) -> frozenset[str]:
        registered = self._of(registration)
        if message not in self._uncollected:
            self._here(registration)
            _await_starts(registered, offsets)
        self._forget_offers(offsets)
        request_fields = {"offsets": write_offsets(offsets), **(more or {})}
        answer = self._answer_to(message, (registration, dict(offsets)), request_fields, registration)
        return read_refused(answer, message)

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        """Adds offsets to the response to the next ping. Returns the offsets that the coordinator has confirmed as
        stored since the last call. Leaves out a confirmation of an earlier offer that equals the latest one, if another
        offset was offered in between, as after a seek back: the caller would take the latest one for stored."""
        registered = self._of(registration)
        registered.offered |= offsets
        confirmed, registered.confirmed = registered.confirmed, {}
        pings = self._connected.pings if self._connected is not None else {}
        under_way = [*(sent for _, (_, sent) in sorted(pings.items())), registered.offered]
        return {tp: offset for tp, offset in confirmed.items() if not _is_ambiguous(tp, offset, under_way)}

    def unresolved(self, registration: Registration, unresolved: Unresolved) -> Offsets:
        """Reports what the consumer cannot resolve, and the ends that it has listed. Returns the offsets that the group
        has now for the partitions of these ends."""
        self._of(registration)
        about = (registration, unresolved)
        answer = self._answer_to(MessageType.UNRESOLVED, about, write_unresolved(unresolved), registration)
        return read_offsets(answer, MessageType.UNRESOLVED)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Returns the stored offset of each partition, or ``None`` if there is none."""
        requested = dict.fromkeys(partitions, 0)
        asked = {"offsets": write_offsets(requested)}
        response = self._answer_to(MessageType.COMMITTED, requested, asked).get("offsets", {})
        stored = {
            topic: {partition: offset for partition, offset in of.items() if offset is not None}
            for topic, of in (response if isinstance(response, dict) else {}).items()
            if isinstance(of, dict)
        }
        return dict.fromkeys(requested) | read_offsets({"offsets": stored}, MessageType.COMMITTED)


def _is_ambiguous(tp: TopicPartition, confirmed: int, under_way: Iterable[Offsets]) -> bool:
    offers = [offsets[tp] for offsets in under_way if tp in offsets]
    return bool(offers) and offers[-1] == confirmed and set(offers) != {confirmed}


def _await_starts(registered: _Registered, offsets: Offsets) -> None:
    """After a resume, raises :class:`NotYet` until the coordinator has resent each unacknowledged start of the
    partitions in ``offsets``. Until a start is acknowledged, the coordinator does not accept offsets for its
    partitions."""
    for command in registered.commands.values():
        start = command.command
        is_unheard = command.answer is not None and not command.stored and not command.request
        if is_unheard and isinstance(start, StartFetcher) and offsets.keys() & set(start.partitions):
            raise NotYet("the coordinator has not resent a start-fetcher since the resume")


def _retry_s(frame: Frame) -> float:
    """Returns how many seconds to wait before retrying a request that a busy coordinator has refused."""
    retry_ms = frame.get("retry_ms")
    return min(retry_ms / 1000, _LONGEST_RETRY_S) if isinstance(retry_ms, int) and retry_ms > 0 else 0.0


def _result(request: _Request) -> Frame:
    if request.refusal is not None:
        raise _error(request.refusal)
    return request.answer or {}


def _error(refused: RefusedRequest) -> KafkaCoordError:
    """Converts a refusal into the exception that the caller receives."""
    if refused.code == Code.DUPLICATE_CONSUMER:
        incarnation = refused.frame.get("incarnation")
        return NameTaken(refused.message, incarnation if isinstance(incarnation, int) else 0)
    if refused.code in _RETRIABLE:
        return StoreUnavailable(refused.message)
    if refused.code == Code.MEMBERSHIP_LOST:
        return MembershipLost(refused.message)
    return NoAuth(f"the coordinator refused the request ({refused.code}): {refused.message}")
