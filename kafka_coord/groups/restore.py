"""Restores a coordination tree from a backup (ADR 58): what is written into the new tree, what a dry run says about it,
and the writes.

Nothing that the old ensemble counted is compared in the new tree. A topic keeps only its id: one that has none is
*unknown*, and nothing of it is started until an operator says where. What members held is *held*, until the same
process registers or the longest session timeout has passed. Registrations, tokens and commands are not restored.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_coord.coordinator.tolerant_reads import tree_below
from kafka_coord.errors import MalformedValue, MultiFailed, NodeExists, RequestRefused
from kafka_coord.groups.backup import TAKEN, Backup, BackupHeader, Znodes, is_offset, ledgers_in, place_of
from kafka_coord.model import (
    NO_PARTITIONS,
    Hold,
    Holds,
    Ledger,
    PartitionSet,
    TopicOfOffsets,
    TopicPartition,
    is_topic_id,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.member import awaited_partition
from kafka_coord.model.offsets import LogRange
from kafka_coord.model.operations import Restored
from kafka_coord.model.sequences import parts
from kafka_coord.settings import host_and_port
from kafka_coord.zk import layout
from kafka_coord.zk.election import decode_epoch
from kafka_coord.zk.fencing import write_fenced
from kafka_coord.zk.instance import read_restored
from kafka_coord.zk.root import ClusterRecord, make_tree, read_cluster_record
from kafka_coord.zk.store import Check, Create, GetData, Node, Op, SetData, Store

UNKNOWN = "unknown"
"""Stands for the identity of a topic whose id is not in the backup: no topic has it, so nothing is started."""
MAKING = "restore"
LEAST_HOLD_MS = 40_000
"""The longest session timeout that a ZooKeeper server grants by default: a member that registered after the backup was
made may have that one."""
_GOES_ON = (layout.COORDINATOR_EPOCH, f"{layout.LOG_PARTITIONS}/")
"""What is written again once the tree is claimed: a restore that was interrupted after that leaves it as it is."""
_ANSWER_S = 1.0
MAX_OFFSET = (1 << 63) - 1
_READS_AT_ONCE = 50_000


class GroupToRestore(NamedTuple):
    """What the restore makes of one group. ``older`` are the offsets below the log's start, and ``beyond`` those beyond
    its end. ``unknown`` are the topics without an id."""

    group: str
    znodes: Znodes
    offsets: Mapping[TopicPartition, int]
    held: PartitionSet
    unknown: tuple[str, ...]
    older: PartitionSet = NO_PARTITIONS
    beyond: PartitionSet = NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Everything that a restore writes, parents first. ``wait_ms`` is how long nothing at all may be started, because
    the backup does not say who held what at the end."""

    header: BackupHeader
    checksum: str
    alone: Znodes
    groups: Sequence[GroupToRestore]
    epoch: int
    generation: int
    wait_ms: int
    notes: tuple[str, ...] = field(default=())

    def znodes(self) -> Iterator[tuple[str, bytes]]:
        for path in layout.PERSISTENT_ROOTS:
            yield path, b""
        made = set(layout.PERSISTENT_ROOTS)
        everything = [self.alone, {layout.COORDINATOR_EPOCH: str(self.epoch).encode()}]
        for path, data in (
            one for some in (*everything, *(group.znodes for group in self.groups)) for one in some.items()
        ):
            segments = path.split("/")
            for parent in ("/".join(segments[:length]) for length in range(2, len(segments))):
                if parent not in made:
                    made.add(parent)
                    yield parent, b""
            made.add(path)
            yield path, data


Ranges = Callable[[PartitionSet], Mapping[TopicPartition, LogRange]]
"""Returns the logs that are known."""


def plan_restore(
    backup: Backup, checksum: str, ranges: Ranges = lambda _partitions: {}, *, generation: int = 0
) -> RestorePlan:
    """Decides what is written. ``generation`` is that of the newest tree that the groups log knows."""
    for_ms = max(LEAST_HOLD_MS, backup.header.longest_session_ms)
    notes, holds, is_still = list[str](), dict[str, Holds](), backup.header.is_still
    for name, znodes in backup.groups.items():
        try:
            holds[name] = _holds(name, znodes, for_ms)
        except MalformedValue as error:
            is_still = False
            notes.append(f"what a member held cannot be read: {error}")
    groups = [_group(name, znodes, holds.get(name) if is_still else None) for name, znodes in backup.groups.items()]
    known = ranges(PartitionSet.of({tp for one in groups for tp in one.offsets}))
    stored = decode_epoch(backup.alone.get(layout.COORDINATOR_EPOCH, b"0")) or 0
    return RestorePlan(
        backup.header,
        checksum,
        {path: _alone(path, data) for path, data in backup.alone.items() if path != layout.COORDINATOR_EPOCH},
        [_compared(one, known) for one in groups],
        stored,
        max(backup.header.generation, generation) + 1,
        0 if is_still else for_ms,
        tuple(notes),
    )


def _alone(path: str, data: bytes) -> bytes:
    """Returns the value of a znode of no group. A term of the groups log keeps its number, and nobody serves it."""
    if not path.startswith(f"{layout.LOG_PARTITIONS}/"):
        return data
    try:
        term = fields.number(fields.load(data, path), "term", path, 0)
    except MalformedValue:
        term = 0  # the log knows a newer one, and the next claim goes on from there
    return fields.dump({"version": fields.VERSION, "term": term})


def _group(name: str, znodes: Znodes, holds: Holds | None) -> GroupToRestore:
    made: dict[str, bytes] = {}
    offsets, unknown = dict[TopicPartition, int](), list[str]()
    details = f"{layout.details(name)}/"
    # a detail counts only if it was written after its offset
    for path, stored in sorted(znodes.items(), key=lambda one: (one[0].startswith(details), one[0].count("/"), one[0])):
        kind, *rest = path.split("/")[4:] or [""]
        if path == layout.held(name) or kind == "owners":
            continue
        if kind == "unresolved" and awaited_partition(rest[-1]) is None:
            continue  # which topics an incarnation may not read, it says again
        data = stored
        if kind == "offsets" and len(rest) == 1:
            found = TopicOfOffsets.read(stored)
            if not is_topic_id(found.identity):
                unknown.append(rest[0])
                data = found._replace(identity=UNKNOWN).data
        if is_offset(path):
            number, offset = (fields.decimal(one, MAX_OFFSET) for one in (rest[1], data.decode(errors="replace")))
            if number is not None and offset is not None:  # the coordinator names one that it cannot read
                offsets[TopicPartition(rest[0], number)] = offset
        made[path] = data
    held = NO_PARTITIONS
    if holds is not None and holds.consumers:
        held = PartitionSet.union(one.partitions for one in holds.consumers.values())
        made[layout.held(name)] = _fitting(holds, held)
    return GroupToRestore(name, made, offsets, held, tuple(unknown))


def _holds(group: str, znodes: Znodes, for_ms: int) -> Holds:
    """Returns what the group's members held: by their ledgers, and by what was held since an earlier restore."""
    path = layout.held(group)
    earlier = Holds.from_bytes(znodes[path], path).consumers if path in znodes else {}
    return Holds(for_ms, held_in_the_end(ledgers_in(znodes), earlier))


def held_in_the_end(ledgers: Iterable[Ledger], earlier: Mapping[str, Hold]) -> dict[str, Hold]:
    """Returns what is held once a tree with these ledgers is lost, in which ``earlier`` was held still."""
    holds = dict(earlier)
    for ledger in ledgers:
        if ledger.held:  # of two processes of one name, neither ends the hold
            before = earlier.get(ledger.consumer)
            now = Hold(ledger.held, ledger.process)
            holds[ledger.consumer] = now if before is None else Hold(before.partitions | now.partitions)
    return holds


def _fitting(holds: Holds, held: PartitionSet) -> bytes:
    data = holds.to_bytes()
    if len(data) > fields.MAX_VALUE_BYTES:  # thousands of members: then time alone ends it
        data = Holds(holds.for_ms, {"everyone": Hold(held)}).to_bytes()
    return data


def _compared(one: GroupToRestore, known: Mapping[TopicPartition, LogRange]) -> GroupToRestore:
    logs = {tp: known[tp] for tp in one.offsets if tp in known}
    older = PartitionSet.of(tp for tp, log in logs.items() if one.offsets[tp] < log.start)
    beyond = PartitionSet.of(tp for tp, log in logs.items() if one.offsets[tp] > log.end)
    return one._replace(older=older, beyond=beyond)


# --- writing -------------------------------------------------------------------------------------------------------


def require_empty(store: Store, checksum: str) -> ClusterRecord | None:
    """Returns the record of the tree, if it is half restored from this very backup, and ``None`` if there is no tree.
    Raises :class:`RequestRefused` otherwise. Members may have registered already: they wait for a coordinator."""
    if found := _there(store, layout.COORDINATORS):
        running = ", ".join(path.rpartition("/")[2] for path in sorted(found))
        raise RequestRefused(f"instances run on this tree ({running}); stop them before you restore it")
    record, restored = read_cluster_record(store), read_restored(store)
    if record is not None and record.making != MAKING:
        raise RequestRefused(f"there is a tree already ({record.name}); a backup is restored only into an empty one")
    if record is not None and restored is not None and restored.file != checksum:
        raise RequestRefused(
            f"{record.name}, is half restored from another backup (sha256 {restored.file[:12]}…): restore that one, or"
            f" delete {layout.CONSUMERS} with everything below it, and begin again"
        )
    if record is None and (used := sorted(path for path, data in _values(store).items() if data)):
        raise RequestRefused(
            f"the tree is not empty ({used[0]} has a value); a backup is restored only into an empty tree"
        )
    return record


def _there(store: Store, path: str) -> list[str]:
    return tree_below(store, path) if store.exists(path) is not None else []


def _values(store: Store) -> dict[str, bytes]:
    """Returns the values of all znodes that a backup takes, and empty ones for the others."""
    found: dict[str, bytes] = {}
    for some in parts(_there(store, layout.CONSUMERS), _READS_AT_ONCE):
        for path, node in zip(some, store.read_many([GetData(path) for path in some]), strict=True):
            if isinstance(node, Node):
                found[path] = node.data if place_of(path) in TAKEN else b""
    return found


def restore(
    store: Store, plan: RestorePlan, told: Callable[[int, int], None] = lambda _done, _all: None
) -> ClusterRecord:
    """Writes the plan, and returns the record of the tree, which nobody serves before it is finished
    (:func:`~kafka_coord.zk.root.finish_tree`). It may be called again after it was interrupted, and then writes only
    what is missing. ``told`` hears how many of the znodes are written. Raises :class:`RequestRefused`."""
    record = require_empty(store, plan.checksum)
    if record is None:
        record = ClusterRecord.new(store, plan.generation, kafka=plan.header.kafka, making=MAKING)
        make_tree(store, record)
    restored = Restored(plan.checksum, plan.header.made_ms, int(time.time() * 1000), plan.wait_ms)
    with suppress(NodeExists):
        store.create(layout.RESTORED, restored.to_bytes())
    version = store.get(layout.CLUSTER).stat.version
    wanted = dict(plan.znodes())
    ops = _missing(store, wanted)
    while ops:
        try:
            done = len(wanted) - len(ops)
            for some in parts(ops, 1_000):
                write_fenced(store, Check(layout.CLUSTER, version), [[op] for op in some])
                done += len(some)
                told(done, len(wanted))
            ops = []
        except MultiFailed as error:
            if not isinstance(error.cause, NodeExists):
                raise
            ops = _missing(store, wanted)  # a member has registered meanwhile
    return record


def _missing(store: Store, wanted: Mapping[str, bytes]) -> list[Op]:
    there = _values(store) | {layout.CONSUMERS: b""}
    for path, data in wanted.items():
        if there.get(path) and there[path] != data and not path.startswith(_GOES_ON):
            raise RequestRefused(
                f"{path} was written by somebody else while the tree was restored; delete it, and run again"
            )
    return [
        SetData(path, data) if path in there else Create(path, data)
        for path, data in wanted.items()
        if path not in there or (data and not there[path])
    ]


# --- what ran on the old tree --------------------------------------------------------------------------------------


def still_answering(header: BackupHeader, new_servers: Iterable[str]) -> list[str]:
    """Returns the old ZooKeeper servers and instances at whose addresses something accepts connections. Leaves out the
    servers of the new tree."""
    old = {f"ZooKeeper {one}": one for one in header.zookeeper if one not in {*new_servers}}
    for instance in header.instances:
        for name, address in instance.endpoints.items():
            old[f"instance {instance.broker_id} ({name} {address})"] = address
    with ThreadPoolExecutor(32) as pool:
        answers = pool.map(_answers, old.values())
    return [name for name, answers_there in zip(old, answers, strict=True) if answers_there]


def _answers(address: str) -> bool:
    try:
        host, port = host_and_port(address)
        with socket.create_connection((host, port), _ANSWER_S):
            return True
    except (OSError, ValueError):
        return False
