"""Client-assigned groups: a client of the group assigns its partitions, and the groups log keeps its state.

Each group is a state machine (:mod:`~kafka_coord.classic_groups.machine`). :class:`ClientAssignedGroups` carries out
what the machines instruct, and :class:`ClientAssignedGroup` passes requests on to one of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from msgspec import structs

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import (
    Answered,
    ConnectionLost,
    Event,
    Heartbeat,
    Held,
    Instruction,
    Join,
    Joined,
    Leave,
    Released,
    Stored,
    StoreGroup,
    Sync,
    Synced,
    TopicsReplaced,
)
from kafka_coord.classic_groups.machine import Group as Machine
from kafka_coord.classic_groups.metadata import CONSUMER, ClassicState, GroupMetadata
from kafka_coord.frontends.kafka.calls import Caller
from kafka_coord.frontends.kafka.group import (
    Assignments,
    By,
    Commit,
    ConsumerBeat,
    Described,
    DescribedMember,
    Fetched,
    GroupError,
    KindChanged,
    Listed,
    Partition,
    PartitionErrors,
    Who,
    marked,
    refuse,
    take_out_large,
)
from kafka_coord.grouplog.manager import GroupMetadataManager, Offsets
from kafka_coord.grouplog.topics import assigned_topics, current_offsets, not_given_up
from kafka_coord.kafka.connection import CLIENT_ID
from kafka_coord.model import CommittedOffset, TopicPartition
from kafka_coord.model.histories import offsets_change
from kafka_coord.wire.consumer_protocol import subscribed_topics, without_topics

log = logging.getLogger(__name__)

QUIET_S = 600.0
"""A connection that commits more often than this, in seconds, is recorded only once, as a copying program is
(MirrorMaker commits every minute)."""
_THAW_CHECK_S = 0.1
_MOST = 10_000
"""The maximum number of connections, of groups and of consumers to remember."""
_OF_TOOLS = frozenset({"DescribeGroups", "ConsumerGroupDescribe", "ListGroups"})
"""Requests that no consumer sends."""

Recording = Callable[[str, str, str, str], Coroutine[Any, Any, None]]
"""Has the cluster's history record an action on a group, by whom, and what it changed."""


class ClientAssignedGroups:
    """Runs the client-assigned groups of this instance. ``record`` records what tools do to them. Use only on the event
    loop."""

    def __init__(self, manager: GroupMetadataManager, record: Recording) -> None:
        self.manager, self._record = manager, record
        self.group = partial(ClientAssignedGroup, self)
        self.tool_commits = ToolCommits()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._frozen: Counter[str] = Counter()

    type = "classic"
    """The groups' type in ListGroups."""

    async def is_gone(self, name: str) -> bool:
        return self.manager.availability(name) is Error.NONE and not self.manager.has(name)

    async def listed(self, names: Sequence[str], *, with_states: bool) -> list[Listed]:
        """Returns the groups as ListGroups shows them. Their states are always known."""
        del with_states
        found = ((name, self.manager.group(name)) for name in names)
        metadata = [machine.metadata for _, machine in found if machine is not None]
        return [Listed(one.group_id, one.protocol_type or "", one.state.value, self.type) for one in metadata]

    async def ask(
        self, name: str, event: Callable[[object], Event], *, makes: bool = False, client: Caller | None = None
    ) -> Any:
        """Returns the answer to an event. Raises :class:`GroupError`: UNKNOWN_MEMBER_ID if there is no such group and
        the event does not make it, or why the answer cannot be proven to be right. If the request may be held,
        ``client`` is its sender."""
        machine = self.manager.add_group(name) if makes else self.manager.group(name)
        if machine is None:
            raise GroupError(Error.NOT_COORDINATOR if makes else Error.UNKNOWN_MEMBER_ID)
        answer: asyncio.Future[Instruction] = asyncio.get_running_loop().create_future()
        instructions = machine.handle(event(answer), self.manager.now(name))
        self.carry_out(name, machine, instructions)
        held = next((one for one in instructions if isinstance(one, Held)), None)
        if held is not None and client is not None:
            await self._wait_held(name, machine, held, answer, client)
        found = await answer
        refuse(await self.manager.vouch(name))  # the request may have been held for long
        return found

    async def _wait_held(
        self, name: str, machine: Machine, held: Held, answer: asyncio.Future[Instruction], client: Caller
    ) -> None:
        def end(event: Event) -> None:
            self.carry_out(name, machine, machine.handle(event, self.manager.now(name)))

        released = Released(held.token, held.member_id)
        timer = asyncio.get_running_loop().call_later(held.limit_s, end, released)
        try:
            client.holding(lambda: end(replace(released, by_client=True)))
            await answer
        except asyncio.CancelledError:
            end(ConnectionLost(frozenset({held.token}), by_client=client.has_closed))
            raise
        finally:
            timer.cancel()
            client.holding(None)

    def carry_out(self, name: str, machine: Machine, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, StoreGroup):
                self.run(self._store(name, machine, one))
            elif not isinstance(one, Held) and isinstance(one.token, asyncio.Future) and not one.token.done():
                one.token.set_result(one)
        # on their own, Answered and Held can only postpone the next timer
        if len(instructions) != 1 or not isinstance(instructions[0], Answered | Held):
            self.set_timer(name, machine)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _store(self, name: str, machine: Machine, store: StoreGroup) -> None:
        machine.metadata.state_since_ms = self.manager.now_ms()
        error = await self.manager.store_group(machine.metadata, store.assignments, store.topic_ids)
        self.carry_out(name, machine, machine.handle(Stored(store, error), self.manager.now(name)))

    def set_timer(self, name: str, machine: Machine) -> None:
        """Sets the group's timer, unless the current one fires early enough. If it fires too early, it is simply set
        again, which is cheap."""
        before, due = self._timers.get(name), self.manager.monotonic(name, machine.due)
        fires_early_enough = before is not None and before.when() <= due
        if not fires_early_enough and self.manager.group(name) is machine:
            if before is not None:
                before.cancel()
            if due != math.inf:
                self._timers[name] = asyncio.get_running_loop().call_at(due, self._tick, name)

    def _tick(self, name: str) -> None:
        del self._timers[name]
        machine = self.manager.group(name)
        if name in self._frozen:
            self._timers[name] = asyncio.get_running_loop().call_later(_THAW_CHECK_S, self._tick, name)
        elif machine is not None:
            self.carry_out(name, machine, machine.tick(self.manager.now(name)))

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Lets no session end while the group is changed: members are answered as while loading, and are not heard."""
        try:
            with marked(self._frozen, name):
                yield
        finally:
            machine = self.manager.group(name)
            if machine is not None:
                machine.thaw(self.manager.now(name))

    def begin_partition(self, partition: int) -> None:
        """Starts the timers of the partition's groups, which must have been loaded."""
        for name, machine in list(self.manager.groups_of(partition).items()):
            self.set_timer(name, machine)

    def end_partition(self, partition: int) -> None:
        """Answers the held requests about the partition's groups, so that the clients find the new coordinator."""
        for name, machine in list(self.manager.groups_of(partition).items()):
            self.carry_out(name, machine, machine.end(Error.NOT_COORDINATOR))

    def record(self, by: By, action: str, name: str, change: str = "") -> None:
        """Has the cluster's history record what a tool has done to a group. This project's own commands have that done
        themselves, with the operator's name and reason."""
        if by.client_id != CLIENT_ID:
            self.run(self._record(action, name, by.sender, change))

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class ClientAssignedGroup:
    """One client-assigned group, which may not exist yet. ``check`` raises an error if this instance does not serve it
    any more, or serves it as another kind."""

    __slots__ = ("_check", "_groups", "_manager", "name")

    def __init__(self, groups: ClientAssignedGroups, name: str, check: Callable[[], None]) -> None:
        self.name, self._groups, self._manager, self._check = name, groups, groups.manager, check

    # --- members -----------------------------------------------------------------------------------------------------

    def join(self, join: Join, by: By) -> Coroutine[Any, Any, Joined]:
        del by
        return self._groups.ask(self.name, lambda token: replace(join, token=token), makes=not join.member_id)

    async def sync(self, who: Who, assignments: Assignments, by: By) -> Synced:
        del by
        protocol = assignments[:2]
        topic_ids = await self._topic_ids(assignments.of_members.values())
        of_members = self._withhold(assignments.of_members, topic_ids)
        synced: Synced = await self._groups.ask(
            self.name, lambda token: Sync(token, *who, *protocol, of_members, topic_ids)
        )
        return synced

    async def _topic_ids(self, assignments: Iterable[bytes]) -> dict[str, str]:
        """Returns the identities of the topics in the assignments. A topic that is not seen now is not gone: it has the
        identity that the group's earlier generation was given or, failing that, that this instance saw last. The
        identity of a topic that nobody has ever seen is empty."""
        topics, named = self._manager.topics, sorted(assigned_topics(assignments))
        if named:
            await topics.learn(named, follow=True)
        machine = self._manager.group(self.name)
        before = machine.metadata.topic_ids if machine is not None else {}
        return {topic: topics.identity(topic) or before.get(topic) or topics.last_identity(topic) for topic in named}

    def _withhold(self, assignments: Mapping[str, bytes], topic_ids: dict[str, str]) -> dict[str, bytes]:
        """Takes a topic that was made anew out of the assignments, and gives it its earlier identity, while a
        cooperative member still owns partitions of the earlier one, and would go on at its positions. The member gives
        them up now, and joins again."""
        machine = self._manager.group(self.name)
        before = machine.metadata.topic_ids if machine is not None else {}
        anew = [topic for topic in topic_ids if self._manager.topics.is_another(topic, before.get(topic, ""))]
        withheld = not_given_up(machine.metadata, anew) if machine is not None else frozenset()
        topic_ids |= {topic: before[topic] for topic in withheld}
        return {member_id: without_topics(data, withheld) for member_id, data in assignments.items()}

    async def heartbeat(self, who: Who, software: str, by: By) -> None:
        answered = await self._groups.ask(self.name, lambda token: Heartbeat(token, *who, software), client=by.client)
        refuse(answered.error)

    async def leave(self, leaving: Sequence[tuple[str, str | None]], by: By) -> Sequence[Error]:
        client = by.client_id, f"/{by.client.host}"
        if self._manager.group(self.name) is None:
            return [Error.UNKNOWN_MEMBER_ID] * len(leaving)
        left = await self._groups.ask(self.name, lambda token: Leave(token, tuple(leaving), client, by.sender))
        refuse(left.error)
        return [error for *_, error in left.members]

    async def consumer_heartbeat(self, beat: ConsumerBeat, by: By) -> NoReturn:
        """Refuses the heartbeat: the members' offsets are in the groups log, where a managed group would not find
        them."""
        del beat, by
        words = "the group has members that use the classic protocol; stop them first, or use another group"
        raise GroupError(Error.GROUP_ID_NOT_FOUND, words)

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def commit(self, commit: Commit, by: By) -> PartitionErrors:
        manager, topics, given = self._manager, self._manager.topics, self._given(commit)
        if not all(given.get(name) and topics.is_followed(name) for name in commit.topic_ids):
            await self._learn_ids(commit)
            self._check()
            given = self._given(commit)
        ids = {name: given.get(name) or topics.identity(name) for name in commit.topic_ids}
        gone = {name for name in ids if topics.is_gone(name)}
        offsets, errors = dict(commit.offsets), dict[Partition, Error]()
        if gone or ids != commit.topic_ids:
            errors = {where: Error.UNKNOWN_TOPIC_OR_PARTITION for where in offsets if where[0] in gone}
            offsets = {
                where: structs.replace(one, topic_id=ids[where[0]])
                for where, one in offsets.items()
                if where not in errors
            }
        if not offsets:
            return errors
        error = self._may_commit(commit, by.client.number)
        if error is not Error.NONE:  # nothing is written, so nothing else proves that the error is still right
            raise GroupError(await manager.vouch(self.name) or error)
        self._refuse_other_topics(given, ids)
        errors |= take_out_large(offsets, manager.limits.offset_metadata_chars)
        before = {} if commit.is_members else self._stored(offsets)
        error = await manager.store_offsets(self.name, offsets)
        if error is not Error.NONE:
            return errors | dict.fromkeys(offsets, error)
        if not commit.is_members:
            self._record_commit(by, before, offsets)
        return errors

    async def _learn_ids(self, commit: Commit) -> None:
        """Finds out the identities of the topics for which the generation does not say to which topic the offsets
        belong, and of those whose changes are not noticed yet."""
        given, topics = self._given(commit), self._manager.topics
        if unknown := [name for name in commit.topic_ids if not given.get(name)]:
            await topics.learn(unknown)
        if unnoticed := [name for name in commit.topic_ids if given.get(name) and not topics.is_followed(name)]:
            await topics.learn(unnoticed, follow=True)

    def _given(self, commit: Commit) -> Mapping[str, str]:
        """Returns the identities of the topics that the committing member's generation was given."""
        machine = self._manager.group(self.name)
        return machine.metadata.topic_ids if machine is not None and commit.who.generation_id >= 0 else {}

    def _may_commit(self, commit: Commit, connection: int) -> Error:
        who, manager = commit.who, self._manager
        machine = manager.add_group(self.name) if who.generation_id < 0 else manager.group(self.name)
        if machine is None:
            return Error.ILLEGAL_GENERATION
        return machine.may_commit(*who, manager.now(self.name), connection)

    def _refuse_other_topics(self, given: Mapping[str, str], ids: Mapping[str, str]) -> None:
        """Refuses the commit unless all offsets are of the topics that the generation was given. If any of those topics
        was deleted and made anew since, or was never seen until now, begins a rebalance, so that all members start on
        the present topic."""
        topics, name = self._manager.topics, self.name
        replaced = sorted(topic for topic in ids if topic in given and not topics.is_still(topic, given[topic]))
        machine = self._manager.group(name) if replaced else None
        if machine is None:
            return
        log.info("refused a commit for topics that have been made anew group=%s topics=%s", name, replaced)
        self._groups.carry_out(name, machine, machine.handle(TopicsReplaced(), self._manager.now(name)))
        raise GroupError(Error.REBALANCE_IN_PROGRESS)

    def _stored(self, partitions: Iterable[Partition]) -> Offsets:
        """Returns the stored offsets of those of the partitions that have one."""
        stored = self._manager.offsets(self.name)
        return {where: stored[where] for where in partitions if where in stored}

    def _record_commit(self, by: By, before: Offsets, offsets: Offsets) -> None:
        """Has the cluster's history record a commit that no member sent, if it is a tool's."""
        machine, now = self._manager.group(self.name), self._manager.now(self.name)
        pairs = [(before.get(where), one) for where, one in offsets.items()]
        if machine is not None and self._groups.tool_commits.is_news(by, machine.metadata, pairs, now):
            change = offsets_change(_plain(before), _plain(offsets))
            self._groups.record(by, "reset-offsets", self.name, change)

    async def fetch_offsets(self, partitions: Collection[Partition] | None, member: tuple[str, int] | None) -> Fetched:
        del member
        await self._manager.topics.learn({topic for topic, _ in self._requested(partitions)})
        refuse(await self._manager.prove(self.name))
        self._check()
        return Fetched(current_offsets(self._requested(partitions), self._manager.topics))

    def _requested(self, partitions: Collection[Partition] | None) -> Mapping[Partition, CommittedOffset]:
        stored = self._manager.offsets(self.name)
        return stored if partitions is None else {where: stored[where] for where in partitions if where in stored}

    async def delete_offsets(self, partitions: Sequence[Partition], by: By) -> PartitionErrors:
        metadata = self._existing().metadata
        subscribed: frozenset[str] = frozenset()
        if metadata.state is not ClassicState.EMPTY:
            if metadata.protocol_type != CONSUMER:
                raise GroupError(Error.NON_EMPTY_GROUP)
            subscribed = subscribed_topics(one.metadata(metadata.protocol_name) for one in metadata.members.values())
        errors = {where: Error.GROUP_SUBSCRIBED_TO_TOPIC for where in partitions if where[0] in subscribed}
        chosen = [where for where in partitions if where not in errors]
        before = self._stored(chosen)
        error = await self._manager.delete_offsets(self.name, chosen)
        if error is not Error.NONE:
            return errors | dict.fromkeys(chosen, error)
        if before:
            change = offsets_change(_plain(before), dict.fromkeys(_plain(before)))
            self._groups.record(by, "delete-offsets", self.name, change)
        if not self._manager.has_offsets(self.name):
            with suppress(GroupError, KindChanged):
                await self.delete(by)
        return errors

    # --- the whole group ---------------------------------------------------------------------------------------------

    async def describe(self) -> Described:
        refuse(await self._manager.prove(self.name))
        self._check()
        machine, topics = self._manager.group(self.name), self._manager.topics
        if machine is None:
            return Described(ClassicState.DEAD.value, "", "", ())
        found = _described(machine.metadata)
        if machine.metadata.state is not ClassicState.EMPTY or not machine.metadata.topic_ids:
            return found
        read = dict(machine.metadata.topic_ids)
        await topics.learn(read)
        return found._replace(once_subscribed=tuple(sorted(one for one in read if topics.belongs(one, read[one]))))

    async def describe_consumers(self) -> NoReturn:
        refuse(await self._manager.prove(self.name))
        self._check()
        raise GroupError(Error.GROUP_ID_NOT_FOUND)

    async def delete(self, by: By) -> None:
        self._check()
        machine = self._existing()
        if machine.metadata.state is not ClassicState.EMPTY:
            raise GroupError(Error.NON_EMPTY_GROUP)
        error = await self._manager.delete_group(self.name)
        if error is not Error.NONE:
            self._groups.set_timer(self.name, machine)
            raise GroupError(error)
        self._groups.record(by, "delete-group", self.name)
        self._groups.carry_out(self.name, machine, machine.end(Error.COORDINATOR_NOT_AVAILABLE))

    def _existing(self) -> Machine:
        machine = self._manager.group(self.name)
        if machine is None or machine.metadata.state is ClassicState.DEAD:
            raise GroupError(Error.GROUP_ID_NOT_FOUND)
        return machine


def _described(metadata: GroupMetadata) -> Described:
    is_stable = metadata.state is ClassicState.STABLE
    members = tuple(
        DescribedMember(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host,
            one.metadata(metadata.protocol_name) if is_stable else b"",
            one.assignment if is_stable else b"",
        )
        for one in metadata.members.values()
    )
    protocol = (metadata.protocol_name or "") if is_stable else ""
    return Described(metadata.state.value, metadata.protocol_type or "", protocol, members)


def _plain(offsets: Offsets) -> dict[TopicPartition, int]:
    return {TopicPartition(*where): one.offset for where, one in offsets.items()}


Changes = Sequence[tuple[CommittedOffset | None, CommittedOffset]]
"""What was stored for each partition before, or ``None`` if nothing was, and what is stored now."""
Moves = Sequence[tuple[int | None, int]]
"""The same, of the offsets alone."""


class ToolCommits:
    """Decides which commits an operator wants to see in the history: those of tools. Remembers which connections have
    committed to which groups without being a member, and what else they asked."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[int, str], float] = OrderedDict()
        self._tools: OrderedDict[int, None] = OrderedDict()
        """The connections of tools."""
        self._consumers: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        """The groups in which consumers assign partitions to themselves, with each one's client id and host."""
        self._groups: OrderedDict[str, None] = OrderedDict()

    def asked(self, request: str, by: By, groups: Iterable[str] = ()) -> None:
        """Notes what a request of this name says of its sender. A consumer that assigns partitions to itself asks for
        the offsets of its ``groups`` before it commits, and for nothing that :data:`_OF_TOOLS` contains."""
        if request in _OF_TOOLS:
            _remember(self._tools, by.client.number)
        elif by.client.number not in self._tools:
            for group in groups:
                _remember(self._consumers, (group, by.client_id, by.client.host))

    def is_news(self, by: By, group: GroupMetadata, offsets: Changes, now: float) -> bool:
        """Returns whether the history should record a commit that no member sent. ``now`` is a monotonic time in
        seconds.

        A commit that moves an offset back is always recorded. Any other commit is recorded if the group has had
        consumers as members, or if the sender is no consumer that assigns partitions to itself: such consumers commit
        all the time, to groups that never have members.
        """
        is_repeated = self._is_repeated(by, group.group_id, now)
        changed = [(old, new) for old, new in offsets if old is None or old.offset != new.offset]
        had_members = group.generation_id > 0
        may_be_a_tools = group.protocol_type == CONSUMER if had_members else not self._is_consumers(by, group, changed)
        moves = [(None if old is None else old.offset, new.offset) for old, new in changed]
        return _move_back(moves) or (bool(changed) and may_be_a_tools and not is_repeated)

    def is_news_of_managed(self, by: By, group_id: str, moves: Moves, now: float) -> bool:
        """Like :meth:`is_news`, for a managed group, to which only tools commit without being a member."""
        is_repeated = self._is_repeated(by, group_id, now)
        return _move_back(moves) or not is_repeated

    def _is_repeated(self, by: By, group_id: str, now: float) -> bool:
        """Returns whether the connection has committed to the group a short time ago, and notes that it does now."""
        key = by.client.number, group_id
        last = self._last.pop(key, -math.inf)
        _remember(self._last, key, now)
        return now - last <= QUIET_S

    def _is_consumers(self, by: By, group: GroupMetadata, offsets: Changes) -> bool:
        """Returns whether a consumer that assigns partitions to itself has probably sent the commit. When a group has
        just come to this instance, its consumers do not ask for their offsets again."""
        is_new = group.group_id not in self._groups
        _remember(self._groups, group.group_id)
        if by.client.number in self._tools:
            return False
        consumer = group.group_id, by.client_id, by.client.host
        ages_ms = [new.committed_at_ms - old.committed_at_ms for old, new in offsets if old is not None]
        is_in_use = is_new and min(ages_ms, default=math.inf) < QUIET_S * 1000
        if is_in_use or consumer in self._consumers:
            _remember(self._consumers, consumer)
            return True
        return False


def _move_back(moves: Moves) -> bool:
    return any(old is not None and new < old for old, new in moves)


def _remember(remembered: OrderedDict[Any, Any], key: object, value: object = None) -> None:
    remembered[key] = value
    remembered.move_to_end(key)
    if len(remembered) > _MOST:
        remembered.popitem(last=False)
