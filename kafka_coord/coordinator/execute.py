"""Executes plans: translates their steps into units of ZooKeeper operations, and writes the units in order, each as a
multi that first checks the epoch. And runs what waits for brokers, during one period of leadership."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from kafka_coord.channel.operations import command_op
from kafka_coord.coordinator.pending_requests import answer_op, unanswered_op
from kafka_coord.coordinator.start_offsets import StartOffsets, read_start_offsets, write_ops
from kafka_coord.coordinator.steps import (
    AnswerRequest,
    DeleteOffsets,
    EvictUnledgered,
    ForgetConsumer,
    Plan,
    RemoveGroup,
    SetTarget,
    Step,
    WriteHolds,
    WriteLedgerAndCommands,
    WriteOffsets,
)
from kafka_coord.coordinator.tolerant_reads import tree_below
from kafka_coord.errors import Fenced, MultiFailed, NotEmpty
from kafka_coord.model import (
    NO_OFFSET,
    Command,
    Observation,
    PartitionSet,
    Request,
    StartFetcher,
    StartPoint,
    TopicPartition,
)
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import fits_one, packed, write_fenced
from kafka_coord.zk.store import Check, Create, Delete, GetData, Op, SetData, Store

log = logging.getLogger(__name__)

_LEAVES = {("ids", 2), ("owners", 2), ("channel", 3), ("offsets", 3)}
"""The znodes of a group that never have children, as pairs of name and depth."""


Units = tuple[Sequence[Op], ...]
"""A plan as units of operations, which must be written in order."""
NewCommands = tuple[str, ...]
"""The paths of the command znodes that a write created."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan, the observation it is based on, and the start offset of each partition that it starts.

    ``observation.unreadable`` also lists the offset znodes that keep a partition from being started. ``start.parent``
    records what the members subscribe to, even if the plan starts nothing.
    """

    plan: Plan
    observation: Observation
    start: StartOffsets = field(default_factory=StartOffsets)


class Executor:
    """Writes plans during one period of leadership. A fence makes every write fail once another instance is elected, or
    once the session that won the election has ended."""

    def __init__(self, store: Store, fence: Check, session_id: int | None = None) -> None:
        self._store = store
        self._fence = fence
        self._session_id = session_id

    def prepare(self, decided: Decided, missing: Collection[str] = (), after: Sequence[Op] = ()) -> Units:
        """Returns the plan's steps as units, followed by ``after`` (the history write). Reads any values that the steps
        need. ``missing`` contains the group's persistent znodes that do not exist yet."""
        return (*Translation(self._store, decided, missing).units(), *([after] if after else []))

    def write_prepared(self, units: Units) -> NewCommands:
        """Writes one plan. Returns the paths of the created commands.

        Raises :class:`Fenced` once another instance has been elected, :class:`MultiFailed` if something changed since
        the snapshot, and :class:`StoreUnavailable` if the outcome is unknown. After either of the last two, read the
        group again. The units already written are consistent even without the rest.
        """
        return _new_commands(units, self.write(units))

    def write_together(self, plans: Sequence[Units]) -> list[NewCommands] | None:
        """Writes several plans in a single all-or-nothing request. Returns ``None`` if they do not fit in one request.
        Raises the same errors as :meth:`write_prepared`. After :class:`Fenced` or :class:`MultiFailed`, nothing was
        written."""
        units = [unit for one in plans for unit in one]
        if not fits_one(self._store, units):
            return None
        results = self.write(units)
        created = []
        for one in plans:
            created.append(_new_commands(one, results[: len(one)]))
            results = results[len(one) :]
        return created

    def clear_below_leaf(self, refused: MultiFailed) -> None:
        """If ZooKeeper refused a write because someone created znodes below one of kafka-coord's leaves, removes those
        znodes. No pass reads them, so otherwise every pass would fail the same way."""
        _, _, below = refused.path.removeprefix(f"{layout.GROUPS}/").partition("/")
        kind = below.split("/")
        if isinstance(refused.cause, NotEmpty) and (kind[0], len(kind)) in _LEAVES:
            log.warning("removing foreign znodes below path=%s, because kafka-coord stores nothing there", refused.path)
            self.write(in_parts([Delete(found) for found in reversed(tree_below(self._store, refused.path))]))

    def write(self, units: Sequence[Sequence[Op]]) -> list[tuple[object, ...]]:
        """Writes units unchanged and returns their results. Raises the same errors as :meth:`write_prepared`."""
        if not units:
            return []
        return [tuple(results) for results in write_fenced(self._store, self._fence, units, self._session_id)]


EVERY_S = 1.0
"""How long a :class:`TermThread` waits after an unexpected error, in seconds."""


class TermThread:
    """Repeats ``step`` on a thread of its own during one period of leadership: what waits for brokers must not delay
    anything else.

    ``step`` returns how many seconds to wait until the next step, unless :meth:`wake` is called before. It may raise
    :class:`Fenced` once another instance is elected. ``on_end`` is called once after the last step.
    """

    def __init__(self, name: str, step: Callable[[], float], on_end: Callable[[], None] = lambda: None) -> None:
        self._step, self._on_end = step, on_end
        self.name = name
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._awake = threading.Event()
        self.closed = False

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Makes the next step begin now. Any thread may call this method."""
        self._awake.set()

    def is_awake(self) -> bool:
        return self._awake.is_set()

    def close(self) -> None:
        """Begins no further step. Does not wait for the current one."""
        self.closed = True
        self._awake.set()
        if self._thread.ident is None:
            self._on_end()

    def turn(self) -> float:
        """Runs ``step``, and returns how many seconds to wait. Raises what it raises."""
        self._awake.clear()
        return self._step()

    def _run(self) -> None:
        while not self.closed:
            pause_s = EVERY_S
            try:
                pause_s = self.turn()
            except Fenced:
                break
            except Exception:
                log.exception("%s failed (this is a bug); trying again", self.name)
            if not self.closed:
                self._awake.wait(pause_s)
        self._on_end()


def _new_commands(units: Units, results: Sequence[Sequence[object]]) -> NewCommands:
    return tuple(
        result
        for unit, unit_results in zip(units, results, strict=True)
        for op, result in zip(unit, unit_results, strict=True)
        if isinstance(op, Create) and op.sequence and isinstance(result, str)
    )


MAX_UNIT_BYTES = 500_000
"""The maximum size of a unit that need not be atomic, in bytes. Larger units are split."""


class Translation:
    """Turns one plan into units of operations. Reads any values that these operations need, other than the start
    offsets.

    Translates every step completely or fails: no part of a plan may be left out.
    """

    def __init__(self, store: Store, decided: Decided, missing: Collection[str]) -> None:
        self._store = store
        self._plan = decided.plan
        self._group = decided.plan.group
        self._topics, self._members = decided.observation.topics, decided.observation.members
        self._missing = set(missing)
        self._start = decided.start
        self._prepare = dict(self._start.prepare)
        self._remove = dict(self._start.remove)
        self._offsets_parent = list(self._start.parent)

    def units(self) -> list[list[Op]]:
        """Returns the units in the order in which they must be written.

        The first unit checks that the plan's requests have not been answered since they were read: an earlier write may
        have succeeded although ZooKeeper's reply was lost. The last unit that carries out a request also contains the
        response to it, if that fits. If only some units are written, the request stays unanswered, and the next pass
        carries it out from the beginning.
        """
        requests = [step.request for step in self._plan.steps if isinstance(step, AnswerRequest)]
        units: list[list[Op]] = [[unanswered_op(request) for request in requests]] if requests else []
        if not self._start.offsets:  # otherwise, the first start writes it
            units += in_parts(self._offsets_parent, self._store.acl_bytes)
        for step in self._plan.steps:
            added = [unit for unit in self._units(step) if unit]
            if isinstance(step, AnswerRequest) and fits_one(self._store, [units[-1], *added]):
                units[-1] += added[0]
            else:
                units += added
        return units

    def _units(self, step: Step) -> list[list[Op]]:
        group = self._group
        match step:
            case SetTarget(assignment, version, _):
                stamped = structs.replace(assignment, timestamp_ms=int(self._store.clock.time() * 1000))
                path, data = layout.assignment(group), stamped.to_bytes()
                return [[Create(path, data) if version is None else SetData(path, data, version)]]
            case WriteLedgerAndCommands():
                return self._ledger(step)
            case ForgetConsumer():
                return self._forget(step)
            case WriteHolds(holds, left):
                path = layout.held(group)
                if not left:
                    return [[Delete(path, holds.znode_version)]]
                data = structs.replace(holds, consumers=left).to_bytes()
                return [[SetData(path, data, holds.znode_version)]]
            case EvictUnledgered(consumer):
                return [[Delete(layout.registration(group, consumer))]]
            case WriteOffsets(request):
                return in_parts(self._reset(request), self._store.acl_bytes)
            case DeleteOffsets(request):
                return in_parts([Delete(layout.offset(group, t, p)) for t, p in self._existing(request.partitions)])
            case AnswerRequest(request, result, message):
                return [[answer_op(request, result, message)]]
            case RemoveGroup(without_offsets):
                return in_parts(self._removal(without_offsets=without_offsets))

    def _ledger(self, step: WriteLedgerAndCommands) -> list[list[Op]]:
        """Returns the units of the step. The last unit contains the ledger and its commands. The operations before it,
        mostly deletions of old commands and offsets, may be split: it does no harm if only some of them are written,
        because no consumer carries out the commands of a dead incarnation or uses the offsets of a deleted topic."""
        group, consumer = self._group, step.ledger.consumer
        ledger, commands, parents = step.ledger, list[Command](), list[Op]()
        before: list[Op] = [Delete(layout.command(group, consumer, name)) for name in step.drop_commands]
        for command in step.commands:
            if isinstance(command, StartFetcher):
                starts = {
                    tp: StartPoint(self._start.offsets[tp], point.stream, tp in self._start.later)
                    for tp, point in command.starts.items()
                }
                commands.append(structs.replace(command, starts=starts))
                before += self._offsets_parent
                self._offsets_parent = []
                for topic in command.partitions.topics:
                    before += self._remove.pop(topic, ())
                    before += self._prepare.pop(topic, ())
            else:
                commands.append(command)
        for parent in (layout.owners(group), layout.channels(group), layout.channel(group, consumer)):
            if parent in self._missing:
                self._missing.discard(parent)
                parents.append(Create(parent))
        path, data = layout.ledger(group, consumer), ledger.to_bytes()
        unit = [
            *parents,
            Create(path, data) if step.znode_version is None else SetData(path, data, step.znode_version),
            *(command_op(group, consumer, command) for command in commands),
            *([Delete(layout.registration(group, consumer))] if step.evict else []),
        ]
        return [*in_parts(before, self._store.acl_bytes), unit]

    def _forget(self, step: ForgetConsumer) -> list[list[Op]]:
        commands: list[Op] = [Delete(layout.command(self._group, step.consumer, name)) for name in step.drop_commands]
        ops: list[Op] = []
        if step.ledger_version is not None:
            ops.append(Delete(layout.ledger(self._group, step.consumer), step.ledger_version))
        if step.channel:
            ops.append(Delete(layout.channel(self._group, step.consumer)))
        if step.refusals:
            ops.append(Delete(layout.refusals(self._group, step.consumer)))
        return [*in_parts(commands), ops]

    def _reset(self, request: Request) -> list[Op]:
        partitions = PartitionSet.of(request.offsets)
        start = read_start_offsets(self._store, self._group, partitions, self._topics, self._members)
        named = {topic: {str(number) for number in numbers} for topic, numbers in partitions.by_topic()}
        parents = [
            op
            for topic in partitions.topics
            if start.unclaimed.get(topic, frozenset())
            <= named[topic]  # otherwise, the write would also claim offsets that it does not set
            for op in (*start.remove.get(topic, ()), *start.prepare.get(topic, ()))
        ]
        existing = [tp for tp, offset in start.offsets.items() if offset != NO_OFFSET]
        unreadable = self._existing(PartitionSet.of(start.unreadable))
        return [*start.parent, *parents, *write_ops(self._group, request.offsets, [*existing, *unreadable])]

    def _existing(self, partitions: PartitionSet) -> list[TopicPartition]:
        found = self._store.read_many([GetData(layout.offset(self._group, t, p)) for t, p in partitions])
        return [tp for tp, node in zip(partitions, found, strict=True) if node is not None]

    def _removal(self, *, without_offsets: bool) -> list[Op]:
        """Returns the operations that delete the group's tree: first ``ids``, and then all other znodes, leaves first.
        If a consumer has registered since the snapshot, deleting ``ids`` fails, so nothing is removed. With
        ``without_offsets``, an offset that was committed since is not deleted, so the deletion of its parent fails."""
        group = layout.group(self._group)
        tree = [group, *tree_below(self._store, group)]
        if without_offsets:
            kept = f"{layout.offsets(self._group)}/"
            tree = [path for path in tree if not (path.startswith(kept) and "/" in path.removeprefix(kept))]
        ids = layout.ids(self._group)
        leaves_first = [path for path in reversed(tree) if path != ids]
        return [Delete(path) for path in ([ids] if ids in tree else []) + leaves_first]


def in_parts(ops: Sequence[Op], acl: int = 64) -> list[list[Op]]:
    """Returns ``ops``, in order, as units that each fit in a request. Use it only for operations that need not take
    effect together. ``acl`` is the size in bytes of the ACL that each create carries."""
    batches = packed(([op] for op in ops), acl, MAX_UNIT_BYTES)
    return [[op for unit in batch for op in unit] for batch in batches]
