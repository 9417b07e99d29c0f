"""What socket consumers settle, written for many of them at once: commits, acknowledgements, leaving."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kafka_coord.channel.operations import MAX_REQUEST_BYTES, acknowledge_op, offset_op
from kafka_coord.errors import Fenced, KafkaCoordError, MultiFailed, StoreUnavailable
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.members import SocketMember
from kafka_coord.model import CommandId, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.sizes import op_size
from kafka_coord.zk.store import Delete, GetData, Node, Op

log = logging.getLogger(__name__)

MAX_OPS = 1_000
"""Of one request: longer ones are no faster, and hold up everyone else's writes."""

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
    """Writes in the order in which they were asked for, as many to a request as fit. One thread."""

    def __init__(self, store: FencedStore) -> None:
        self._store = store
        self._queue: deque[Write] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, write: Write) -> None:
        self._queue.append(write)

    def flush(self) -> None:
        """Writes everything. Raises :class:`Fenced`, and :class:`StoreUnavailable`: what is left stays for the next
        time, and what may have been written already is then resolved rather than written twice."""
        self._find_stored()
        while self._queue:
            if self._queue[0].alone:
                self._write_alone(self._queue[0])
                self._queue.popleft()
                continue
            batch = self._next_batch()
            if batch:
                self._write_batch(batch)
            else:
                self._queue[0].alone = True

    def _find_stored(self) -> None:
        """Which offset znodes exist, asked for once for all that nobody knows of."""
        unknown = [
            (write.member, tp) for write in self._queue if not write.alone for tp in write.offsets
            if tp not in write.member.stored
        ]  # fmt: skip
        if not unknown:
            return
        nodes = self._store.read_many(
            [GetData(layout.offset(member.registration.group, tp.topic, tp.partition)) for member, tp in unknown]
        )
        for (member, tp), node in zip(unknown, nodes, strict=True):
            if isinstance(node, Node):
                member.stored.add(tp)

    def _next_batch(self) -> list[tuple[Write, list[Op]]]:
        batch: list[tuple[Write, list[Op]]] = []
        count = size = 0
        for write in self._queue:
            if write.alone:
                break
            ops = write.ops()
            ops_size = sum(op_size(op, acl=self._store.acl_bytes) for op in ops)
            if size + ops_size > MAX_REQUEST_BYTES or (batch and count + len(ops) > MAX_OPS):
                break
            batch.append((write, ops))
            count, size = count + len(ops), size + ops_size
        return batch

    def _write_batch(self, batch: list[tuple[Write, list[Op]]]) -> None:
        try:
            self._store.multi([op for _, ops in batch for op in ops])
        except Fenced:
            raise
        except MultiFailed as error:
            _at_fault(batch, error.index).alone = True  # nothing was written: the others again, and this one by itself
            return
        except StoreUnavailable:
            for write, _ in batch:
                write.alone = True
            raise
        for write, _ in batch:
            self._queue.popleft()
            write.member.stored.update(write.offsets)
            write.then(frozenset())

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
        write.then(outcome)


def _at_fault(batch: list[tuple[Write, list[Op]]], index: int) -> Write:
    for write, ops in batch:
        index -= len(ops)
        if index < 0:
            return write
    raise IndexError("a multi failed at an operation it does not have")
