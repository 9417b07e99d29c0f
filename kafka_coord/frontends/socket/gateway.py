"""The gateway: connections in, answers out, and while its instance is elected, a term of office.

One thread calls everything here; it never waits but for ZooKeeper. Whoever has the sockets hands over what came on them
(:meth:`Gateway.accepted`, :meth:`Gateway.received`, …), then calls :meth:`Gateway.step`.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kafka_coord.channel.frames import BadFrame, Fault, Frame
from kafka_coord.channel.messages import (
    Code,
    MessageType,
    MetadataQuestion,
    Register,
    Resume,
    read_offsets,
    write_offsets,
)
from kafka_coord.channel.operations import Registration
from kafka_coord.channel.rpc import Answered, Asked, Refused
from kafka_coord.errors import Fenced, InvalidName, MalformedValue, StoreError, StoreUnavailable
from kafka_coord.frontends.members.committed import Committed, CommittedReader
from kafka_coord.frontends.members.members import Connection, Peer, Presence, SocketMember
from kafka_coord.frontends.members.registering import Refusal, Registering, made_id, registration_value, too_large
from kafka_coord.frontends.members.term import Term, hang_up
from kafka_coord.frontends.members.writes import Outcome
from kafka_coord.frontends.socket.access import Access, DenialLog
from kafka_coord.frontends.socket.admission import Admission
from kafka_coord.frontends.socket.metadata import MetadataDirectory
from kafka_coord.frontends.socket.options import GatewayOptions
from kafka_coord.frontends.socket.statistics import Statistics
from kafka_coord.model import Subscription
from kafka_coord.model.json_fields import shown
from kafka_coord.model.names import legal
from kafka_coord.zk.election import Leadership
from kafka_coord.zk.store import SessionState, Store

log = logging.getLogger(__name__)

_LONGEST_WAIT = 0.3
"""Of its session timeout: after more silence than that a consumer may think that nobody is there."""
MAX_WAITING = 10_000
"""Questions for the cluster's metadata that wait, for ZooKeeper or for a coordinator."""
_LONGEST_QUESTION_S = 5.0
"""Less than what a connection may take to register."""


def _nonce() -> str:
    return secrets.token_hex(8)


class LeadershipView(Protocol):
    """Whether this instance is elected: what the gateway needs of the coordinator's service."""

    def leadership(self) -> Leadership | None:
        """The term of office of now, also while it is not certain that it still goes on."""

    def leads(self) -> bool:
        """Whether this instance is certainly the elected one at this moment."""


class _Wondering(NamedTuple):
    """Somebody who asks about the cluster, and is answered by ``until`` (monotonic seconds)."""

    connection: Connection
    request: int
    question: MetadataQuestion
    until: float


class Gateway:
    """``instance`` is the broker id; without ``access`` everybody may register in every group."""

    def __init__(
        self,
        store: Store,
        instance: int,
        office: LeadershipView,
        wake: Callable[[], None],
        options: GatewayOptions | None = None,
        access: Access | None = None,
        nonce: Callable[[], str] = _nonce,
    ) -> None:
        """``nonce`` makes what no two registrations have in common."""
        self._store = store
        self._instance = instance
        self._office = office
        self._wake = wake
        self._options = options or GatewayOptions()
        self._access = access
        self._denials = DenialLog()
        self._nonce = nonce
        self._metadata = MetadataDirectory(store, instance, self._options.metadata_age_ms / 1000)
        self._asking: list[_Wondering] = []
        self._waiting: list[_Wondering] = []
        self._waiting_due = float("inf")
        self._early: list[tuple[Connection, Asked]] = []
        self._fresh: deque[Connection] = deque()
        self._connections: dict[Connection, None] = {}
        self._idle_due = 0.0
        self._completed_at = store.clock.monotonic()
        self._committed = CommittedReader(store)
        self._admission = Admission(self._options.registrations_per_s, store.clock.monotonic())
        self.term: Term | None = None
        self.statistics = Statistics()

    # --- what others may ask, on any thread --------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many are open, registered or not."""
        return len(self._connections)

    @property
    def consumers(self) -> int:
        """How many are registered here."""
        term = self.term
        return len(term.members) if term is not None else 0

    def presences(self) -> tuple[Presence, ...]:
        """The consumers this instance answers for."""
        term = self.term
        return tuple(Presence.of(member, term.now()) for member in list(term.members.values())) if term else ()

    @property
    def step_age_s(self) -> float:
        """How long ago a step was completed last (since it was made, while none has been). A gateway that serves its
        consumers completes several a second while ZooKeeper answers."""
        return self._store.clock.monotonic() - self._completed_at

    # --- connections -------------------------------------------------------------------------------------------------

    def accepted(self, peer: Peer) -> Connection:
        connection = Connection(peer, self._store.clock.monotonic())
        self._connections[connection] = None
        self._fresh.append(connection)
        return connection

    def lost(self, connection: Connection) -> None:
        """The connection is gone. Its member's session timeout runs on."""
        connection.ended = True
        self._connections.pop(connection, None)
        member, connection.member = connection.member, None
        if member is not None and member.connection is connection:
            member.connection = None
            if member.obeying is not None and not member.obeying.answered:
                member.obeying = None

    def broken(self, connection: Connection, error: BadFrame) -> None:
        """What came on it is no frame, or one that may not come now."""
        if connection.ended:
            return
        log.warning("closed connection address=%s: %s (%s)", connection.peer.address, error, error.fault)
        self._hang_up(connection, error.fault, str(error), error.id, **error.more)

    def received(self, connection: Connection, frame: Frame) -> None:
        """A frame came."""
        if connection.ended:
            return
        try:
            event = connection.conversation.take(frame)
            if connection.member is not None and self.term is not None:
                self.term.heard_of(connection.member)
            if isinstance(event, Asked):
                self._heed(connection, event)
            elif isinstance(event, Answered):
                self._answered(connection, event)
            else:
                self._refused(connection, event)
        except BadFrame as error:
            self.broken(connection, error)
        except MalformedValue as error:
            self.broken(connection, BadFrame(Fault.MALFORMED_FRAME, str(error), frame["id"]))
        except Exception as error:
            # Whatever a frame brings about is the affair of whoever sent it, and nobody else's.
            log.exception("failed on a frame address=%s type=%s (a defect)", connection.peer.address, frame["type"])
            self._hang_up(connection, Code.UNAVAILABLE, f"the coordinator failed on this: {type(error).__name__}")

    def _hang_up(self, connection: Connection, code: str, message: str, request: int = 0, **more: object) -> None:
        member = connection.member
        if code in (Code.NOT_AUTHENTICATED, Code.NOT_AUTHORISED):
            self._denials.note(connection.peer.address, code, message, self._store.clock.monotonic())
        hang_up(connection, code, message, request, **more)
        self.lost(connection)
        if member is not None:
            log.info(
                "closed the connection of socket consumer=%s group=%s reason=%s",
                member.registration.consumer,
                member.registration.group,
                code,
            )

    def _refuse(self, connection: Connection, request: int, code: str, message: str, **more: object) -> None:
        connection.send(connection.conversation.refuse(request, code, message, more))

    # --- what consumers ask ------------------------------------------------------------------------------------------

    def _heed(self, connection: Connection, asked: Asked) -> None:
        try:
            self._asked(connection, asked)
        except BadFrame as error:
            self.broken(connection, error)
        except MalformedValue as error:
            self._refuse(connection, asked.id, Code.BAD_VALUE, str(error), field=error.field)

    def _asked(self, connection: Connection, asked: Asked) -> None:
        if asked.type == MessageType.CLUSTER_METADATA:
            if len(self._asking) + len(self._waiting) >= MAX_WAITING:
                self._refuse(connection, asked.id, Code.UNAVAILABLE, "too many wait for ZooKeeper: ask again")
            else:
                question = MetadataQuestion.from_json(asked.frame)
                until = self._store.clock.monotonic() + min(question.wait_ms / 1000, _LONGEST_QUESTION_S)
                self._asking.append(_Wondering(connection, asked.id, question, until))
        elif asked.type in (MessageType.REGISTER, MessageType.RESUME):
            self._asked_to_take_part(connection, asked)
        elif asked.type in (MessageType.COMMIT, MessageType.COMMITTED, MessageType.LEAVE):
            self._asked_by_member(connection, asked)
        else:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"{shown(asked.type)} is nothing a consumer may ask", asked.id)

    def _asked_to_take_part(self, connection: Connection, asked: Asked) -> None:
        """Where this instance was just elected, its term is about to begin: the question waits for that."""
        if connection.member is not None or connection.registering:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, "this connection has registered already", asked.id)
        if self.term is not None:
            connection.since = self._store.clock.monotonic()
            (self._register if asked.type == MessageType.REGISTER else self._resume)(connection, asked, self.term)
        elif self._office.leads():
            connection.registering = True
            self._early.append((connection, asked))
        else:
            self._not_coordinator(connection, asked.id)

    def _register(self, connection: Connection, asked: Asked, term: Term) -> None:
        try:
            _subscription(asked.frame)
        except MalformedValue as error:
            self._refuse(connection, asked.id, Code.BAD_SUBSCRIPTION, str(error), field=error.field or "subscription")
            return
        register = Register.from_json(asked.frame)
        refusal = self._why_not(register, connection.peer.certificate) or self._not_yet(register, connection)
        if refusal is not None:
            self.statistics.refused += 1
            self._refuse(connection, asked.id, refusal.code, refusal.message, **dict(refusal.more))
            if refusal.code in (Code.NOT_AUTHENTICATED, Code.NOT_AUTHORISED):
                self._hang_up(connection, refusal.code, refusal.message)
            return
        now_ms = int(self._store.clock.time() * 1000)
        address = connection.peer.address
        one = Registering(
            register=register,
            consumer=register.member.consumer or made_id(register.group, address, now_ms),
            value=registration_value(register, self._instance, address, now_ms, self._nonce()),
            then=lambda _outcome: None,
        )

        def then(outcome: Registration | Refusal) -> None:
            connection.registering = False
            if isinstance(outcome, Registration):
                term.registered(connection, asked.id, one, outcome)
            elif not connection.ended:
                self._refuse(connection, asked.id, outcome.code, outcome.message, **dict(outcome.more))

        one.then = then
        refusal = too_large(one.value)
        if refusal is not None:
            self._refuse(connection, asked.id, refusal.code, refusal.message, **dict(refusal.more))
            return
        connection.registering = True
        term.registering.append(one)

    def _resume(self, connection: Connection, asked: Asked, term: Term) -> None:
        resume = Resume.from_json(asked.frame)
        certificate = connection.peer.certificate
        refusal = self._access.why_not(resume.group, resume.secret, certificate) if self._access is not None else None
        if refusal is not None:
            self._hang_up(connection, refusal.code, refusal.message, asked.id)
            return
        member = term.resumable(resume)
        if member is None:
            message = f"consumer {resume.consumer[:260]!r} is not registered as it was: register"
            self._refuse(connection, asked.id, Code.UNKNOWN_MEMBERSHIP, message)
            return
        connection.registering = True
        term.heard_of(member)
        term.resuming.append((connection, asked.id, member))

    def _why_not(self, register: Register, certificate: str | None) -> Refusal | None:
        options, term = self._options, self.term
        field = "group"
        try:
            legal("group", register.group)
            if register.member.consumer:
                field = "consumer_id"
                legal("consumer", register.member.consumer)
        except InvalidName as error:
            return Refusal(Code.BAD_NAME, str(error), (("field", field),))
        refusal = (
            self._access.why_not(register.group, register.secret, certificate) if self._access is not None else None
        )
        if refusal is not None:
            return refusal
        least, most = options.least_session_timeout_ms, options.most_session_timeout_ms
        if not least <= (register.member.session_timeout_ms or 0) <= most:
            return Refusal(
                Code.TIMEOUT_OUT_OF_RANGE,
                f"session_timeout_ms is {register.member.session_timeout_ms}: use {least} to {most}",
                (("least_ms", least), ("most_ms", most)),
            )
        known = term is not None and (register.group, register.member.consumer) in term.members
        if term is not None and not known and len(term.members) + len(term.registering) >= options.most_consumers:
            return Refusal(Code.TOO_MANY_CONSUMERS, f"this instance takes {options.most_consumers} consumers")
        return None

    def _not_yet(self, register: Register, connection: Connection) -> Refusal | None:
        longest_s = (register.member.session_timeout_ms or 0) / 1000 * _LONGEST_WAIT
        wait_s = self._admission.wait_s(connection, longest_s, self._store.clock.monotonic())
        if wait_s <= 0:
            return None
        message = "many are registering: come again on this connection"
        return Refusal(Code.SLOW_DOWN, message, (("retry_ms", math.ceil(wait_s * 1000)),))

    def _hear_early(self) -> None:
        """The term has begun, or will not: what was asked before is heard as if it came now."""
        early, self._early = self._early, []
        for connection, asked in early:
            if not connection.ended:
                connection.registering = False
                self._heed(connection, asked)

    def _not_coordinator(self, connection: Connection, request: int) -> None:
        """Says who is, if that is known without asking."""
        coordinator = self._metadata.known_coordinator()
        message = "this instance does not coordinate" if coordinator else "nobody is known to coordinate: ask again"
        self._hang_up(
            connection,
            Code.NOT_COORDINATOR,
            message,
            request,
            coordinator=coordinator.to_json() if coordinator is not None else None,
        )

    def _asked_by_member(self, connection: Connection, asked: Asked) -> None:
        member, term = connection.member, self.term
        if member is None or term is None:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"{asked.type} needs a registration", asked.id)
        if asked.type == MessageType.COMMITTED:
            self._tell_committed(connection, member, asked)
            return
        offsets = read_offsets(asked.frame, asked.type)

        def then(outcome: Outcome) -> None:
            self._answer_write(connection, asked, outcome)

        if asked.type == MessageType.COMMIT:
            not_held = [tp for tp in offsets if tp not in member.held]
            if not_held:
                message = f"{not_held[0]} is not this consumer's: only what it was started on can be committed"
                self._refuse(connection, asked.id, Code.BAD_VALUE, message, field="offsets")
                return
            term.commit(member, offsets, then)
        else:
            for_good = asked.frame.get("for_good", False)
            if not isinstance(for_good, bool):
                raise MalformedValue(
                    MessageType.LEAVE, f"field 'for_good' is {shown(for_good)}, not true or false", "for_good"
                )
            term.leave(member, offsets, then, for_good=for_good)

    def _answer_write(self, connection: Connection, asked: Asked, outcome: Outcome) -> None:
        if connection.ended:
            return
        if isinstance(outcome, frozenset):
            frame = connection.conversation.answer(asked.id, {"refused": sorted(outcome)})
            connection.send(frame)
            if asked.type == MessageType.LEAVE:
                connection.ended = True
                connection.peer.close()
        else:
            self._refuse(connection, asked.id, Code.UNAVAILABLE, str(outcome))

    def _tell_committed(self, connection: Connection, member: SocketMember, asked: Asked) -> None:
        def then(found: Committed | StoreError | MalformedValue) -> None:
            if connection.ended:
                return
            if isinstance(found, (StoreError, MalformedValue)):
                asked_badly = isinstance(found, MalformedValue) and found.where == asked.type
                if asked_badly:
                    self._refuse(connection, asked.id, Code.BAD_VALUE, str(found), field="offsets")
                else:
                    self._refuse(connection, asked.id, Code.UNAVAILABLE, str(found))
            else:
                connection.send(connection.conversation.answer(asked.id, {"offsets": write_offsets(found)}))

        self._committed.ask(*member.key, lambda: list(read_offsets(asked.frame, asked.type)), then)

    # --- what consumers answer ---------------------------------------------------------------------------------------

    def _answered(self, connection: Connection, answered: Answered) -> None:
        member, term = connection.member, self.term
        if member is None or term is None:
            return  # a member no longer, and about to hear of it
        offsets = read_offsets(answered.frame, answered.type)
        if answered.type == MessageType.PING:
            term.ping_answered(member, answered.id, offsets)
        else:
            term.obeyed(member, answered.id, offsets)

    def _refused(self, connection: Connection, refused: Refused) -> None:
        log.warning(
            "was refused by a socket consumer address=%s request=%s code=%s: %s",
            connection.peer.address,
            refused.type,
            refused.code[:60],
            refused.message[:200],
        )
        self._hang_up(connection, Fault.UNEXPECTED_MESSAGE, "the coordinator's requests are not to be refused")

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Carries on with everything; the monotonic time at which to come again at the latest."""
        now = self._store.clock.monotonic()
        due = now + (1.0 if self.term is not None else 0.1)
        if self._store.session.state is not SessionState.CONNECTED:
            return now + 0.1
        try:
            self._follow_office()
            if self.term is not None:
                due = min(due, self.term.step(leads=self._office.leads()))
            due = min(due, self._tell_metadata(now))
            if self._committed.step():
                due = now
            self._completed_at = self._store.clock.monotonic()
        except Fenced as error:
            self._end_term(str(error))
        except StoreUnavailable as error:
            log.debug("could not ask ZooKeeper: %s", error)
            due = now + 0.1
        except StoreError as error:
            log.warning("was refused by ZooKeeper: %s; trying again", error)
            due = now + 1.0
        if now >= self._idle_due:
            self._idle_due = now + 1.0
            self._close_idle(now)
        return due

    def _follow_office(self) -> None:
        leadership = self._office.leadership()
        if self.term is not None and self.term.leadership != leadership:
            self._end_term("this instance does not coordinate any more")
        if self.term is None and leadership is not None and self._office.leads():
            term = Term(self._store, leadership, self._options, self._wake, self.statistics)
            try:
                term.begin()
            except BaseException:
                term.close()
                raise
            self.term = term
            self._metadata.forget()
            self._waiting_due = 0.0 if self._waiting else float("inf")
        if self._early and (self.term is not None or not self._office.leads()):
            self._hear_early()

    def _end_term(self, why: str) -> None:
        term, self.term = self.term, None
        self._metadata.forget()
        if term is None:
            return
        log.info(
            "let socket consumers go epoch=%d consumers=%d reason=%r", term.leadership.epoch, len(term.members), why
        )
        term.close()
        for connection in list(self._connections):
            if connection.member is not None or connection.registering:
                self._hang_up(connection, Code.NOT_COORDINATOR, why, coordinator=None)

    def _tell_metadata(self, now: float) -> float:
        """When to look again for those that wait for another coordinator: now and then, not whenever somebody asks."""
        if now < self._waiting_due and not self._asking:
            return self._waiting_due
        metadata = self._metadata.look()
        found: dict[str, Any] = metadata.to_json()
        asking, self._asking = self._asking, []
        if now >= self._waiting_due:
            asking += self._waiting
            self._waiting, self._waiting_due = [], float("inf")
        for one in asking:
            if one.connection.ended:
                continue
            if now < one.until and not one.question.wants(metadata.coordinator):
                self._waiting.append(one)
            else:
                one.connection.send(one.connection.conversation.answer(one.request, found))
        if self._waiting:
            self._waiting_due = min(self._waiting_due, now + self._options.metadata_age_ms / 1000)
        return self._waiting_due

    def _close_idle(self, now: float) -> None:
        """Those that connected and neither registered nor asked anything in time."""
        patience = self._options.unregistered_ms / 1000
        for _ in range(len(self._fresh)):
            connection = self._fresh.popleft()
            if connection.ended or connection.member is not None:
                continue
            since = max(connection.since, connection.place or 0.0)  # who was promised a place is waited for until then
            if connection.registering or now < since + patience:
                self._fresh.append(connection)
            else:
                self._hang_up(connection, Code.NOT_REGISTERED, f"did not register within {patience:.0f} s")

    def close(self, why: str = "this instance is shutting down") -> None:
        """Tells everybody, so that they look for the next coordinator at once."""
        for connection in list(self._connections):
            self._hang_up(connection, Code.SHUTTING_DOWN, why)
        if self.term is not None:
            self.term.close()
            self.term = None


def _subscription(frame: Frame) -> Subscription:
    wanted = Subscription.from_json(frame, MessageType.REGISTER)
    if not wanted.is_wildcard and not wanted.topics:
        raise MalformedValue(MessageType.REGISTER, "field 'subscription' names no topic")
    return wanted
