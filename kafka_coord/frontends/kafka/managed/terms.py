"""Runs the terms of managed groups, one for each partition of the groups log that this instance serves.

All terms share one thread. The listener's event loop passes requests in and gets the responses as futures, so only that
thread waits for ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from kafka_coord.channel.messages import Code
from kafka_coord.channel.offset_details import read_offsets
from kafka_coord.channel.operations import Registration
from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.sessions import Key as SessionKey
from kafka_coord.classic_groups.sessions import Sessions
from kafka_coord.errors import Fenced, MalformedValue, StoreError, StoreUnavailable
from kafka_coord.frontends.kafka.calls import Caller
from kafka_coord.frontends.kafka.group import NOTHING_FETCHED, Fetched, Partition
from kafka_coord.frontends.kafka.managed import classic, heartbeats
from kafka_coord.frontends.kafka.managed.member import Answer, KafkaMember, MemberCommit, MemberCommitted, MemberRequest
from kafka_coord.frontends.kafka.managed.members import KafkaMembers, consumer_name
from kafka_coord.frontends.kafka.managed.topics import TopicIds
from kafka_coord.frontends.kafka.managed.watching import ConversionRequests, Targets
from kafka_coord.frontends.members.machine import instructions
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions
from kafka_coord.frontends.members.registering import Refusal
from kafka_coord.frontends.members.term import Term, TermScope
from kafka_coord.frontends.members.writes import CommittedReader
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import CommittedOffset, TopicPartition
from kafka_coord.model import Request as OperatorRequest
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, SessionState, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

T = TypeVar("T")

PROTOCOLS = (heartbeats.PROTOCOL, classic.PROTOCOL)
"""The protocols that members of managed groups may use."""
_AGAIN_S = 0.1
_REFUSED_AGAIN_S = 1.0
_LONGEST_SLEEP_S = 1.0
"""The longest time between two steps, in seconds. A partition without members always waits that long."""
_REFUSALS = {
    Code.DUPLICATE_CONSUMER: Error.UNRELEASED_INSTANCE_ID,
    Code.NOT_AUTHORISED: Error.GROUP_AUTHORIZATION_FAILED,
    Code.BAD_SUBSCRIPTION: Error.INVALID_REQUEST,
}


class Served:
    """Serves the groups of one partition while this instance coordinates them."""

    def __init__(
        self,
        store: Store,
        partition: int,
        number: int,
        groups: ServedGroups,
        topic_ids: TopicIds,
        wake: Callable[[], None],
        session_timeout_s: float,
        sessions: Sessions,
    ) -> None:
        """``number`` is the term, which is the version of the partition's znode. ``sessions`` is what the groups log
        says about the sessions of earlier terms' members."""
        fence = Check(layout.log_partition(partition), number)
        scope = TermScope(fence, number, PROTOCOLS, lambda group: partition_of(group) == partition)
        self.partition, self.due, self.woken = partition, 0.0, True
        self.has_begun = self.knows_groups = False
        self.sessions = sessions
        self._store, self._groups, self._topic_ids = store, groups, topic_ids
        self._to_clients: deque[instructions.ToClient] = deque()
        self.term = Term(
            store, scope, partial(self._wake, wake), self._to_clients.append, session_left_s=self._session_left_s
        )
        self.members = KafkaMembers(self.term.machine, topic_ids.get, session_timeout_s=session_timeout_s)
        self.committed = CommittedReader(partial(_read_offsets, store))
        self._targets = Targets(store, partial(self._wake, wake), self.members.target_read)

    def _wake(self, wake: Callable[[], None]) -> None:
        self.woken = True
        wake()

    def _session_left_s(self, member: Registration, options: RegistrationOptions) -> float:
        return self.sessions.left_s(member.group, options.resume_key, options.session_timeout_s)

    def consumers(self, group: str) -> list[str]:
        """Returns the group's members, including those that are being registered."""
        machine = self.term.machine
        keys = {*self.members.members, *machine.members}
        keys |= {(one.group, one.consumer) for one in machine.registering.values()}
        return sorted(consumer for name, consumer in keys if name == group)

    def step(self) -> float:
        """Does all work that is due. Returns when to call this method again. Raises the same errors as
        :meth:`Term.step`, and :class:`StoreError`."""
        monotonic = self._store.clock.monotonic
        self.woken = False
        if not self.has_begun:
            self._groups.listed(self.term.begin())
            self.has_begun = self.knows_groups = True
        self.members.tick(monotonic())
        due = self.term.step(leads=True)
        self._targets.step(self.members.groups_joining())
        self._topic_ids.learn(self.members.doubtful)
        self.members.doubtful.clear()
        while self._to_clients:
            topic_ids = self._topic_ids_in(self._to_clients[0])
            self._pass_to_members(self._to_clients.popleft(), topic_ids)
        if self.committed.step():
            return monotonic()
        machine = self.term.machine
        if not machine.members and not machine.registering:
            due = max(due, monotonic() + _LONGEST_SLEEP_S)
        return min(due, self.members.due())

    def close(self) -> None:
        self.committed.close(StoreUnavailable("the term has ended"))
        self._targets.close()
        self.term.close()

    def _topic_ids_in(self, instruction: instructions.ToClient) -> dict[str, bytes]:
        """Returns the topic ids that the instruction needs, from the member's ledger. Raises :class:`StoreError`."""
        if isinstance(instruction, instructions.Deliver):
            topics = {tp.topic for tp in instruction.command.partitions}
        elif isinstance(instruction, instructions.Resumed):
            held = self.term.machine.members.get((instruction.member.group, instruction.member.consumer))
            topics = {tp.topic for tp in held.held} if held is not None else set()
        else:
            return {}
        return self._topic_ids.of_ledger(instruction.member.group, instruction.member.consumer, topics)

    def _pass_to_members(self, instruction: instructions.ToClient, topic_ids: dict[str, bytes]) -> None:
        if isinstance(instruction, instructions.RefuseRegistration):
            reason = instruction.reason
            code = reason.code if isinstance(reason, Refusal) else Code.UNAVAILABLE
            message = reason.message if isinstance(reason, Refusal) else str(reason)
            self.members.not_registered(
                instruction.connection, _REFUSALS.get(code, Error.COORDINATOR_NOT_AVAILABLE), message
            )
            return
        if isinstance(instruction, instructions.Welcome):
            self._groups.add(instruction.member.group)
        self.members.receive(instruction, topic_ids)


@dataclass(frozen=True, slots=True)
class ClientPresence:
    """The state of one member. ``heard_ms_ago`` is the time since the member last sent a request or since this instance
    began to serve it, whichever was later. ``epoch`` is ``None`` if the member has not sent any request in this term,
    and ``held_ms`` is ``None`` if none of its requests is held."""

    group: str
    consumer: str
    heard_ms_ago: int
    epoch: int | None
    held_ms: int | None
    protocol: str = ""


class ServedGroups(set[str]):
    """The names of the managed groups, which are the children of ``/consumers/groups``. Any thread may use the set,
    because each of its operations is atomic."""

    def listed(self, names: tuple[str, ...] | None) -> None:
        self.update(names or ())
        self.intersection_update(names or ())


class ManagedTerms:
    """The thread that runs the terms. When another instance has taken over a partition, it calls ``lost`` with the
    partition and the reason. When an operator asks to convert a group that this instance serves, it calls ``convert``
    with the request. ``session_timeout_s`` applies to KIP-848 members (Kafka's
    ``group.consumer.session.timeout.ms``)."""

    def __init__(
        self,
        store: Store,
        lost: Callable[[int, str], None],
        convert: Callable[[OperatorRequest], None],
        session_timeout_s: float,
    ) -> None:
        self.session_timeout_s = session_timeout_s
        self._store, self._lost = store, lost
        self.groups, self._topic_ids = ServedGroups(), TopicIds(store)
        """The groups in ZooKeeper. Until :meth:`knows` returns true for a group, it may exist without being in this
        set."""
        self._served: dict[int, Served] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._news = threading.Event()
        self._watches = Watches(store, self._news.set)
        self._watches.children(layout.GROUPS, self.groups.listed)
        self.conversions = ConversionRequests(store, self._watches, convert)
        self._closing = False
        self.thread = threading.Thread(target=self._run, name="managed-groups", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def close(self) -> None:
        self._closing = True
        self._news.set()
        self.thread.join()

    # --- on the listener's event loop --------------------------------------------------------------------------------

    def begin(self, partition: int, number: int, sessions: Sessions) -> None:
        """Begins the partition's term ``number``, in which this instance coordinates its groups. ``sessions`` is what
        the groups log says about the sessions of earlier terms' members."""
        self._pass(partial(self._begin, partition, number, sessions))

    def left_ms(self, partition: int) -> dict[SessionKey, int | None]:
        """Returns the partition's members, as :class:`~kafka_coord.classic_groups.sessions.Heard` notes them."""
        served = self._served.get(partition)
        return served.members.left_ms(self._store.clock.monotonic()) if served is not None else {}

    def end(self, partition: int) -> None:
        self._pass(partial(self._end, partition))

    def watch_topic(self, topic: str, changed: Callable[[], None]) -> None:
        """Calls ``changed`` on this class's thread, once now and after each change of the topic's znode."""
        self._pass(lambda: self._watches.data(layout.broker_topic(topic), lambda _node: changed()))

    def knows(self, group: str) -> bool:
        """Returns whether this instance serves the group's partition and has found the groups of earlier terms."""
        return self.knows_partition(partition_of(group))

    def knows_partition(self, partition: int) -> bool:
        """Like :meth:`knows`, for a partition."""
        served = self._served.get(partition)
        return served is not None and served.knows_groups

    def has_unheard(self) -> bool:
        """Returns whether a member of a group that this instance serves has not sent a request in this term."""
        return any(
            key not in served.members.members
            for served in list(self._served.values())
            for key in list(served.term.machine.members)
        )

    def heard_of(self, group: str) -> list[KafkaMember]:
        """Returns the group's members that are served by this instance and have sent a request in this term."""
        served = self._served.get(partition_of(group))
        return served.members.heard_of(group) if served is not None else []

    def protocol_of(self, group: str, member_id: str) -> str:
        """Returns the protocol of the member with that id, or "" if it has not sent a request in this term."""
        served = self._served.get(partition_of(group))
        return served.members.protocol_of(group, member_id) if served is not None else ""

    def presences(self) -> list[ClientPresence]:
        """Returns the members that this instance serves."""
        presences, now = [], self._store.clock.monotonic()
        for served in list(self._served.values()):
            machine = served.term.machine
            for state in list(machine.members.values()):
                member = served.members.members.get(state.key)
                is_held = member is not None and member.waiting is not None
                held_ms = max(0, round((now - member.held_since) * 1000)) if member is not None and is_held else None
                epoch = member.epoch if member is not None else None
                heard_ms_ago = machine.heard_ms_ago(state, now)
                presences.append(ClientPresence(*state.key, heard_ms_ago, epoch, held_ms, state.options.protocol or ""))
        return presences

    async def members(self, group: str) -> list[str] | None:
        """Returns the consumers that this instance serves or is registering, or ``None`` if it does not serve the
        group."""
        return await self._ask(group, lambda served, token: _resolve(token, served.consumers(group)), None)

    async def take(
        self,
        group: str,
        member_id: str,
        request: Callable[[object], MemberRequest],
        client: Caller | None,
        by: str = "",
    ) -> Answer:
        """Returns the response to a member's request, which may be held if there is a ``client``. ``request`` creates
        the request from a token. ``by`` describes who asks to join or leave."""
        refused = request(None).answered(Error.COORDINATOR_LOAD_IN_PROGRESS)

        def pass_on(served: Served, token: object) -> None:
            made = replace(request(token), by=by) if by else request(token)
            served.members.arrived(made, self._store.clock.monotonic())

        return await self._ask(group, pass_on, refused, None if client is None else (client, member_id))

    def look(self, group: str) -> None:
        """Finds members that were registered by somebody else, as soon as ZooKeeper answers. Until then, requests about
        the group are answered as while loading."""

        def look() -> None:
            served = self._served.get(partition_of(group))
            if served is not None:
                served.term.look(group)
                served.woken = True

        self._pass(look)

    async def places(self, group: str) -> list[classic.Place] | None:
        """Answers what the group's classic members wait for, and returns what another kind of group must know of them,
        or ``None`` while anything of theirs is being written."""

        def pass_on(served: Served, token: object) -> None:
            members = served.members.hand_over(group, self._store.clock.monotonic())
            classic_ones = (one for one in members or () if isinstance(one, classic.ClassicMember))
            _resolve(token, None if members is None else [one.place() for one in classic_ones])

        return await self._ask(group, pass_on, None)

    async def commit(self, group: str, commit: Callable[[object], MemberCommit]) -> MemberCommitted:
        def pass_on(served: Served, token: object) -> None:
            served.members.commit(commit(token), self._store.clock.monotonic())

        return await self._ask(group, pass_on, MemberCommitted(None, Error.COORDINATOR_LOAD_IN_PROGRESS))

    async def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None, member: tuple[str, int] | None
    ) -> tuple[Error, Fetched]:
        """Returns the stored offsets of ``partitions``, or of all partitions if that is ``None``. ``member`` is the
        member id and the epoch, if the client sent them."""

        def pass_on(served: Served, token: asyncio.Future[tuple[Error, Fetched]]) -> None:
            error = Error.NONE
            if member is not None:
                member_id, epoch = member
                key = served.members.key_of((group, consumer_name(member_id)), member_id)
                error = served.members.why_not(key, member_id, epoch)
            if error is not Error.NONE:
                _resolve(token, (error, NOTHING_FETCHED))
                return
            wanted = (lambda: self._stored(group)) if partitions is None else (lambda: list(partitions))
            known = served.members.leader_epochs(group)
            served.committed.ask(group, wanted, partial(self._fetched, token, known))

        return await self._ask(group, pass_on, (Error.COORDINATOR_LOAD_IN_PROGRESS, NOTHING_FETCHED))

    async def _ask(
        self,
        group: str,
        pass_on: Callable[[Served, asyncio.Future[T]], None],
        refused: T,
        held: tuple[Caller, str] | None = None,
    ) -> T:
        """Passes on a request and returns the response. If the request may be held, ``held`` is the client and the
        member id that it came from."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def take() -> None:
            served = self._served.get(partition_of(group))
            is_connected = self._store.session.state is SessionState.CONNECTED
            if served is None or not served.has_begun or not is_connected or served.term.is_sought(group):
                _resolve(answer, refused)
                return
            served.woken = True
            try:
                pass_on(served, answer)
            except BaseException:
                _resolve(answer, refused)
                raise

        self._pass(take)
        if held is None:
            return await answer
        client, member_id = held
        client.holding(lambda: self._pass(partial(self._interrupted, group, member_id, answer)))
        try:
            return await answer
        except asyncio.CancelledError:
            self._pass(partial(self._gone, group, member_id, answer, by_client=client.has_closed))
            raise
        finally:
            client.holding(None)

    def _interrupted(self, group: str, member_id: str, token: object) -> None:
        served = self._served.get(partition_of(group))
        if served is not None:
            served.members.interrupted(group, member_id, token, self._store.clock.monotonic())
            served.woken = True

    def _gone(self, group: str, member_id: str, token: object, *, by_client: bool) -> None:
        served = self._served.get(partition_of(group))
        if served is not None:
            served.members.gone(group, member_id, token, self._store.clock.monotonic(), by_client=by_client)

    def _pass(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        self._news.set()

    # --- on this thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self.turn()
            self._news.wait(self._sleep_s())
        for partition in list(self._served):
            self._end(partition)
        self._watches.close()

    def turn(self) -> None:
        """Does all work that is due."""
        self._news.clear()
        while self._inbox:
            self._guarded(self._inbox.popleft())
        if self._store.session.state is SessionState.CONNECTED:
            self._watches.step()
            for served in list(self._served.values()):
                if served.woken or self._store.clock.monotonic() >= served.due:
                    self._step(served)
            self.conversions.pass_on(self._term_of)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("cannot handle a request for managed groups (this is a bug)")

    def _sleep_s(self) -> float:
        if self._store.session.state is not SessionState.CONNECTED:
            return _AGAIN_S
        due = min((one.due for one in self._served.values()), default=float("inf"))
        return max(0.0, min(_LONGEST_SLEEP_S, due - self._store.clock.monotonic()))

    def _step(self, served: Served) -> None:
        now = self._store.clock.monotonic()
        try:
            served.due = served.step()
            if self._pass_on(served):
                served.due = now
        except Fenced as error:
            self._end(served.partition)
            self._lost(served.partition, str(error))
        except StoreUnavailable:
            served.due = now + _AGAIN_S
        except StoreError as error:
            log.warning(
                "ZooKeeper refused a request for managed groups partition=%d: %s; retrying", served.partition, error
            )
            served.due = now + _REFUSED_AGAIN_S
        except Exception:
            log.exception("cannot serve managed groups partition=%d; starting over", served.partition)
            self._begin(served.partition, served.term.scope.number, served.sessions)
            anew = self._served[served.partition]
            anew.due, anew.woken = now + _REFUSED_AGAIN_S, False
            anew.knows_groups = served.knows_groups  # so client-assigned groups stay available

    def _pass_on(self, served: Served) -> bool:
        """Passes on the results of the step. Returns whether there is input for the next step."""
        arrived, answers = served.members.take()
        for stimulus in arrived:
            served.term.arrived(stimulus)
        for answer in answers:
            _resolve(answer.token, answer)
        return bool(arrived)

    def _term_of(self, partition: int) -> int | None:
        """Returns the partition's term if this instance knows the partition's groups, else ``None``."""
        served = self._served.get(partition)
        return served.term.scope.number if served is not None and served.knows_groups else None

    def _begin(self, partition: int, number: int, sessions: Sessions) -> None:
        self._end(partition)
        shared = self.groups, self._topic_ids, self._news.set, self.session_timeout_s
        self._served[partition] = Served(self._store, partition, number, *shared, sessions)

    def _end(self, partition: int) -> None:
        served = self._served.pop(partition, None)
        if served is not None:
            served.members.end()
            self._pass_on(served)
            served.close()

    def _stored(self, group: str) -> list[TopicPartition]:
        """Returns the partitions for which the group has a stored offset."""
        (listing,) = self._store.children_many([layout.offsets(group)])
        topics = listing.names if listing is not None else ()
        listings = self._store.children_many([layout.topic_offsets(group, topic) for topic in topics]) if topics else ()
        return [
            TopicPartition(topic, int(number))
            for topic, numbers in zip(topics, listings, strict=True)
            if numbers is not None
            for number in numbers.names
            if number.isdigit()
        ]

    def _fetched(
        self,
        token: asyncio.Future[Any],
        known: ChainMap[TopicPartition, CommittedOffset],
        outcome: Mapping[TopicPartition, CommittedOffset | MalformedValue | None] | StoreError | MalformedValue,
    ) -> None:
        if isinstance(outcome, (StoreError, MalformedValue)):
            log.warning("cannot read stored offsets: %s", outcome)
            # librdkafka does not retry other errors
            _resolve(token, (Error.COORDINATOR_LOAD_IN_PROGRESS, NOTHING_FETCHED))
            return
        stored: dict[Partition, CommittedOffset] = {}
        damaged: set[Partition] = set()
        for tp, one in outcome.items():
            if isinstance(one, CommittedOffset):
                stored[tp] = _best(one, known.get(tp))
            elif one is not None:
                log.warning("cannot read a stored offset: %s", one)
                damaged.add(tp)
        _resolve(token, (Error.NONE, Fetched(stored, frozenset(damaged))))


def _read_offsets(
    store: Store, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedOffset | MalformedValue | None]:
    """Like :func:`read_offsets`, but sees each topic that any client can have seen by now."""
    store.sync(layout.BROKER_TOPICS)
    return read_offsets(store, group, partitions)


def _best(stored: CommittedOffset, known: CommittedOffset | None) -> CommittedOffset:
    """Returns ``known``, which has a leader epoch, if the stored offset is the same but has no details. Otherwise,
    returns the stored offset."""
    return known if known is not None and known.offset == stored.offset and stored.is_bare else stored


def _resolve(token: object, value: object) -> None:
    """Delivers the response on the event loop, if the loop is still running."""
    if isinstance(token, asyncio.Future):
        with suppress(RuntimeError):
            token.get_loop().call_soon_threadsafe(_set, token, value)


def _set(token: asyncio.Future[Any], value: object) -> None:
    if not token.done():
        token.set_result(value)
