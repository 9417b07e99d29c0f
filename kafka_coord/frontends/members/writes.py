"""Reads and writes for members in few requests: writes their commits, acknowledgements and departures to ZooKeeper, and
reads stored offsets in batches, so that one large request does not delay the others."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kafka_coord.channel.offset_details import details_ops, details_paths, write_details
from kafka_coord.channel.operations import MAX_REQUEST_BYTES, Registration, acknowledge_op, leave_ops, offset_op
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import (
    Fenced,
    KafkaCoordError,
    MalformedValue,
    MembershipLost,
    MultiFailed,
    NoNode,
    StoreError,
    StoreUnavailable,
)
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.machine.instructions import WriteMember
from kafka_coord.frontends.members.machine.stimuli import MemberId, MemberWritten, Trouble
from kafka_coord.model import TopicPartition
from kafka_coord.model.member import Unresolved
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import packed, unit_at_fault
from kafka_coord.zk.store import GetData, Node, Op, Store, op_size

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class MemberZnodes:
    """What is known about a member's znodes. ``existing_offsets`` contains the partitions whose offset znodes exist,
    and ``existing_details`` the paths of the details that exist."""

    registration: Registration
    channel: ConsumerChannel
    existing_offsets: set[TopicPartition] = field(default_factory=set)
    existing_details: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Write:
    """One write for a member. A leave or a new subscription also carries out the operations in ``also``. If ``alone``
    is set, the write gets a request of its own, because it must first read something, has failed before, or may have
    taken effect already. ``kept`` contains the group's offsets of the partitions whose ends were to be stored."""

    znodes: MemberZnodes
    wanted: WriteMember
    also: tuple[Op, ...] = ()
    alone: bool = False
    kept: Mapping[TopicPartition, int] = field(default_factory=dict)

    def ops(self) -> list[Op]:
        registration, wanted = self.znodes.registration, self.wanted
        ops: list[Op] = list(registration.fence())
        ops += [
            offset_op(registration.group, tp, offset, exists=tp in self.znodes.existing_offsets)
            for tp, offset in sorted(wanted.offsets.items())
        ]
        if wanted.details:
            ops += details_ops(registration.group, wanted.details, self.znodes.existing_details)
        if wanted.acknowledges is not None:
            ops.append(acknowledge_op(registration, wanted.acknowledges))
        if wanted.leaves:
            ops += [*self.also, *leave_ops(registration, wanted.departure)]
        return ops

    def write_alone(self, store: Store) -> frozenset[str]:
        znodes, wanted = self.znodes, self.wanted
        if wanted.subscription is not None:
            znodes.channel.change_subscription(znodes.registration, wanted.subscription, self.also)
            return frozenset()
        if wanted.unresolved is not None:
            self._write_unresolved(wanted.unresolved)
            return frozenset()
        if wanted.acknowledges is not None:
            self._write_details(store)
            return znodes.channel.acknowledge(znodes.registration, wanted.acknowledges, wanted.offsets)
        if wanted.leaves:
            self._write_details(store)
            return znodes.channel.leave(
                znodes.registration, wanted.offsets, for_good=wanted.for_good, departure=wanted.departure
            )
        gone = znodes.channel.commit(znodes.registration, wanted.offsets)
        self._write_details(store)
        return gone

    def _write_unresolved(self, unresolved: Unresolved) -> None:
        registration, channel = self.znodes.registration, self.znodes.channel
        if unresolved.refused is not None:
            channel.refuse(registration, unresolved.refused)
        if unresolved.awaited:
            channel.await_ends(registration, unresolved.awaited)
        if unresolved.ends:
            self.kept = channel.keep_ends(registration, unresolved.ends)
            self.znodes.existing_offsets.update(self.kept)

    def _write_details(self, store: Store) -> None:
        """Writes the details. If ZooKeeper refuses them, only logs the error, so that the rest of the write can
        succeed."""
        registration, details = self.znodes.registration, self.wanted.details
        if not details:
            return
        try:
            write_details(store, registration.group, details, registration)
        except (Fenced, StoreUnavailable):
            raise
        except StoreError as error:
            log.warning("could not write the offset details group=%s: %s", registration.group, error)

    def unknown_paths(self) -> list[str]:
        """Returns the paths of the offset and detail znodes that might not exist yet."""
        group, znodes, wanted = self.znodes.registration.group, self.znodes, self.wanted
        paths = [layout.offset(group, *tp) for tp in wanted.offsets if tp not in znodes.existing_offsets]
        if wanted.details:
            paths += [path for path in details_paths(group, wanted.details) if path not in znodes.existing_details]
        return paths

    def exist(self, paths: set[str]) -> None:
        """Records that the znodes at ``paths`` exist."""
        group, znodes, wanted = self.znodes.registration.group, self.znodes, self.wanted
        znodes.existing_offsets.update(tp for tp in wanted.offsets if layout.offset(group, *tp) in paths)
        if wanted.details:
            znodes.existing_details.update(paths.intersection(details_paths(group, wanted.details)))


class Writer:
    """Packs as many writes into each request as fit. Not thread-safe.

    Each member has at most one write at a time, so a request never contains two writes for the same member, and the
    outcome of a write is known before the member's next write begins.
    """

    def __init__(self, store: FencedStore, report: Callable[[MemberWritten], None]) -> None:
        """``report`` receives the outcome of each write, and may add writes."""
        self._store = store
        self._report = report
        self._writes: dict[MemberId, Write] = {}

    def add(self, write: Write) -> None:
        if write.wanted.member in self._writes:
            raise ValueError(f"two concurrent writes for {write.wanted.member}")
        self._writes[write.wanted.member] = write

    def flush(self) -> None:
        """Writes everything. If it raises :class:`Fenced` or :class:`StoreUnavailable`, the remaining writes stay
        queued. If the outcome of a write is unknown, the next call finds out whether it took effect before it
        retries."""
        while self._writes:
            together = [write for write in self._writes.values() if not write.alone]
            for write in [write for write in self._writes.values() if write.alone]:
                self._write_alone(write)
            self._find_stored(together)
            self._write_together([write for write in together if not write.alone])

    def _find_stored(self, writes: Sequence[Write]) -> None:
        """Finds out, with one request, which offset and detail znodes exist."""
        unknown = [(write, path) for write in writes for path in write.unknown_paths()]
        if not unknown:
            return
        try:
            nodes = self._store.read_many([GetData(path) for _, path in unknown])
        except StoreUnavailable:
            raise
        except StoreError:  # an ACL may forbid some of the reads, so each write does its own
            for write, _ in unknown:
                write.alone = True
            return
        existing = {path for (_, path), node in zip(unknown, nodes, strict=True) if isinstance(node, Node)}
        for write in {id(write): write for write, _ in unknown}.values():
            write.exist(existing)

    def _write_together(self, writes: Sequence[Write]) -> None:
        units = [write.ops() for write in writes]
        left = iter(writes)
        for batch in packed(units, self._store.acl_bytes, MAX_REQUEST_BYTES):
            self._write_batch([(next(left), ops) for ops in batch])

    def _write_batch(self, batch: Sequence[tuple[Write, Sequence[Op]]]) -> None:
        ops = [op for _, unit in batch for op in unit]
        try:
            if len(batch) == 1 and sum(op_size(op, acl=self._store.acl_bytes) for op in ops) > MAX_REQUEST_BYTES:
                batch[0][0].alone = True  # the write must be split
                return
            self._store.multi(ops)
        except Fenced:
            raise
        except MultiFailed as error:
            # nothing was written; retry the failed write alone, and all others together
            batch[unit_at_fault([unit for _, unit in batch], error.index)][0].alone = True
            return
        except StoreError as error:
            for write, _ in batch:
                write.alone = True
            if isinstance(error, StoreUnavailable):
                raise
            return
        for write, _ in batch:
            write.znodes.existing_offsets.update(write.wanted.offsets)
            if write.wanted.details:
                details = details_paths(write.znodes.registration.group, write.wanted.details)
                write.znodes.existing_details.update(details)
            self._done(write)

    def _write_alone(self, write: Write) -> None:
        write.znodes.existing_details.clear()
        try:
            refused = write.write_alone(self._store)
        except (Fenced, StoreUnavailable):
            raise
        except (MembershipLost, NoNode) as error:
            self._done(write, trouble=Trouble.MEMBERSHIP_LOST, reason=str(error))
        except KafkaCoordError as error:
            self._done(write, trouble=Trouble.FAILED, reason=str(error))
        else:
            write.znodes.existing_offsets.update(tp for tp in write.wanted.offsets if tp.topic not in refused)
            self._done(write, refused)

    def _done(
        self, write: Write, refused: frozenset[str] = frozenset(), trouble: Trouble | None = None, reason: str = ""
    ) -> None:
        wanted = write.wanted
        del self._writes[wanted.member]
        self._report(MemberWritten(wanted.member, wanted.number, refused, trouble, reason, write.kept))


T = TypeVar("T")
MAX_READS = 2_000
"""The maximum number of offsets read in one step, for all requests together."""


@dataclass(slots=True, eq=False)
class _OffsetsQuestion(Generic[T]):
    group: str
    wanted: Callable[[], Sequence[TopicPartition]]
    then: Callable[[Mapping[TopicPartition, T] | StoreError | MalformedValue], None]
    left: Sequence[TopicPartition] | None = None
    found: dict[TopicPartition, T] = field(default_factory=dict)


class CommittedReader(Generic[T]):
    """Answers requests for stored offsets in turn. Not thread-safe."""

    def __init__(self, read: Callable[[str, Sequence[TopicPartition]], Mapping[TopicPartition, T]]) -> None:
        """``read`` reads the offsets of a group. It may raise :class:`StoreError` and :class:`MalformedValue`."""
        self._read = read
        self._questions: deque[_OffsetsQuestion[T]] = deque()

    def ask(
        self,
        group: str,
        wanted: Callable[[], Sequence[TopicPartition]],
        then: Callable[[Mapping[TopicPartition, T] | StoreError | MalformedValue], None],
    ) -> None:
        """Queues a request. ``wanted`` is called when the request's turn comes, and returns the partitions. ``then``
        gets the offsets, or the :class:`StoreError` or :class:`MalformedValue` that ``wanted`` or the read raised."""
        self._questions.append(_OffsetsQuestion(group, wanted, then))

    def close(self, why: StoreError) -> None:
        """Answers all queued requests with ``why``."""
        while self._questions:
            self._questions.popleft().then(why)

    def step(self) -> bool:
        """Reads up to :data:`MAX_READS` offsets. Returns whether there is more to read. Passes errors to ``then``."""
        room = MAX_READS
        while self._questions and room > 0:
            question = self._questions.popleft()
            try:
                if question.left is None:
                    question.left = question.wanted()
                part, question.left = question.left[:room], question.left[room:]
                question.found |= self._read(question.group, part)
            except (StoreUnavailable, StoreError, MalformedValue) as error:
                question.then(error)
                continue
            room -= max(1, len(part))
            if question.left:
                self._questions.append(question)
            else:
                question.then(question.found)
        return bool(self._questions)
