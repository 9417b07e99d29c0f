"""What socket consumers settle, written for many of them at once: commits, acknowledgements, leaving."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_coord.channel.operations import MAX_REQUEST_BYTES, acknowledge_op, offset_op
from kafka_coord.errors import Fenced, KafkaCoordError, MultiFailed, StoreError, StoreUnavailable
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.members import SocketMember
from kafka_coord.model import CommandId, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.fenced import packed
from kafka_coord.zk.sizes import op_size
from kafka_coord.zk.store import Delete, GetData, Node, Op

Outcome = frozenset[str] | KafkaCoordError
"""The topics whose offsets could not be written any more, or why nothing was."""


@dataclass(slots=True, eq=False)
class Write:
    """Offsets of one member, and what is settled with them: a command's acknowledgement, the end of its registration
    (with what ``also`` is written then), or nothing. ``then`` hears the outcome, once."""

    member: SocketMember
    offsets: Mapping[TopicPartition, int]
    then: Callable[[Outcome], None]
    acknowledges: CommandId | None = None
    leaves: bool = False
    also: tuple[Op, ...] = ()
    alone: bool = False
    """It failed, or may have taken effect: it is written by itself, by the rules of the ZooKeeper channel."""

    def ops(self) -> list[Op]:
        member = self.member
        registration = member.registration
        ops: list[Op] = list(registration.fence())
        ops += [
            offset_op(registration.group, tp, offset, exists=tp in member.stored) for tp, offset in self.offsets.items()
        ]
        if self.acknowledges is not None:
            ops.append(acknowledge_op(registration, self.acknowledges))
        if self.leaves:
            ops += [*self.also, Delete(registration.path)]
        return ops

    def write_alone(self) -> frozenset[str]:
        member = self.member
        if self.acknowledges is not None:
            return member.channel.acknowledge(member.registration, self.acknowledges, self.offsets)
        if self.leaves:
            return member.channel.leave(member.registration, self.offsets, self.also)
        return member.channel.commit(member.registration, self.offsets)


class Writer:
    """Writes as many to a request as fit, and of each member in the order in which it was asked. One thread.

    A request never holds two writes of one member. So a write whose outcome is unknown is repeated before anything
    later of that member is written: no repetition takes back what a later write, or the next owner after it, stored.
    """

    def __init__(self, store: FencedStore) -> None:
        self._store = store
        self._queues: dict[SocketMember, deque[Write]] = {}

    def add(self, write: Write) -> None:
        self._queues.setdefault(write.member, deque()).append(write)

    def queued(self, member: SocketMember) -> Iterable[Write]:
        """What is still to be written for a member, in order."""
        return self._queues.get(member, ())

    def flush(self) -> None:
        """Writes everything. Raises :class:`Fenced`, and :class:`StoreUnavailable`: what is left stays for the next
        time, and what may have been written already is then resolved rather than written twice."""
        while self._queues:
            together = [queue[0] for queue in self._queues.values() if not queue[0].alone]
            for write in [queue[0] for queue in self._queues.values() if queue[0].alone]:
                self._write_alone(write)
            self._find_stored(together)
            self._write_together([write for write in together if not write.alone])

    def _find_stored(self, writes: Sequence[Write]) -> None:
        """Which offset znodes exist, asked for once for all that nobody knows of."""
        unknown = [(write, tp) for write in writes for tp in write.offsets if tp not in write.member.stored]
        if not unknown:
            return
        paths = [layout.offset(write.member.registration.group, tp.topic, tp.partition) for write, tp in unknown]
        try:
            nodes = self._store.read_many([GetData(path) for path in paths])
        except StoreUnavailable:
            raise
        except StoreError:  # somebody's may not be read: each finds out by itself
            for write, _ in unknown:
                write.alone = True
            return
        for (write, tp), node in zip(unknown, nodes, strict=True):
            if isinstance(node, Node):
                write.member.stored.add(tp)

    def _write_together(self, writes: Sequence[Write]) -> None:
        units = [write.ops() for write in writes]
        left = iter(writes)
        for batch in packed(units, self._store.acl_bytes, MAX_REQUEST_BYTES):
            self._write_batch([(next(left), ops) for ops in batch])

    def _write_batch(self, batch: Sequence[tuple[Write, Sequence[Op]]]) -> None:
        ops = [op for _, unit in batch for op in unit]
        try:
            if len(batch) == 1 and sum(op_size(op, acl=self._store.acl_bytes) for op in ops) > MAX_REQUEST_BYTES:
                batch[0][0].alone = True  # it is divided there
                return
            self._store.multi(ops)
        except Fenced:
            raise
        except MultiFailed as error:
            _at_fault(batch, error.index).alone = True  # nothing was written: the others again, and this one by itself
            return
        except StoreError as error:
            for write, _ in batch:
                write.alone = True
            if isinstance(error, StoreUnavailable):
                raise
            return
        for write, _ in batch:
            write.member.stored.update(write.offsets)
            self._done(write, frozenset())

    def _write_alone(self, write: Write) -> None:
        outcome: Outcome
        try:
            outcome = write.write_alone()
        except (Fenced, StoreUnavailable):
            raise
        except KafkaCoordError as error:
            outcome = error
        else:
            write.member.stored.update(tp for tp in write.offsets if tp.topic not in outcome)
        self._done(write, outcome)

    def _done(self, write: Write, outcome: Outcome) -> None:
        queue = self._queues[write.member]
        queue.popleft()
        if not queue:
            del self._queues[write.member]
        write.then(outcome)


def _at_fault(batch: Sequence[tuple[Write, Sequence[Op]]], index: int) -> Write:
    for write, ops in batch:
        index -= len(ops)
        if index < 0:
            return write
    raise IndexError("a multi failed at an operation it does not have")
