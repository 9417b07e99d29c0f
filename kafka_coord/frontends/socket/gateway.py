"""Answers the requests on all socket connections, and serves the members while this instance is elected.

All calls are made on one thread, which blocks only while it waits for ZooKeeper. The owner of the sockets passes in the
input (:meth:`Gateway.accepted`, :meth:`Gateway.received`, …) and then calls :meth:`Gateway.step`.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kafka_coord.channel.frames import AnsweredRequest, Asked, BadFrame, Fault, Frame, RefusedRequest
from kafka_coord.channel.messages import (
    Code,
    MessageType,
    MetadataQuestion,
    Registered,
    Resume,
    read_offsets,
    read_unresolved,
    write_offsets,
)
from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import stored_offsets
from kafka_coord.classic_groups.sessions import LEAST_S, Heard, Key, Sessions
from kafka_coord.errors import Fenced, MalformedValue, NoNode, StoreError, StoreUnavailable
from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.instructions import MemberEvent
from kafka_coord.frontends.members.machine.state import PROBES_PER_SESSION
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.frontends.members.registering import Refusal
from kafka_coord.frontends.members.term import Term, TermScope
from kafka_coord.frontends.members.writes import CommittedReader
from kafka_coord.frontends.socket.access import DenialLog, GatewayOptions, RegistrationCheck, SocketAccess, UsersFile
from kafka_coord.frontends.socket.connection import Connection, Peer, SocketPresence
from kafka_coord.frontends.socket.questions import MetadataDirectory, Questions
from kafka_coord.model import TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.json_fields import shown
from kafka_coord.model.sequences import Durations
from kafka_coord.zk import layout
from kafka_coord.zk.store import SessionState, Store

if TYPE_CHECKING:
    from kafka_coord.coordinator.service import CoordinatorService
    from kafka_coord.zk.election import Leadership


log = logging.getLogger(__name__)


class LeadershipView:
    """Tells the gateway whether this instance is elected. ``service`` is set only after the gateway has started,
    because the service publishes the gateway's address."""

    def __init__(self) -> None:
        self.service: CoordinatorService | None = None

    def leadership(self) -> Leadership | None:
        """Returns the current leadership, even while it is uncertain whether this instance still leads."""
        return self.service.leadership if self.service is not None else None

    def leads(self) -> bool:
        """Returns whether it is certain that this instance is elected now."""
        return self.service is not None and self.service.elected


_NOTED_EVERY_S = 2.0
"""How long after it has begun a term writes the note, and how often while a member is silent, in seconds."""
_OF_MEMBERS = (MessageType.COMMIT, MessageType.COMMITTED, MessageType.UNRESOLVED, MessageType.LEAVE)


@dataclass(slots=True)
class GatewayStatistics:
    """Counters since the process started. Only one thread writes them, but any thread may read them."""

    registered: int = 0
    resumed: int = 0
    expired: int = 0
    refused: int = 0
    round_trips: Durations = field(default_factory=Durations)
    """The round-trip times of answered pings."""


class Gateway:
    """Serves consumers over the socket channel. ``instance`` is the broker id. Without ``access``, anyone may register
    in any group."""

    def __init__(
        self,
        store: Store,
        instance: int,
        leadership_view: LeadershipView,
        wake: Callable[[], None],
        options: GatewayOptions | None = None,
        access: SocketAccess | UsersFile | None = None,
        nonce: Callable[[], str] | None = None,
    ) -> None:
        """``nonce`` returns a unique value for each registration."""
        self._store = store
        self._leadership_view = leadership_view
        self._wake = wake
        self._options = options or GatewayOptions()
        self._denials = DenialLog()
        self._metadata = MetadataDirectory(store, instance, self._options.metadata_age_ms / 1000)
        self._questions = Questions(self._metadata, self._options.metadata_age_ms / 1000)
        self._registration_check = RegistrationCheck(store.clock, instance, self._options, access, nonce)
        self._early: list[tuple[Connection, Asked]] = []
        self._fresh: deque[Connection] = deque()
        self._connections: dict[int, Connection] = {}
        self._numbers = itertools.count(1)
        self._idle_due = 0.0
        self._completed_at = store.clock.monotonic()
        self._committed = CommittedReader(partial(stored_offsets, store))
        self.term: Term | None = None
        self._heard: HeardNote | None = None
        self._returning: list[stimuli.ResumeWanted] = []
        """The requests to resume of members that the note still calls silent."""
        self.statistics = GatewayStatistics()

    # --- safe to call from any thread --------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """The number of open connections, registered or not."""
        return len(self._connections)

    @property
    def consumers(self) -> int:
        """The number of consumers that are registered with this instance."""
        term = self.term
        return len(term.machine.members) if term is not None else 0

    @property
    def step_age_s(self) -> float:
        """How long ago the last step was completed or the gateway was created, in seconds. While ZooKeeper responds, a
        healthy gateway completes several steps a second."""
        return self._store.clock.monotonic() - self._completed_at

    def presences(self) -> tuple[SocketPresence, ...]:
        """Returns the consumers that this instance serves."""
        term = self.term
        if term is None:
            return ()
        now = self._store.clock.monotonic()
        presences = []
        for member in list(term.machine.members.values()):
            connection = self._connections.get(member.connection or 0)
            address = connection.peer.address if connection is not None else None
            presences.append(SocketPresence(*member.key, address, term.machine.heard_ms_ago(member, now)))
        return tuple(presences)

    # --- on the gateway's thread -------------------------------------------------------------------------------------

    def accepted(self, peer: Peer) -> Connection:
        connection = Connection(peer, self._store.clock.monotonic(), next(self._numbers))
        self._connections[connection.number] = connection
        self._fresh.append(connection)
        return connection

    def lost(self, connection: Connection) -> None:
        """Called when the connection has ended. Its member's session timeout keeps running."""
        connection.ended = True
        connection.member = None
        self._connections.pop(connection.number, None)
        if self.term is not None:
            self.term.arrived(stimuli.Disconnected(connection.number))

    def broken(self, connection: Connection, error: BadFrame) -> None:
        """Closes a connection whose input is not a frame, or is a frame that is not allowed at this point."""
        if connection.ended:
            return
        log.warning("closed connection address=%s: %s (%s)", connection.peer.address, error, error.fault)
        self._hang_up(connection, error.fault, str(error), error.id, **error.more)

    def received(self, connection: Connection, frame: Frame) -> None:
        """Handles a request or a response. Every frame from a member counts as a heartbeat, including a response to a
        ping."""
        if connection.ended:
            return
        try:
            event = connection.rpc.take(frame)
            if connection.member is not None and self.term is not None:
                self.term.arrived(stimuli.HeardFrom(connection.number))
            if isinstance(event, Asked):
                self._dispatch(connection, event)
            elif isinstance(event, AnsweredRequest):
                self._receive_answer(connection, event)
            else:
                self._refused(connection, event)
        except BadFrame as error:
            self.broken(connection, error)
        except MalformedValue as error:
            self.broken(connection, BadFrame(Fault.MALFORMED_FRAME, str(error), frame["id"]))
        except Exception as error:
            # a frame must not harm any client other than its sender
            log.exception(
                "failed to handle a frame address=%s type=%s (this is a bug)", connection.peer.address, frame["type"]
            )
            self._hang_up(
                connection, Code.UNAVAILABLE, f"the coordinator failed to handle this request: {type(error).__name__}"
            )

    def _hang_up(self, connection: Connection, code: str, message: str, request: int = 0, **more: object) -> None:
        member = connection.member
        if code in (Code.NOT_AUTHENTICATED, Code.NOT_AUTHORISED):
            self._denials.note(connection.peer.address, code, message, self._store.clock.monotonic())
        connection.hang_up(code, message, request, **more)
        self.lost(connection)
        if member is not None:
            log.info("closed the connection of consumer=%s group=%s reason=%s", member.consumer, member.group, code)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _dispatch(self, connection: Connection, asked: Asked) -> None:
        try:
            self._asked(connection, asked)
        except BadFrame as error:
            self.broken(connection, error)
        except MalformedValue as error:
            connection.refuse(asked.id, Code.BAD_VALUE, str(error), field=error.field)

    def _asked(self, connection: Connection, asked: Asked) -> None:
        if asked.type == MessageType.CLUSTER_METADATA:
            question = MetadataQuestion.from_json(asked.frame)
            if not self._questions.ask(connection, asked.id, question, self._store.clock.monotonic()):
                connection.refuse(asked.id, Code.UNAVAILABLE, "too many requests are waiting for ZooKeeper; retry")
        elif asked.type in (MessageType.REGISTER, MessageType.RESUME):
            self._asked_to_take_part(connection, asked)
        elif asked.type in _OF_MEMBERS:
            self._asked_by_member(connection, asked)
        else:
            raise BadFrame(
                Fault.UNEXPECTED_MESSAGE, f"{shown(asked.type)} is not a request that a consumer may send", asked.id
            )

    def _asked_to_take_part(self, connection: Connection, asked: Asked) -> None:
        """Handles a request to register or to resume. If this instance has just been elected, the request waits until
        the term begins."""
        if connection.member is not None or connection.registering:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, "this connection has already registered", asked.id)
        if self.term is not None:
            connection.since = self._store.clock.monotonic()
            (self._register if asked.type == MessageType.REGISTER else self._resume)(connection, asked, self.term)
        elif self._leadership_view.leads():
            connection.registering = True
            self._early.append((connection, asked))
        else:
            self._not_coordinator(connection, asked.id)

    def _register(self, connection: Connection, asked: Asked, term: Term) -> None:
        outcome = self._registration_check.registration(connection, asked.id, asked.frame, term.has_room)
        if isinstance(outcome, Refusal):
            self.statistics.refused += 1
            connection.refuse(asked.id, outcome.code, outcome.message, **dict(outcome.more))
            if outcome.code in (Code.NOT_AUTHENTICATED, Code.NOT_AUTHORISED):
                self._hang_up(connection, outcome.code, outcome.message)
            return
        connection.registering = True
        term.arrived(outcome)

    def _resume(self, connection: Connection, asked: Asked, term: Term) -> None:
        resume = Resume.from_json(asked.frame)
        refusal = self._registration_check.why_no_member(resume.group, resume.secret, connection.peer.certificate)
        if refusal is not None:
            self._hang_up(connection, refusal.code, refusal.message, asked.id)
            return
        connection.registering = True
        member = MemberId(resume.group, resume.consumer, resume.incarnation)
        wanted = stimuli.ResumeWanted(connection.number, asked.id, member, resume.resume_key)
        if self._heard is not None and self._heard.is_noted(member):
            self._returning.append(wanted)
        else:
            term.arrived(wanted)

    def _pass_on_those_that_return(self, term: Term, heard: HeardNote) -> None:
        """Passes on the requests to resume of members that the note no longer calls silent."""
        returning, self._returning = self._returning, []
        for wanted in returning:
            connection = self._connections.get(wanted.connection)
            if heard.is_noted(wanted.member):
                self._returning.append(wanted)
            elif connection is not None and not connection.ended:
                term.arrived(wanted)

    def _hear_early(self) -> None:
        """Handles the requests that have waited for the term to begin. If it has not begun yet, they keep waiting."""
        early, self._early = self._early, []
        for connection, asked in early:
            if not connection.ended:
                connection.registering = False
                self._dispatch(connection, asked)

    def _not_coordinator(self, connection: Connection, request: int) -> None:
        """Tells the client which instance is the coordinator, if that is known without asking ZooKeeper, and closes the
        connection."""
        coordinator = self._metadata.known_coordinator()
        message = "this instance is not the coordinator" if coordinator else "the coordinator is unknown; retry"
        known = coordinator.to_json() if coordinator is not None else None
        self._hang_up(connection, Code.NOT_COORDINATOR, message, request, coordinator=known)

    def _asked_by_member(self, connection: Connection, asked: Asked) -> None:
        member, term = connection.member, self.term
        if member is None or term is None:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"{asked.type} requires a registration", asked.id)
        if asked.type == MessageType.COMMITTED:
            self._ask_committed(connection, member, asked)
            return
        if asked.type == MessageType.UNRESOLVED:
            unresolved = read_unresolved(asked.frame)
            term.arrived(stimuli.UnresolvedWanted(connection.number, asked.id, unresolved))
            return
        offsets = read_offsets(asked.frame, asked.type)
        if asked.type == MessageType.COMMIT:
            term.arrived(stimuli.CommitWanted(connection.number, asked.id, offsets))
            return
        for_good = asked.frame.get("for_good", False)
        if not isinstance(for_good, bool):
            message = f"field 'for_good' must be true or false, not {shown(for_good)}"
            raise MalformedValue(MessageType.LEAVE, message, "for_good")
        term.arrived(stimuli.LeaveWanted(connection.number, asked.id, offsets, for_good))

    def _ask_committed(self, connection: Connection, member: MemberId, asked: Asked) -> None:
        def then(found: Mapping[TopicPartition, int | None] | StoreError | MalformedValue) -> None:
            if connection.ended:
                return
            if isinstance(found, MalformedValue) and found.where == asked.type:
                connection.refuse(asked.id, Code.BAD_VALUE, str(found), field="offsets")
            elif isinstance(found, (StoreError, MalformedValue)):
                connection.refuse(asked.id, Code.UNAVAILABLE, str(found))
            else:
                connection.answer(asked.id, {"offsets": write_offsets(found)})

        self._committed.ask(member.group, lambda: list(read_offsets(asked.frame, asked.type)), then)

    def _receive_answer(self, connection: Connection, answered: AnsweredRequest) -> None:
        term, pending = self.term, connection.take_pending(answered.id)
        if connection.member is None or term is None or pending is None:
            return  # the client is no longer a member, and a message that says so is in flight
        offsets = read_offsets(answered.frame, answered.type)
        asked, asked_at = pending
        if isinstance(asked, int):
            self.statistics.round_trips.add(self._store.clock.monotonic() - asked_at)
            term.arrived(stimuli.ProbeAnswered(connection.number, asked, offsets))
        else:
            term.arrived(stimuli.CommandAcknowledged(connection.number, asked, offsets))

    def _refused(self, connection: Connection, refused: RefusedRequest) -> None:
        log.warning(
            "a socket consumer refused a request address=%s request=%s code=%s: %s",
            connection.peer.address,
            refused.type,
            refused.code[:60],
            refused.message[:200],
        )
        self._hang_up(connection, Fault.UNEXPECTED_MESSAGE, "a consumer must not refuse the coordinator's requests")

    # --- messages to consumers ---------------------------------------------------------------------------------------

    def _send_to_client(self, instruction: instructions.ToClient) -> None:
        """Sends one of the machine's messages to its client. If that fails, only that client's connection is closed."""
        connection = self._connections.get(instruction.connection)
        if connection is None or connection.ended:
            return
        try:
            self._send_on(connection, instruction)
        except (BadFrame, UnicodeError) as error:
            log.exception("could not send %s address=%s", type(instruction).__name__, connection.peer.address)
            self._hang_up(connection, Code.UNAVAILABLE, f"the message for this consumer cannot be sent: {error}")

    def _send_on(self, connection: Connection, instruction: instructions.ToClient) -> None:
        now = self._store.clock.monotonic()
        match instruction:
            case instructions.Probe():
                connection.send_ping(instruction, now)
            case instructions.Deliver():
                connection.deliver(instruction, now)
            case instructions.Welcome(_, request, member, options):
                connection.member, connection.registering = member, False
                connection.answer(_number(request), self._registered(member, options).to_json())
            case instructions.RefuseRegistration(_, request, reason):
                connection.registering = False
                if isinstance(reason, Refusal):
                    connection.refuse(_number(request), reason.code, reason.message, **dict(reason.more))
            case instructions.Resumed(_, request, member, outstanding):
                connection.member, connection.registering = member, False
                connection.answer(_number(request), {"outstanding": [command.name for command in outstanding]})
            case instructions.RefuseResume(_, request, message):
                connection.registering = False
                connection.refuse(_number(request), Code.UNKNOWN_MEMBERSHIP, message)
            case instructions.AnswerCommit():
                _answer_commit(connection, instruction)
            case instructions.Farewell(_, request, topics):
                connection.answer(_number(request), {"refused": sorted(topics)})
                connection.member, connection.ended = None, True
                connection.peer.close()
            case instructions.Dismiss(_, message):
                self._hang_up(connection, Code.MEMBERSHIP_LOST, message)

    def _registered(self, member: MemberId, options: stimuli.RegistrationOptions) -> Registered:
        return Registered(
            consumer=member.consumer,
            incarnation=member.incarnation,
            session_timeout_ms=round(options.session_timeout_s * 1000),
            ping_interval_ms=int(options.session_timeout_s / PROBES_PER_SESSION * 1000),
            epoch=self.term.scope.number if self.term is not None else 0,
        )

    def _count(self, report: instructions.ReportEvent) -> None:
        statistics = self.statistics
        statistics.registered += report.event is MemberEvent.REGISTERED
        statistics.resumed += report.event is MemberEvent.RESUMED
        statistics.expired += report.event is MemberEvent.EXPIRED

    def _address(self, number: int | None) -> str:
        connection = self._connections.get(number or 0)
        return connection.peer.address if connection is not None else "none"

    # --- step --------------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Does all work that is due. Returns the latest time to call this method again, in monotonic seconds."""
        now = self._store.clock.monotonic()
        due = now + (1.0 if self.term is not None else 0.1)
        if self._store.session.state is not SessionState.CONNECTED:
            return now + 0.1
        try:
            self._follow_leadership()
            if self.term is not None:
                leads = self._leadership_view.leads()
                if leads and self._heard is not None:
                    due = min(due, self._heard.step(self.term))
                    self._pass_on_those_that_return(self.term, self._heard)
                due = min(due, self.term.step(leads=leads))
            due = min(due, self._questions.step(now))
            if self._committed.step():
                due = now
            self._completed_at = self._store.clock.monotonic()
        except Fenced as error:
            self._end_term(str(error))
        except StoreUnavailable as error:
            log.debug("got no response from ZooKeeper: %s", error)
            due = now + 0.1
        except StoreError as error:
            log.warning("ZooKeeper refused a request: %s; retrying", error)
            due = now + 1.0
        if now >= self._idle_due:
            self._idle_due = now + 1.0
            self._close_idle(now)
        return due

    def _follow_leadership(self) -> None:
        leadership = self._leadership_view.leadership()
        if self.term is not None and (leadership is None or self.term.scope.fence != leadership.fence):
            self._end_term("this instance is no longer the coordinator")
        if self.term is None and leadership is not None and self._leadership_view.leads():
            heard = HeardNote(self._store)
            term = Term(
                self._store,
                TermScope(leadership.fence, leadership.epoch),
                self._wake,
                self._send_to_client,
                self._count,
                self._address,
                offers_every_s=self._options.commit_interval_ms / 1000,
                session_left_s=heard.session_left_s,
            )
            try:
                term.begin()
            except BaseException:
                term.close()
                raise
            self.term, self._heard = term, heard
            self._questions.look_at_once()
        self._hear_early()

    def _end_term(self, why: str) -> None:
        term, self.term = self.term, None
        self._returning = []
        self._metadata.forget()
        if term is None:
            return
        consumers = len(term.machine.members)
        log.info("disconnected the socket consumers epoch=%d consumers=%d reason=%r", term.scope.number, consumers, why)
        term.close()
        for connection in list(self._connections.values()):
            if connection.member is not None or connection.registering:
                self._hang_up(connection, Code.NOT_COORDINATOR, why, coordinator=None)

    def _close_idle(self, now: float) -> None:
        """Closes the connections whose clients have not registered in time."""
        patience = self._options.unregistered_ms / 1000
        for _ in range(len(self._fresh)):
            connection = self._fresh.popleft()
            if connection.ended or connection.member is not None:
                continue
            since = max(connection.since, connection.place or 0.0)  # a client with a reserved place may wait for it
            if connection.registering or now < since + patience:
                self._fresh.append(connection)
            else:
                self._hang_up(connection, Code.NOT_REGISTERED, f"the client did not register within {patience:.0f} s")

    def close(self, why: str = "this instance is shutting down") -> None:
        """Tells all consumers to look for the next coordinator immediately."""
        for connection in list(self._connections.values()):
            self._hang_up(connection, Code.SHUTTING_DOWN, why)
        if self.term is not None:
            self.term.close()
            self.term = None


def _answer_commit(connection: Connection, answer: instructions.AnswerCommit) -> None:
    request = _number(answer.request)
    if answer.refused is instructions.Refused.NOT_HELD:
        connection.refuse(request, Code.BAD_VALUE, answer.message, field="offsets")
    elif answer.refused is not None:
        connection.refuse(request, Code.UNAVAILABLE, answer.message)
    elif answer.kept is not None:
        connection.answer(request, {"offsets": write_offsets(answer.kept)})
    else:
        connection.answer(request, {"refused": sorted(answer.topics)})


def _number(request: stimuli.Request) -> int:
    """Returns the id of a request, which in this front end is the id of its frame."""
    if not isinstance(request, int):
        raise TypeError(f"{request!r} is not a frame id")
    return request


class HeardNote:
    """Notes which members of earlier terms have not been heard, for the next term (``/consumers/heard``, ADR 39): first
    the note of the earlier terms, then this term's."""

    def __init__(self, store: Store) -> None:
        """Reads the note. Raises :class:`StoreUnavailable`. If it cannot be read, each member gets a full session."""
        self._due = store.clock.monotonic() + _NOTED_EVERY_S
        self._complaint = ""
        self._returned: set[Key] = set()
        self._sessions = Sessions()
        self._noted: dict[Key, int | None] | None = {}
        try:
            data = store.get(layout.HEARD).data
            earlier = Heard.from_json(fields.load(data, layout.HEARD), layout.HEARD)
        except NoNode:
            return
        except StoreUnavailable:
            raise
        except (MalformedValue, StoreError) as error:
            self._noted = None
            log.warning("cannot read which socket consumers were heard: %s; each gets a full session", error)
        else:
            self._sessions.noted(earlier)
            self._noted = dict(earlier.left_ms)

    def session_left_s(self, member: Registration, options: RegistrationOptions) -> float:
        """Returns for how many seconds the term waits for a member of an earlier term."""
        return self._sessions.left_s(*_key(member), options.session_timeout_s)

    def is_noted(self, member: MemberId) -> bool:
        """Returns whether the note says that the member is silent. If so, the next :meth:`step` takes it out, and the
        member must not be answered before: its lease would then last longer than the next term waits for it."""
        key = _key(member)
        if key not in (self._noted or {}):
            return False
        self._returned.add(key)
        self._due = 0.0
        return True

    def step(self, term: Term) -> float:
        """Writes the note once it is due, and again while a member has not been heard, so that the note says what is
        left of its session by then. Returns when to call this method again. Raises :class:`Fenced` and
        :class:`StoreUnavailable`."""
        now = term.store.clock.monotonic()
        if now < self._due:
            return self._due
        silent = {key: left for key, left in _silent(term, now).items() if key not in self._returned}
        if silent != self._noted:
            try:
                _write(term.store, Heard(term.scope.number, silent))
            except (Fenced, StoreUnavailable):
                raise
            except StoreError as error:
                self._complain(f"cannot note which socket consumers were heard: {error}; retrying")
            else:
                self._noted, self._complaint = silent, ""
        self._due = float("inf") if self._noted == {} else now + _NOTED_EVERY_S
        return self._due

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("%s", complaint)
        self._complaint = complaint


def _key(member: Registration | MemberId) -> Key:
    """Names one incarnation. Members that registered in the same transaction have the same czxid."""
    return member.group, f"{member.consumer} {member.incarnation}"


def _silent(term: Term, now: float) -> dict[Key, int | None]:
    """Returns what is left of the sessions of members that have neither resumed nor registered again. The next term
    gives a full session to all others, and to those whose session is short, so the note need not name them."""
    left_ms = term.machine.left_ms(
        now,
        lambda state: _key(state.id)[1],
        lambda state: state.held_known or state.options.session_timeout_s <= LEAST_S,
    )
    return {member: left for member, left in left_ms.items() if left is not None}


def _write(store: Store, heard: Heard) -> None:
    """Writes the note, or only the beginning of one that is too large. Members that it leaves out get a full
    session."""
    left_ms = dict(heard.left_ms)
    while len(data := fields.dump(Heard(heard.term, left_ms).to_json())) > fields.MAX_VALUE_BYTES:
        left_ms = dict(list(left_ms.items())[: len(left_ms) // 2])
    try:
        store.set(layout.HEARD, data)
    except NoNode:
        store.create(layout.HEARD, data)
