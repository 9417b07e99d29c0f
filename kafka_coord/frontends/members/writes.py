"""Writes commits, acknowledgements and leaves of members without a ZooKeeper session, many in one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kafka_coord.channel.operations import MAX_REQUEST_BYTES, Registration, acknowledge_op, offset_op
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import (
    Fenced,
    KafkaCoordError,
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
from kafka_coord.zk import layout
from kafka_coord.zk.epoch_fence import packed
from kafka_coord.zk.sizes import op_size
from kafka_coord.zk.store import Delete, GetData, Node, Op


@dataclass(slots=True, eq=False)
class MemberZnodes:
    """The facts needed to write for a member. ``existing_offsets``: partitions whose offset znodes are
    known to exist."""

    registration: Registration
    channel: ConsumerChannel
    existing_offsets: set[TopicPartition] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Write:
    """One write of a member. A leave and another subscription also write ``also``. A write is ``alone`` if it has to
    read first, and after it failed or may have taken effect: it then gets its own request, by the rules of the
    ZooKeeper channel."""

    znodes: MemberZnodes
    wanted: WriteMember
    also: tuple[Op, ...] = ()
    alone: bool = False

    def ops(self) -> list[Op]:
        registration, wanted = self.znodes.registration, self.wanted
        ops: list[Op] = list(registration.fence())
        ops += [
            offset_op(registration.group, tp, offset, exists=tp in self.znodes.existing_offsets)
            for tp, offset in wanted.offsets.items()
        ]
        if wanted.acknowledges is not None:
            ops.append(acknowledge_op(registration, wanted.acknowledges))
        if wanted.leaves:
            ops += [*self.also, Delete(registration.path)]
        return ops

    def write_alone(self) -> frozenset[str]:
        znodes, wanted = self.znodes, self.wanted
        if wanted.subscription is not None:
            znodes.channel.change_subscription(znodes.registration, wanted.subscription, self.also)
            return frozenset()
        if wanted.acknowledges is not None:
            return znodes.channel.acknowledge(znodes.registration, wanted.acknowledges, wanted.offsets)
        if wanted.leaves:
            return znodes.channel.leave(znodes.registration, wanted.offsets, self.also)
        return znodes.channel.commit(znodes.registration, wanted.offsets)


class Writer:
    """Puts as many writes into each request as fit. One thread.

    It receives one write of a member at a time. So a request never holds two writes of one member, and a write with an
    unknown outcome is resolved before any later write of that member.
    """

    def __init__(self, store: FencedStore, report: Callable[[MemberWritten], None]) -> None:
        """``report`` receives the outcome of each write, and may add writes."""
        self._store = store
        self._report = report
        self._writes: dict[MemberId, Write] = {}

    def add(self, write: Write) -> None:
        if write.wanted.member in self._writes:
            raise ValueError(f"two concurrent writes of {write.wanted.member}")
        self._writes[write.wanted.member] = write

    def flush(self) -> None:
        """Writes everything. After :class:`Fenced` or :class:`StoreUnavailable` the remaining writes stay queued. The
        next call resolves writes with an unknown outcome instead of repeating them."""
        while self._writes:
            together = [write for write in self._writes.values() if not write.alone]
            for write in [write for write in self._writes.values() if write.alone]:
                self._write_alone(write)
            self._find_stored(together)
            self._write_together([write for write in together if not write.alone])

    def _find_stored(self, writes: Sequence[Write]) -> None:
        """Finds out which offset znodes exist, in one read for all that are not known yet."""
        unknown = [
            (write, tp) for write in writes for tp in write.wanted.offsets if tp not in write.znodes.existing_offsets
        ]
        if not unknown:
            return
        paths = [layout.offset(write.znodes.registration.group, tp.topic, tp.partition) for write, tp in unknown]
        try:
            nodes = self._store.read_many([GetData(path) for path in paths])
        except StoreUnavailable:
            raise
        except StoreError:  # some znodes may not be read: each write finds out by itself
            for write, _ in unknown:
                write.alone = True
            return
        for (write, tp), node in zip(unknown, nodes, strict=True):
            if isinstance(node, Node):
                write.znodes.existing_offsets.add(tp)

    def _write_together(self, writes: Sequence[Write]) -> None:
        units = [write.ops() for write in writes]
        left = iter(writes)
        for batch in packed(units, self._store.acl_bytes, MAX_REQUEST_BYTES):
            self._write_batch([(next(left), ops) for ops in batch])

    def _write_batch(self, batch: Sequence[tuple[Write, Sequence[Op]]]) -> None:
        ops = [op for _, unit in batch for op in unit]
        try:
            if len(batch) == 1 and sum(op_size(op, acl=self._store.acl_bytes) for op in ops) > MAX_REQUEST_BYTES:
                batch[0][0].alone = True  # that path splits it
                return
            self._store.multi(ops)
        except Fenced:
            raise
        except MultiFailed as error:
            _at_fault(
                batch, error.index
            ).alone = True  # nothing was written: retry the others together, and this one alone
            return
        except StoreError as error:
            for write, _ in batch:
                write.alone = True
            if isinstance(error, StoreUnavailable):
                raise
            return
        for write, _ in batch:
            write.znodes.existing_offsets.update(write.wanted.offsets)
            self._done(write)

    def _write_alone(self, write: Write) -> None:
        try:
            refused = write.write_alone()
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
        self._report(MemberWritten(wanted.member, wanted.number, refused, trouble, reason))


def _at_fault(batch: Sequence[tuple[Write, Sequence[Op]]], index: int) -> Write:
    for write, ops in batch:
        index -= len(ops)
        if index < 0:
            return write
    raise IndexError("ZooKeeper named an operation that the multi does not have")
