"""Manages the groups, offsets and terms of one instance, like Kafka's ``GroupMetadataManager``.

What the log says is one :class:`PartitionState` for each partition, and only :meth:`PartitionState.replay` changes it:
while the partition is loaded, and later for each entry that this instance has written, once it is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.machine import Group, GroupLimits
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata
from kafka_coord.classic_groups.sessions import LONGEST_STEP_S, Heard, Key, Sessions
from kafka_coord.grouplog.records import (
    Entry,
    GoneEntry,
    GroupEntry,
    OffsetEntry,
    gone_record,
    group_record,
    group_removal,
    heard_records,
    offset_records,
    read_record,
)
from kafka_coord.grouplog.term import (
    TOPIC,
    AppendRefused,
    Claimed,
    LogLoad,
    LogTerm,
    NotProven,
    TermEnded,
)
from kafka_coord.grouplog.topics import LogTopics, all_subscribed_topics
from kafka_coord.kafka.connection import RIGHTS, BrokerConnection, RightMissing
from kafka_coord.model import CommittedOffset, is_gone_long_enough, names
from kafka_coord.model.offsets import Retention
from kafka_coord.model.sequences import parts
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.messages import BadMessage
from kafka_coord.zk.root import ClusterRecord

log = logging.getLogger(__name__)

_REMOVED_BYTES = 400 << 10
"""The maximum size of one batch of removals, in bytes."""
_TOPIC_BYTES = 300
"""An upper bound on the size of a topic's name with its overhead, in bytes."""
_ATTENDS_S = LONGEST_STEP_S / 2
_EXAMINED_AT_ONCE = 1_000
_READ_AT_ONCE = 2_000

Offsets = dict[tuple[str, int], CommittedOffset]
"""Committed offsets by topic and partition."""


Joining = Callable[[], Awaitable[ClusterRecord]]
"""Reads which tree this instance serves. Raises :class:`~kafka_coord.errors.TreeRefused` if it may serve none, and
:class:`~kafka_coord.errors.StoreError`."""
Claiming = Callable[[int, int], Awaitable[Claimed]]
"""Sets the znode of a partition by compare-and-set. The second argument is the newest term that is known, or -1."""
Checking = Callable[[int, Claimed], Awaitable[bool]]
"""Checks, ordered with all writes to ZooKeeper, whether the znode of a partition is still as it was claimed. Raises
:class:`~kafka_coord.errors.StoreError` if that cannot be found out."""


partition_of = names.partition_of


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class GroupMetadataManager:
    """Keeps the groups and their offsets in memory, and writes every change to the log first.

    ``states`` has what the log says of each partition that is served. ``topics`` knows which topics the offsets belong
    to. ``now_ms`` reads the wall clock. Use this class only on the event loop.
    """

    def __init__(
        self,
        connect: Callable[[], BrokerConnection],
        joining: Joining,
        claiming: Claiming,
        checking: Checking,
        instance: str,
        limits: GroupLimits,
        on_term_end: Callable[[int], None] = lambda _partition: None,
        now_ms: Callable[[], int] = _now_ms,
        topics: LogTopics | None = None,
    ) -> None:
        self._connect, self._joining, self._claiming, self._checking = connect, joining, claiming, checking
        self._instance, self.limits = instance, limits
        self._on_term_end = on_term_end
        self.now_ms, self.topics = now_ms, topics or LogTopics()
        self.states: dict[int, PartitionState] = {}
        self.terms: dict[int, LogTerm] = {}
        self.loading: dict[int, asyncio.Future[None]] = {}
        """The partitions that are being loaded, each with a future that completes when the load ends."""
        self.missing_right = ""
        """The broker's error if it denies this instance a right that it needs, else ""."""
        self._not_claimed: set[int] = set()
        """The partitions that could not be claimed or loaded because of :attr:`missing_right`."""
        self._under_way: dict[str, list[Offsets]] = {}
        """The commits that are being written, by group id."""
        self.other_members: Callable[[int], Mapping[Key, int | None]] = lambda _partition: {}
        """Returns the members of the partition's managed groups, as :class:`Heard` notes members. If a conversion has
        left such a group in the log, too, its members there do not count."""
        self._noting: dict[int, asyncio.Task[None]] = {}
        """The tasks that note which members were heard, by partition."""
        self._proving: dict[int, asyncio.Task[Error]] = {}
        self._attending: asyncio.TimerHandle | None = None

    # --- terms -------------------------------------------------------------------------------------------------------

    def availability(self, group_id: str) -> Error:
        """Returns NONE if this instance currently coordinates the group, otherwise the error to respond with."""
        partition = partition_of(group_id)
        if partition in self.terms:
            return Error.NONE
        if partition in self._not_claimed:
            return Error.COORDINATOR_NOT_AVAILABLE
        return Error.COORDINATOR_LOAD_IN_PROGRESS if partition in self.loading else Error.NOT_COORDINATOR

    async def wait_until_loaded(self, group_ids: Iterable[str | None], within_s: float) -> None:
        """Waits up to ``within_s`` seconds until none of the groups' partitions is being loaded."""
        partitions = {partition_of(group_id) for group_id in group_ids if group_id is not None}
        if loading := [self.loading[partition] for partition in partitions & self.loading.keys()]:
            await asyncio.wait(loading, timeout=within_s)

    async def prove(self, group_id: str) -> Error:
        """Proves that no other instance had changed the group before this call. Returns NONE, or an error if that
        cannot be proven. The proof holds only if the group is still available afterwards."""
        term = self.terms.get(partition_of(group_id))
        return Error.NOT_COORDINATOR if term is None else await _proven(term)

    async def vouch(self, group_id: str) -> Error:
        """Proves as :meth:`prove` does, but only while the brokers refuse appends: then nothing else would tell this
        instance that its term is over. Call it before any answer from memory that needs no proof otherwise."""
        term = self.terms.get(partition_of(group_id))
        return await _proven(term) if term is not None and term.is_refused else Error.NONE

    async def vouch_for_all(self) -> Error:
        """Calls :meth:`vouch` for every partition. Returns NONE, or an error if a term goes on but cannot be proven."""
        errors = [await _proven(term) for term in list(self.terms.values()) if term.is_refused]
        return next((one for one in errors if one is Error.COORDINATOR_NOT_AVAILABLE), Error.NONE)

    async def load_groups_for_partition(self, partition: int) -> None:
        """Reads the partition, claims it and starts serving its groups. Raises :class:`BrokerError`,
        :class:`TermEnded`, :class:`TreeRefused` if the partition belongs to another tree, and whatever ``joining`` and
        ``claiming`` raise; the partition's groups are then not served."""
        if partition in self.terms or partition in self.loading:
            return
        loading = self.loading[partition] = asyncio.get_running_loop().create_future()
        try:
            await self._load_partition(partition)
            self._not_claimed.discard(partition)
            self.note_outcome(0)
        except RightMissing as error:
            self._not_claimed.add(partition)
            self.note_outcome(error.code)
            raise
        finally:
            del self.loading[partition]
            loading.set_result(None)

    async def _load_partition(self, partition: int) -> None:
        broker = self._connect()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            tree = await self._joining()
            load, state = LogLoad(broker, partition), PartitionState(self.limits)
            await _load(load, None, state)
            load.check(tree)
            claimed = await self._claiming(partition, load.newest)
            on_end = partial(self._term_ended, partition, broker)
            check = partial(self._checking, partition, claimed)
            term = LogTerm(
                *(broker, partition, claimed, self._instance, tree, self.now_ms, on_end, check),
                on_outcome=self.note_outcome,
                most_bytes=lambda: self.limits.append_bytes,
            )
            claimed_at = await term.claim(load.newest)
            answered_at = clock()
            await _load(load, claimed_at, state)
            load.check(tree, term.term)
            await term.outlast(answered_at)
        except BaseException:
            broker.close()
            raise
        term.figures.loaded_records, term.figures.load_s = state.records, clock() - began
        term.serve()
        state.serve(term.now())
        self.terms[partition], self.states[partition] = term, state
        self._noting[partition] = asyncio.create_task(self._note_heard(term), name=f"heard-{partition}")
        if self._attending is None:
            self._attend()
        log.info(
            "now coordinates a partition of the groups log partition=%d term=%d records=%d groups=%d load_ms=%d",
            *(partition, term.term, state.records, len(state.groups), round(term.figures.load_s * 1000)),
            extra={"event": "partition_loaded"},
        )

    def _term_ended(self, partition: int, broker: BrokerConnection, reason: str, planned: bool) -> None:
        log.log(
            logging.INFO if planned else logging.WARNING,
            "no longer coordinates a partition of the groups log partition=%d reason=%s",
            partition,
            reason,
            extra={"event": "partition_lost"},
        )
        self.terms.pop(partition, None)
        for tasks in (self._noting, self._proving):
            if partition in tasks:
                tasks.pop(partition).cancel()
        if self._attending is not None and not self.terms:
            self._attending.cancel()
            self._attending = None
        broker.close()
        self._on_term_end(partition)
        self.states.pop(partition, None)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def now(self, group_id: str) -> float:
        """Returns the time on the clock of the group's term, on which the members' sessions run."""
        term = self.terms.get(partition_of(group_id))
        return asyncio.get_running_loop().time() if term is None else term.now()

    def monotonic(self, group_id: str, at: float) -> float:
        """Returns the event loop's time at which :meth:`now` will probably return ``at``."""
        term = self.terms.get(partition_of(group_id))
        if term is None:
            return at
        again_at = asyncio.get_running_loop().time() + _ATTENDS_S
        return max(term.monotonic(at), again_at) if term.is_unproven else term.monotonic(at)

    def _attend(self) -> None:
        """Keeps the terms' clocks going, and tries to prove the terms that could not be proven."""
        for partition, term in self.terms.items():
            term.now()
            if term.is_unproven and partition not in self._proving:
                task = self._proving[partition] = asyncio.create_task(_proven(term))
                task.add_done_callback(lambda _task, of=partition: self._proving.pop(of, None))  # type: ignore[misc]
        self._attending = asyncio.get_running_loop().call_later(_ATTENDS_S, self._attend)

    async def _note_heard(self, term: LogTerm) -> None:
        """Writes down once which members of earlier terms the term has heard."""
        while True:
            await asyncio.sleep(self.limits.noted_after_s)
            try:
                note = heard_records(self._heard(term), self.limits.append_bytes)
                await _all(self._queued(term, [_Part([one]) for one in note]))
            except TermEnded:
                return
            except AppendRefused as error:
                log.info("cannot write down yet which members were heard: %s; retrying", error)
            else:
                return

    def _heard(self, term: LogTerm) -> Heard:
        now, left_ms = term.now(), dict[Key, int | None]()
        for group_id, group in self.groups_of(term.partition).items():
            for member in group.metadata.members.values():
                is_heard, left_s = member.is_heard, max(0.0, member.expires_at - now)
                left_ms[group_id, member.member_id] = None if is_heard else round(left_s * 1000)
        return Heard(term.term, {**left_ms, **self.other_members(term.partition)})

    # --- rights ------------------------------------------------------------------------------------------------------

    def note_outcome(self, code: int) -> None:
        """Reports once that the broker denies this instance a right, and once that it does so no longer."""
        if code in RIGHTS and not self.missing_right:
            self.missing_right = named(code)
            log.error(
                "the broker denies this instance a right on the groups log: %s; its Kafka clients get"
                " COORDINATOR_NOT_AVAILABLE; give the instance's user READ, WRITE, DESCRIBE and, for a new log, CREATE"
                " on the topic %s",
                *(self.missing_right, TOPIC),
                extra={"event": "right_missing"},
            )
        elif code == 0 and self.missing_right and not self._not_claimed:
            log.info("the broker no longer denies this instance a right on the groups log")
            self.missing_right = ""

    def resign(self, partition: int, reason: str) -> None:
        """Stops serving a partition's groups, as planned."""
        self._not_claimed.discard(partition)
        term = self.terms.get(partition)
        if term is not None:
            term.end(reason, planned=True)

    # --- lookups -----------------------------------------------------------------------------------------------------

    def has(self, group_id: str) -> bool:
        """Returns whether the group exists or has offsets."""
        return self.group(group_id) is not None or bool(self.offsets(group_id))

    def groups_of(self, partition: int) -> Mapping[str, Group]:
        """Returns the groups of a partition, which are none if it is not served."""
        state = self.states.get(partition)
        return {} if state is None else state.groups

    def groups(self) -> dict[str, Group]:
        """Returns all groups that are served."""
        return {group_id: group for state in self.states.values() for group_id, group in state.groups.items()}

    def group(self, group_id: str) -> Group | None:
        state = self.states.get(partition_of(group_id))
        return None if state is None else state.groups.get(group_id)

    def offsets(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """Returns the group's durable offsets, which are none if it is not served."""
        state = self.states.get(partition_of(group_id))
        return {} if state is None else state.offsets.get(group_id, {})

    def has_offsets(self, group_id: str) -> bool:
        """Returns whether the group has offsets, including those that are being written."""
        return bool(self._keys(group_id))

    def is_writing(self, group_id: str | None = None) -> bool:
        """Returns whether offsets of the group, or of any group, are being written."""
        return bool(self._under_way) if group_id is None else group_id in self._under_way

    def _keys(self, group_id: str) -> dict[tuple[str, int], None]:
        """Returns the partitions that the group has an offset for, including offsets that are being written."""
        being_written = (where for offsets in self._under_way.get(group_id, ()) for where in offsets)
        return dict.fromkeys((*self.offsets(group_id), *being_written))

    # --- changes -----------------------------------------------------------------------------------------------------

    def add_group(self, group_id: str) -> Group | None:
        """Returns the group, creating it if necessary. Returns ``None`` if its partition is not served."""
        state = self.states.get(partition_of(group_id))
        return None if state is None else state.add(group_id)

    async def store_group(
        self, group: GroupMetadata, assignments: Mapping[str, bytes], topic_ids: Mapping[str, str] | None = None
    ) -> Error:
        """Writes the group with the given assignments. ``topic_ids`` are the identities of the topics in them. Writes
        nothing if the group is being deleted: the record would bring it back."""
        if group.state is ClassicState.DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        record = group_record(group, assignments, self.now_ms(), topic_ids)
        return await self._append(group.group_id, _Part([record]))  # the group itself is told of the outcome

    async def store_emptiness(self, group_id: str) -> Error:
        """Writes that the group is empty, if the log does not say so yet. Returns the outcome."""
        return await self._append(group_id, *self._emptiness(group_id))

    def _emptiness(self, group_id: str, forgotten: Collection[str] = ()) -> Iterator[_Part]:
        """Yields the record that the group is empty, if the log does not say so yet, or names ``forgotten`` topics
        among those of its last members. It must come before any record that is true only of an empty group: after a
        refusal, neither is written."""
        group = self.group(group_id)
        if group is None:
            return
        known, owes = group.metadata, group.owes_emptiness
        left = {topic: one for topic, one in known.topic_ids.items() if topic not in forgotten}
        if owes or (known.state is ClassicState.EMPTY and left != known.topic_ids):
            empty = GroupMetadata(group_id, generation_id=known.generation_id, topic_ids=left)
            record = group_record(known, {}, self.now_ms() if owes else known.state_since_ms, left)
            yield _Part([record], [GroupEntry(group_id, empty)])

    async def store_offsets(self, group_id: str, offsets: Offsets) -> Error:
        """Writes offsets to the log and returns the outcome. The offsets become visible once they are durable."""
        under_way = self._under_way.setdefault(group_id, [])
        under_way.append(offsets)
        try:
            part = _offsets_part(group_id, offsets)
            error = await self._append(group_id, part, too_large=Error.INVALID_COMMIT_OFFSET_SIZE)
        finally:
            under_way.remove(offsets)
            if not under_way and self._under_way.get(group_id) is under_way:
                del self._under_way[group_id]
        if error is not Error.NONE:
            self._forget_if_unknown_to_log(group_id)
        return error

    def _forget_if_unknown_to_log(self, group_id: str) -> None:
        """Forgets a group that exists in memory only, because its first commit was not written."""
        group = self.group(group_id)
        if group is not None and group.is_new and not self._keys(group_id):
            del self.states[partition_of(group_id)].groups[group_id]

    async def delete_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> Error:
        """Deletes the offsets of the given partitions, including those that are being written. An empty group of which
        no offset of a topic is left does not remember that its members read it. Returns the outcome."""
        known = self._keys(group_id)
        gone = [where for where in partitions if where in known]
        forgotten = {topic for topic, _ in gone}.difference(topic for topic, _ in known.keys() - set(gone))
        return await self._append(group_id, *self._removals(group_id, gone, forgotten))

    async def delete_group(self, group_id: str) -> Error:
        """Deletes the group's offsets and then the group itself. From this call on, the group can no longer be changed,
        unless the deletion is refused: then the group is as before, except for offsets that are already removed.
        Returns the outcome."""
        group = self.group(group_id)
        state = ClassicState.EMPTY
        if group is not None:
            state, group.metadata.state = group.metadata.state, ClassicState.DEAD
        removals = self._removals(group_id, list(self._keys(group_id)))
        tombstone = _Part([group_removal(group_id)], [GroupEntry(group_id, None)])
        error = await self._append(group_id, *removals, tombstone)
        if error is not Error.NONE and group is not None and self.group(group_id) is group:
            group.metadata.state = state
        return error

    async def remove_group(self, group_id: str) -> Error:
        """Deletes a group whose members are coordinated elsewhere by now, if it exists. The log says first that it has
        none: a group with members is never deleted."""
        if not self.has(group_id):
            return Error.NONE
        group = self.group(group_id)
        known = group.metadata if group is not None else GroupMetadata(group_id)
        now_ms, generation = self.now_ms(), known.generation_id
        empty = GroupMetadata(group_id, ClassicState.EMPTY, now_ms, generation, known.protocol_type)
        return await self.store_group(empty, {}) or await self.delete_group(group_id)

    def _removals(self, group_id: str, gone: list[tuple[str, int]], forgotten: Collection[str] = ()) -> Iterator[_Part]:
        yield from self._emptiness(group_id, forgotten)
        at_once = max(1, min(_REMOVED_BYTES, self.limits.append_bytes) // (len(group_id.encode()) + _TOPIC_BYTES))
        for part in parts(gone, at_once):
            yield _offsets_part(group_id, dict.fromkeys(part))

    async def delete_expired_consumer_offsets(self, retention: Retention) -> int:
        """Removes the offsets that have expired, and those of topics that were deleted. Also removes the empty groups
        that have no offsets left. Returns the number of removed offsets."""
        await self._learn_topics()
        for partition, term in list(self.terms.items()):
            await self._note_gone(partition, term)
        count = 0
        for number, group_id in enumerate(self.groups()):
            if number % _EXAMINED_AT_ONCE == 0:
                await asyncio.sleep(0)  # lets other tasks run
            group = self.group(group_id)
            if group is None or group.metadata.state is ClassicState.DEAD or group_id in self._under_way:
                continue
            if group.owes_emptiness:  # it is written soon, and can expire afterwards
                continue
            offsets = self.offsets(group_id)
            gone = self._expired(group.metadata, offsets, retention)
            is_empty = group.metadata.state is ClassicState.EMPTY and not group.metadata.pending
            if is_empty and len(gone) == len(offsets):
                error = await self.delete_group(group_id)
            elif gone:
                error = await self._append(group_id, *self._removals(group_id, gone))
            else:
                continue
            count += len(gone) if error is Error.NONE else 0
        return count

    async def _learn_topics(self) -> None:
        names = sorted({topic for state in self.states.values() for topic in state.topics()})
        for some in parts(names, _EXAMINED_AT_ONCE):
            await self.topics.learn(some)

    async def _note_gone(self, partition: int, term: LogTerm) -> None:
        """Writes down which topics of the partition's offsets do not exist, and since when, so that the next term goes
        on counting."""
        state = self.states.get(partition)
        if state is None:  # the term ended while another partition's note was written
            return
        noted, named = state.gone_since_ms, state.topics()
        again = [one for one in noted if one not in named or self.topics.identity(one)]
        gone = [one for one in named if one not in noted and self.topics.is_gone(one)]
        now_ms = self.now_ms()
        news = [*(GoneEntry(one, None) for one in again), *(GoneEntry(one, now_ms) for one in gone)]
        at_once = max(1, min(_REMOVED_BYTES, self.limits.append_bytes) // _TOPIC_BYTES)
        of_them = [_Part([gone_record(one) for one in part], part) for part in parts(news, at_once)]
        try:
            await _all(self._queued(term, of_them))
        except TermEnded:
            return
        except AppendRefused as error:
            log.info("cannot write down yet which topics are gone: %s; the next check tries again", error)

    def _expired(
        self, group: GroupMetadata, offsets: Mapping[tuple[str, int], CommittedOffset], retention: Retention
    ) -> list[tuple[str, int]]:
        """Returns the partitions whose offsets are to be deleted: those of topics that were deleted (ADR 42), and as in
        Kafka (KIP-211) those that have expired. In a group with members, only topics that nobody subscribes to expire.
        The state timestamp of an empty group is the time at which it became empty."""
        now_ms, gone_since_ms = self.now_ms(), self.states[partition_of(group.group_id)].gone_since_ms
        subscribed = frozenset() if group.state is ClassicState.EMPTY else all_subscribed_topics(group)
        since_ms = group.state_since_ms if group.state is ClassicState.EMPTY else 0

        def is_due(topic: str, one: CommittedOffset) -> bool:
            if self.topics.is_another(topic, one.topic_id):
                return True
            # an offset that is newer than the note shows that the topic has existed meanwhile
            gone_ms = max(gone_since_ms.get(topic, now_ms), one.committed_at_ms)
            if self.topics.is_gone(topic) and is_gone_long_enough(gone_ms, now_ms):
                return True
            if subscribed is None or topic in subscribed:
                return False
            return one.is_expired(now_ms, retention, since_ms)

        return [where for where, one in offsets.items() if is_due(where[0], one)]

    async def _append(self, group_id: str, *parts: _Part, too_large: Error = Error.UNKNOWN_SERVER_ERROR) -> Error:
        """Appends all parts without any other records between them. Returns the outcome, as Kafka's coordinator maps
        it: a client never gets the error of the write itself. After an error, memory is as if nothing had been written,
        except for the parts before the one that was refused."""
        term = self.terms.get(partition_of(group_id))
        if term is None:
            return Error.NOT_COORDINATOR
        try:
            appends = self._queued(term, parts)
            if len(appends) == 1:  # as most calls
                await appends[0]
            else:
                await _all(appends)
        except TermEnded:
            return Error.NOT_COORDINATOR
        except AppendRefused as error:
            if not error.is_too_large:
                return Error.COORDINATOR_NOT_AVAILABLE
            log.warning("refused a request whose record is too large group=%s reason=%s", group_id, error)
            return too_large
        return Error.NONE

    def _queued(self, term: LogTerm, parts: Iterable[_Part]) -> list[asyncio.Future[None]]:
        """Queues all parts. What each of them says is replayed as soon as it is durable."""
        replay = self.states[term.partition].replay_all
        return term.append_in_order([(part.records, partial(replay, part.says)) for part in parts if part.records])

    def close(self) -> None:
        for partition in list(self.terms):
            self.resign(partition, "the instance is stopping")


async def _proven(term: LogTerm) -> Error:
    try:
        await term.prove()
    except TermEnded:
        return Error.NOT_COORDINATOR
    except NotProven as error:
        log.info("cannot answer from memory: %s", error)
        return Error.COORDINATOR_NOT_AVAILABLE
    return Error.NONE


async def _all(appends: list[asyncio.Future[None]]) -> None:
    """Waits until each append has its outcome, and raises the first error, if there is one."""
    for outcome in await asyncio.gather(*appends, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


class _Part(NamedTuple):
    """The records for one batch, and what they say, which is replayed once they are durable."""

    records: list[LogRecord]
    says: Sequence[Entry | _Offsets] = ()


class _Offsets(NamedTuple):
    """What the records of several partitions say, for speed: ``None`` stands for a removed offset."""

    group: str
    values: Mapping[tuple[str, int], CommittedOffset | None]


def _offsets_part(group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset | None]) -> _Part:
    return _Part(offset_records(group_id, offsets), [_Offsets(group_id, offsets)])


class PartitionState:
    """What one partition of the log says."""

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self.groups: dict[str, Group] = {}
        """All groups. Those that only have offsets are empty. While a group is served it runs ahead of the log, and is
        itself told when a change of its own is durable."""
        self.offsets: dict[str, Offsets] = {}
        self.sessions = Sessions()
        """What remains of the sessions of earlier terms' members."""
        self.gone_since_ms: dict[str, int] = {}
        """When it was first found that a topic does not exist, in ms since 1970."""
        self.records = 0
        """How many records were loaded."""
        self._is_served = False

    def add(self, group_id: str) -> Group:
        """Returns the group, creating it if necessary."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = Group(GroupMetadata(group_id), self._limits)
        return found

    def topics(self) -> set[str]:
        """Returns the topics that there are offsets of."""
        return {topic for offsets in self.offsets.values() for topic, _ in offsets}

    def replay_all(self, entries: Iterable[Entry | _Offsets]) -> None:
        for entry in entries:
            self.replay(entry)

    def replay(self, entry: Entry | _Offsets) -> None:
        """Takes over what a durable record says. Every change that a load must find goes through here."""
        match entry:
            case _Offsets(group, values):
                self._replay_offsets(group, values)
            case OffsetEntry(group, topic, partition, value):
                self._replay_offsets(group, {(topic, partition): value})
            case GroupEntry(group, None):
                self.groups.pop(group, None)
            case GroupEntry(group, GroupMetadata() as written):
                if not self._is_served:
                    self.groups[group] = Group(written, self._limits)
                elif found := self.groups.get(group):
                    found.emptied(written.generation_id, written.topic_ids)
            case Heard():
                if not self._is_served:  # what this term notes itself is for the next
                    self.sessions.noted(entry)
            case GoneEntry(topic, None):
                self.gone_since_ms.pop(topic, None)
            case GoneEntry(topic, int() as since_ms):
                self.gone_since_ms[topic] = since_ms

    def _replay_offsets(self, group: str, values: Mapping[tuple[str, int], CommittedOffset | None]) -> None:
        offsets = self.offsets.setdefault(group, {})
        for where, value in values.items():
            if value is None:
                offsets.pop(where, None)
            else:
                offsets[where] = value
        if not offsets:
            del self.offsets[group]

    def serve(self, now: float) -> None:
        """Ends the load: all members are silent from now on, for what remains of their sessions."""
        self._is_served = True
        for group_id in self.offsets:
            self.add(group_id)
        for group_id, group in self.groups.items():
            for member in group.metadata.members.values():
                left_s = self.sessions.left_s(
                    *(group_id, member.member_id, member.session_timeout_s, self._limits.least_session_s)
                )
                member.expires_at, member.is_heard = now + left_s, False


async def _load(load: LogLoad, end: int | None, state: PartitionState) -> None:
    async for of_term, records in load.up_to(end):
        if records:
            state.sessions.passed(of_term, records[-1].timestamp_ms)
        for record in records:
            state.records += 1
            try:
                state.replay(read_record(record))
            except BadMessage as error:
                log.warning(
                    "ignored an unreadable record in the groups log partition=%d reason=%s", load.partition, error
                )
            if state.records % _READ_AT_ONCE == 0:
                await asyncio.sleep(0)  # lets other tasks run
