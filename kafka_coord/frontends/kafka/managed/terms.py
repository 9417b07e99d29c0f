"""The thread that runs the terms of managed groups: one for each partition of the groups log served here.

The event loop of the listener passes requests in, and gets the answers as futures. The thread waits for ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka_coord.channel.messages import Code
from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import Fenced, MalformedValue, StoreError, StoreUnavailable
from kafka_coord.frontends.kafka.calls import Caller
from kafka_coord.frontends.kafka.managed.members import (
    Commit,
    Committed,
    ConsumerGroupMember,
    ConsumerGroupMembers,
    Heartbeat,
    HeartbeatAnswer,
    consumer_name,
)
from kafka_coord.frontends.kafka.managed.topic_ids import Assigned, TopicIds, grouped
from kafka_coord.frontends.members.committed import Committed as Found
from kafka_coord.frontends.members.committed import CommittedReader
from kafka_coord.frontends.members.event_log import EventLog
from kafka_coord.frontends.members.machine import instructions
from kafka_coord.frontends.members.registering import Refusal
from kafka_coord.frontends.members.term import Term, TermScope
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import StartFetcher, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, SessionState, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

PROTOCOL = "consumer"
"""The value of ``group.protocol`` in these clients, and of ``protocol`` in their registrations."""
SESSION_TIMEOUT_S = 45.0
"""Kafka's ``group.consumer.session.timeout.ms``."""
_AGAIN_S = 0.1
_REFUSED_AGAIN_S = 1.0
_LONGEST_SLEEP_S = 1.0
"""Also between two steps of a partition without members."""
_REFUSALS = {
    Code.DUPLICATE_CONSUMER: Error.UNRELEASED_INSTANCE_ID,
    Code.NOT_AUTHORISED: Error.GROUP_AUTHORIZATION_FAILED,
    Code.BAD_SUBSCRIPTION: Error.INVALID_REQUEST,
}


class Served:
    """One partition's groups, while this instance coordinates them."""

    def __init__(
        self,
        store: Store,
        partition: int,
        number: int,
        groups: GroupNames,
        topic_ids: TopicIds,
        wake: Callable[[], None],
    ) -> None:
        """``number`` is the term: the version of the partition's znode."""
        fence = Check(layout.log_partition(partition), number)
        scope = TermScope(fence, number, PROTOCOL, lambda group: partition_of(group) == partition)
        self.partition, self.due, self.woken = partition, 0.0, True
        self.has_begun = self.knows_groups = False
        self._store, self._groups, self._topic_ids = store, groups, topic_ids
        self._to_clients: deque[instructions.ToClient] = deque()
        event_log = EventLog(lambda _connection: "-", scope.kind)
        self.term = Term(
            store, scope, partial(self._wake, wake), self._to_clients.append, lambda _event: None, event_log
        )
        self.members = ConsumerGroupMembers(self.term.machine, topic_ids.get, session_timeout_s=SESSION_TIMEOUT_S)
        self.committed = CommittedReader(store)

    def _wake(self, wake: Callable[[], None]) -> None:
        self.woken = True
        wake()

    def step(self) -> float:
        """Does everything that is due. Returns when to call it again. Raises the errors of the term's step."""
        monotonic = self._store.clock.monotonic
        self.woken = False
        if not self.has_begun:
            self._groups.listed(self.term.begin())
            self.has_begun = self.knows_groups = True
        self.members.tick(monotonic())
        due = self.term.step(leads=True)
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

    def _topic_ids_in(self, instruction: instructions.ToClient) -> dict[str, bytes]:
        """The ids of the topics in this message to a client. Raises :class:`StoreError`."""
        if isinstance(instruction, instructions.Deliver) and isinstance(instruction.command, StartFetcher):
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
class Presence:
    """The state of one member. ``heard_ms_ago`` is the time since it last sent something, or since this instance began
    to serve it, whichever was later. ``epoch`` is ``None`` if it has sent nothing yet, ``held_ms`` if none of its
    heartbeats is held."""

    group: str
    consumer: str
    heard_ms_ago: int
    epoch: int | None
    held_ms: int | None


class GroupNames:
    """The names of the managed groups, which are those below ``/consumers/groups``. Read on any thread, written on
    one."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __contains__(self, group: str) -> bool:
        return group in self._names

    def all(self) -> list[str]:
        return list(self._names)

    def listed(self, names: tuple[str, ...] | None) -> None:
        self._names = set(names or ())

    def add(self, group: str) -> None:
        """Adds a group that was just created."""
        self._names.add(group)


class ManagedTerms:
    """See above. ``lost`` is called on the thread with a partition that another instance serves now."""

    def __init__(self, store: Store, lost: Callable[[int, str], None]) -> None:
        self._store, self._lost = store, lost
        self._groups, self._topic_ids = GroupNames(), TopicIds(store)
        self._served: dict[int, Served] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._news = threading.Event()
        self._watches = Watches(store, self._news.set)
        self._watches.children(layout.GROUPS, self._groups.listed)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="managed-groups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._news.set()
        self._thread.join()

    # --- on the listener's event loop --------------------------------------------------------------------------------

    def begin(self, partition: int, number: int) -> None:
        """This instance coordinates the partition's groups from now on."""
        self._pass(partial(self._begin, partition, number))

    def end(self, partition: int) -> None:
        self._pass(partial(self._end, partition))

    def has(self, group: str) -> bool:
        """Whether the group exists in ZooKeeper. Call it only if :meth:`knows` is true."""
        return group in self._groups

    def knows(self, group: str) -> bool:
        """Whether this instance has found the groups of earlier terms."""
        served = self._served.get(partition_of(group))
        return served is not None and served.knows_groups

    def heard_of(self, group: str) -> list[ConsumerGroupMember]:
        """The members that this instance serves and that have sent something."""
        served = self._served.get(partition_of(group))
        return served.members.heard_of(group) if served is not None else []

    def presences(self) -> list[Presence]:
        """The members that this instance serves."""
        found, now = [], self._store.clock.monotonic()
        for served in list(self._served.values()):
            machine = served.term.machine
            for member in list(machine.members.values()):
                one = served.members.members.get(member.key)
                is_held = one is not None and one.waiting is not None
                held_ms = max(0, round((now - one.pace.began) * 1000)) if one is not None and is_held else None
                epoch = one.epoch if one is not None else None
                found.append(Presence(*member.key, machine.heard_ms_ago(member, now), epoch, held_ms))
        return found

    def made(self, group: str) -> None:
        """The group was just created."""
        self._groups.add(group)

    def names(self) -> list[str]:
        """All managed groups."""
        return self._groups.all()

    async def heartbeat(
        self, group: str, member_id: str, beat: Callable[[object], Heartbeat], client: Caller
    ) -> tuple[HeartbeatAnswer, Assigned | None]:
        """``beat`` makes the member's heartbeat with its token. Returns the answer, and its assignment by topic id."""

        def pass_on(served: Served, token: object) -> None:
            served.members.heartbeat(beat(token), self._store.clock.monotonic())

        refused = HeartbeatAnswer(None, Error.COORDINATOR_LOAD_IN_PROGRESS, "", 0), None
        found: tuple[HeartbeatAnswer, Assigned | None] = await self._ask(group, pass_on, refused, (client, member_id))
        return found

    async def commit(self, group: str, commit: Callable[[object], Commit]) -> Committed:
        def pass_on(served: Served, token: object) -> None:
            served.members.commit(commit(token), self._store.clock.monotonic())

        refused = Committed(None, Error.COORDINATOR_LOAD_IN_PROGRESS)
        found: Committed = await self._ask(group, pass_on, refused)
        return found

    async def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None, member: tuple[str, int] | None
    ) -> tuple[Error, Found]:
        """The stored offsets of these partitions, or of all. ``member``: its member id and epoch, if the client gave
        them."""

        def pass_on(served: Served, token: asyncio.Future[Any]) -> None:
            error = Error.NONE
            if member is not None:
                member_id, epoch = member
                key = served.members.key_of((group, consumer_name(member_id)), member_id)
                error = served.members.why_not(key, member_id, epoch)
            if error is not Error.NONE:
                _resolve(token, (error, {}))
                return
            wanted = (lambda: self._stored(group)) if partitions is None else (lambda: list(partitions))
            served.committed.ask(group, "", wanted, partial(self._fetched, token))

        found: tuple[Error, Found] = await self._ask(group, pass_on, (Error.COORDINATOR_LOAD_IN_PROGRESS, {}))
        return found

    async def _ask(
        self,
        group: str,
        pass_on: Callable[[Served, Any], None],
        refused: object,
        held: tuple[Caller, str] | None = None,
    ) -> Any:
        """``held``: the client, and the member id, whose request may be held."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take() -> None:
            served = self._served.get(partition_of(group))
            is_connected = self._store.session.state is SessionState.CONNECTED
            if served is None or not served.has_begun or not is_connected:
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
            self._pass(partial(self._gone, group, member_id, answer))
            raise
        finally:
            client.holding(None)

    def _interrupted(self, group: str, member_id: str, token: object) -> None:
        served = self._served.get(partition_of(group))
        if served is not None:
            served.members.interrupted(group, member_id, token, self._store.clock.monotonic())
            served.woken = True

    def _gone(self, group: str, member_id: str, token: object) -> None:
        served = self._served.get(partition_of(group))
        if served is not None:
            served.members.gone(group, member_id, token)

    def _pass(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        self._news.set()

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._news.clear()
            while self._inbox:
                self._guarded(self._inbox.popleft())
            if self._store.session.state is SessionState.CONNECTED:
                self._watches.step()
                for served in list(self._served.values()):
                    if served.woken or self._store.clock.monotonic() >= served.due:
                        self._step(served)
            self._news.wait(self._sleep_s())
        for partition in list(self._served):
            self._end(partition)
        self._watches.close()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("cannot handle a request for managed groups (a defect)")

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
            log.warning("ZooKeeper refused a request partition=%d: %s; trying again", served.partition, error)
            served.due = now + _REFUSED_AGAIN_S
        except Exception:
            log.exception("cannot serve managed groups partition=%d; starting over", served.partition)
            self._begin(served.partition, served.term.scope.number)
            anew = self._served[served.partition]
            anew.due, anew.woken = now + _REFUSED_AGAIN_S, False
            anew.knows_groups = served.knows_groups  # client-assigned groups need no more, and go on

    def _pass_on(self, served: Served) -> bool:
        """Passes the results of the step on. Returns whether there is input for the next."""
        arrived, answers = served.members.take()
        for stimulus in arrived:
            served.term.arrived(stimulus)
        for answer in answers:
            if isinstance(answer, HeartbeatAnswer):
                told = None if answer.assignment is None else grouped(answer.ids)
                _resolve(answer.token, (answer, told))
            else:
                _resolve(answer.token, answer)
        return bool(arrived)

    def _begin(self, partition: int, number: int) -> None:
        self._end(partition)
        self._served[partition] = Served(self._store, partition, number, self._groups, self._topic_ids, self._news.set)

    def _end(self, partition: int) -> None:
        served = self._served.pop(partition, None)
        if served is not None:
            served.members.end()
            self._pass_on(served)
            served.term.close()

    def _stored(self, group: str) -> list[TopicPartition]:
        """The partitions with a stored offset."""
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

    def _fetched(self, token: asyncio.Future[Any], found: Found | StoreError | MalformedValue) -> None:
        if isinstance(found, (StoreError, MalformedValue)):
            log.warning("cannot read stored offsets: %s", found)
            _resolve(token, (Error.COORDINATOR_NOT_AVAILABLE, {}))
        else:
            _resolve(token, (Error.NONE, found))


def _resolve(token: object, value: object) -> None:
    """Delivers the answer on the event loop, if that still runs."""
    if isinstance(token, asyncio.Future):
        with suppress(RuntimeError):
            token.get_loop().call_soon_threadsafe(_set, token, value)


def _set(token: asyncio.Future[Any], value: object) -> None:
    if not token.done():
        token.set_result(value)
