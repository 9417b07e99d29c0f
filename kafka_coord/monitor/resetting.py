"""Resets committed offsets of managed and client-assigned groups: reads what a reset needs, and carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Self

from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import RequestRefused
from kafka_coord.model import GroupKind, PartitionSet, Request, RequestType, TopicPartition
from kafka_coord.model.action import offsets_change
from kafka_coord.model.sequences import parts
from kafka_coord.monitor.client_groups.asking import AskedInstances
from kafka_coord.monitor.client_groups.changes import write_offsets
from kafka_coord.monitor.client_groups.groups import ClientGroup, read_client_group
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.documents import Document
from kafka_coord.monitor.groups import snapshot_of
from kafka_coord.monitor.offsets import holders, partitions_of, read_all_committed
from kafka_coord.monitor.operate import held_by_nobody, record
from kafka_coord.monitor.requests import Acting, ask
from kafka_coord.monitor.reset import ResetRow
from kafka_coord.monitor.scope import Scope, all_partitions
from kafka_coord.monitor.snapshot import read_groups
from kafka_coord.zk.store import Store

IN_ONE_REQUEST = 2_000
"""The maximum number of partitions in a request. The coordinator executes each request as one multi, which must not
exceed ZooKeeper's size limit."""

AT_ONCE = 8
"""The number of client-assigned groups that are read at the same time."""


@dataclass(frozen=True, slots=True)
class Resettable:
    """What a reset of one group needs. ``there`` contains all existing partitions, and ``known`` those of the group.
    ``owners`` maps partitions to their owners. ``write`` sets offsets and returns a message about the result.
    """

    group: str
    kind: GroupKind
    there: PartitionSet
    known: PartitionSet
    committed: Mapping[TopicPartition, int]
    owners: Mapping[TopicPartition, str]
    write: Callable[[Mapping[TopicPartition, int]], str]

    def owned(self, rows: Sequence[ResetRow]) -> PartitionSet:
        """Returns the partitions in ``rows`` that have an owner."""
        return PartitionSet.of(row.tp for row in rows if row.tp in self.owners)

    def chosen(self, scope: Scope) -> PartitionSet:
        """Returns the partitions in ``scope``, or the group's partitions if the scope does not name topics. Raises the
        same errors as :meth:`Scope.choose`."""
        return scope.choose(self.there if scope.topics else self.known & self.there, self.group)


Plan = tuple[Resettable, tuple[ResetRow, ...]]
"""A group and its new offsets."""

Check = Callable[[Sequence[ResetRow]], None]
"""Raises :class:`RequestRefused` if the rows must not be executed."""


def read_resettable(
    instances: AskedInstances, wanted: Sequence[tuple[str, GroupKind]], asked_for: str, acting: Acting
) -> list[Resettable]:
    """Reads the ``wanted`` groups: the managed groups all at once, and several client-assigned groups at a time.
    ``asked_for`` is the rule, as recorded in the history. Raises :class:`NotFound` if one of the groups does not exist.
    """
    store, cluster = instances.store, read_cluster(instances.store)
    managed = [group for group, kind in wanted if kind is GroupKind.MANAGED]
    snapshots = read_groups(store, managed, cluster)
    committed = read_all_committed(store, managed, cluster.topics)
    there = all_partitions(cluster.topics)
    theirs = [group for group, kind in wanted if kind is not GroupKind.MANAGED]
    with ThreadPoolExecutor(max_workers=max(1, min(AT_ONCE, len(theirs))), thread_name_prefix="reset") as pool:
        clients = dict(zip(theirs, pool.map(partial(read_client_group, instances), theirs), strict=True))
    found = []
    for group, kind in wanted:
        if kind is not GroupKind.MANAGED:
            found.append(_client_group(instances, clients[group], cluster, asked_for, acting))
            continue
        seen = (snapshots.get(group) or snapshot_of(store, group)[1]).observation
        found.append(
            Resettable(
                group,
                kind,
                there,
                partitions_of(seen, committed[group]),
                committed[group].offsets,
                {tp: owner for tp, (owner, _) in holders(seen.ledgers.values()).items()},
                partial(_ask_for, store, group, committed[group].offsets, asked_for, acting),
            )
        )
    return found


def _ask_for(
    store: Store,
    group: str,
    committed: Mapping[TopicPartition, int],
    asked_for: str,
    acting: Acting,
    offsets: Mapping[TopicPartition, int],
) -> str:
    """Sends the offsets to the coordinator and returns its message. Only the coordinator can ensure that no partition
    is started in the meantime."""
    request = Request(
        RequestType.RESET_OFFSETS,
        group=group,
        offsets=offsets,
        reason=acting.reason,
        by=acting.by,
        change=f"{asked_for}: {offsets_change(committed, offsets)}",
    )
    answered = ask(store, request, acting.timeout_s, acting.on_progress)
    return f"{answered.result}: {answered.message}"


def _client_group(
    instances: AskedInstances, client: ClientGroup, cluster: Cluster, asked_for: str, acting: Acting
) -> Resettable:
    group = client.group

    def write(offsets: Mapping[TopicPartition, int]) -> str:
        message = write_offsets(instances, group, offsets, acting.timeout_s)
        change = f"{asked_for}: {offsets_change(client.committed, offsets)}"
        record(instances.store, "reset-offsets", group, by=acting.by, reason=acting.reason, change=change)
        return f"done: {message}"

    there, known = all_partitions(cluster.topics), client.partitions(cluster.topics)
    return Resettable(group, GroupKind.CLIENT_ASSIGNED, there, known, client.committed, client.held, write)


def reset(
    store: Store,
    found: Resettable,
    rows: tuple[ResetRow, ...],
    acting: Acting,
    *,
    pause: bool,
    again: Callable[[], Plan],
    check: Check,
) -> Plan:
    """Sets the offsets and returns the executed plan. With ``pause``, first takes the partitions from any owners and
    then executes a fresh plan from ``again``, because the owners may have committed after ``rows`` was computed.
    ``check`` is called with the rows of each plan before it is executed, and raises an error to refuse it.

    Raises :class:`RequestRefused` if a partition has an owner when its offset is to be set. Also raises the same errors
    as :func:`held_by_nobody`.
    """
    check(rows)
    owned = found.owned(rows)
    if not (pause and owned):
        _execute(found, rows, acting)
        return found, rows
    mine = PartitionSet.of(row.tp for row in rows)
    with held_by_nobody(store, found.group, mine, acting):
        now = again()
        check(now[1])
        _execute(*now, acting)
        return now


def _execute(found: Resettable, rows: tuple[ResetRow, ...], acting: Acting) -> None:
    owned = found.owned(rows)
    if owned:
        owners = ", ".join(sorted({found.owners[tp] for tp in owned}))
        raise RequestRefused(
            f"cannot reset {owned} of group {found.group!r} while owned by {owners}: stop these consumers"
            + (", or add --pause to reset while they run" if found.kind is GroupKind.MANAGED else " first")
            + ". Nothing was changed"
        )
    done = 0
    for part in parts(rows, IN_ONE_REQUEST):
        try:
            message = found.write({row.tp: row.new_offset for row in part})
        except RequestRefused as error:
            raise RequestRefused(
                f"{error}" + (f"; {counted(done, 'partition')} had already been reset" if done else "")
            ) from error
        done += len(part)
        acting.on_progress(f"group {found.group}: {message}")


class ResetRowDocument(Document, frozen=True):
    """``kafka-coord groups reset-offsets -o json``"""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    owner: str | None
    note: str | None

    @classmethod
    def of(cls, found: Resettable, row: ResetRow) -> Self:
        return cls(
            group=found.group,
            topic=row.topic,
            partition=row.partition,
            current_offset=row.current_offset,
            new_offset=row.new_offset,
            owner=found.owners.get(row.tp),
            note=row.note or None,
        )
