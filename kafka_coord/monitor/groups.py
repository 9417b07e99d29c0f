"""Describes groups for operators: a summary of each group, or one group in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import MalformedValue, NotFound
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import (
    CoordinatorInfo,
    GroupKind,
    GroupSettings,
    Member,
    Mode,
    PartitionSet,
    Pause,
    TopicPartition,
    Unreadable,
)
from kafka_coord.model.names import is_legal, legal
from kafka_coord.model.operations import DEFAULT_ASSIGNOR
from kafka_coord.monitor.channel import WaitingCommand, read_waiting
from kafka_coord.monitor.client_groups.instance_directory import read_instances
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.offsets import (
    Committed,
    LagTotal,
    OffsetRow,
    offset_rows,
    partitions_of,
    read_all_committed,
)
from kafka_coord.monitor.ownership import Unowned, without_member
from kafka_coord.monitor.presence import Presence
from kafka_coord.monitor.snapshot import GroupSnapshot, read_groups
from kafka_coord.monitor.state import group_state, group_status
from kafka_coord.monitor.waits import waits
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

EndOffsets = Callable[[PartitionSet], tuple[Mapping[TopicPartition, int], str]]
"""Returns the known end offsets, and a sentence that says why others are unknown (or ``""``)."""

Presences = Callable[[str], Mapping[tuple[str, str], Presence]]
"""Asks the instance at this HTTP URL about each (group, consumer) that it serves. Raises ``OSError`` and
:class:`MalformedValue`."""


MAX_WAITS = 3
"""A group's status names at most this many consumers with unacknowledged commands."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group in a list. ``pending`` counts the unacknowledged commands. ``coordinator`` is the broker id of the
    instance that coordinates the group. ``log_partition`` is the partition of the groups log that holds a
    client-assigned group.
    """

    group: str
    kind: GroupKind
    state: GroupState
    generation: int | None
    members: int
    partitions: int
    assignor: str
    pending: int
    unreadable: int
    coordinator: int | None
    log_partition: int | None = None
    lag: LagTotal | None = None
    """``None`` if the brokers were not asked."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member, live or gone. A gone member (``registered`` is false) has a kept place or unreleased partitions.

    ``channel`` is its connection: ``zookeeper``, ``socket`` or ``kafka``. ``since_ms`` is when it registered (ms since
    1970), and ``target`` is the partitions that it should own. For a member that an instance serves, ``gateway`` is the
    instance's broker id, ``address`` is the member's address, and ``heard_ms_ago`` is the time since the instance last
    heard from the member. Only Kafka clients have ``software`` (their library), ``protocol`` (their group protocol),
    ``epoch`` (the member epoch) and ``held_ms`` (how long the instance has held their heartbeat). ``None`` is unknown.
    """

    consumer: str
    registered: bool
    host: str | None
    client: str | None
    channel: str
    gateway: int | None
    address: str | None
    incarnation: int
    since_ms: int | None
    subscription: str
    mode: str
    capacity: int
    rack: str | None
    rejoin_grace_ms: int
    owned: PartitionSet
    stopping: PartitionSet
    target: PartitionSet
    pending: tuple[WaitingCommand, ...]
    heard_ms_ago: int | None = None
    software: str | None = None
    protocol: str | None = None
    epoch: int | None = None
    held_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Everything about one group. ``status`` is the planner's sentence about faults and about the commands for which
    the group waits. ``settings`` is ``None`` if the coordinator does not report the settings. ``lag_note`` says why end
    offsets are unknown. ``heard_note`` says why the ``heard_ms_ago`` of members is unknown.
    """

    group: str
    kind: GroupKind
    state: GroupState
    status: str
    generation: int | None
    reason: str
    decided_at_ms: int | None
    assignor: str
    coordinator: int | None
    log_partition: int | None
    settings: GroupSettings | None
    pause: Pause | None
    paused_everywhere: bool
    members: tuple[MemberRow, ...]
    offsets: tuple[OffsetRow, ...]
    of_earlier_topic: PartitionSet
    unowned: Unowned
    lag_note: str
    heard_note: str
    unreadable: tuple[Unreadable, ...]

    @property
    def pending(self) -> int:
        return sum(len(member.pending) for member in self.members)

    @property
    def lag(self) -> LagTotal:
        return LagTotal.of(row.lag for row in self.offsets)


OnOffsets = Callable[[str, Sequence[OffsetRow], int], None]
"""Receives a group's name, its partitions, and the time of its last rebalance (ms since 1970; 0 if unknown)."""


def list_groups(
    store: Store, end_offsets: EndOffsets | None = None, on_offsets: OnOffsets | None = None
) -> tuple[Cluster, tuple[GroupRow, ...], str]:
    """Lists all groups by name in a fixed number of rounds of reads. With ``end_offsets``, asks the brokers once about
    all partitions, and passes each group's partitions to ``on_offsets``. The third value says why some lags are unknown
    (or ``""``)."""
    cluster = read_cluster(store)
    snapshots = read_groups(store, cluster.groups, cluster)
    committed = read_all_committed(store, snapshots, cluster.topics)
    commands = Counter(one.path.split("/")[3] for one in read_waiting(store, snapshots).unreadable)
    ends, note = _ends(snapshots, committed, end_offsets)
    rows = []
    for group, snapshot in sorted(snapshots.items()):
        seen, lag = snapshot.observation, None
        if end_offsets is not None:
            offsets = offset_rows(seen, committed[group], ends)
            lag = LagTotal.of(row.lag for row in offsets)
            if on_offsets is not None:
                on_offsets(group, offsets, seen.decided_ms)
        unreadable = len(committed[group].unreadable) + commands[group]
        rows.append(group_row(snapshot, cluster, also_unreadable=unreadable, lag=lag))
    return cluster, tuple(rows), note


def _ends(
    snapshots: Mapping[str, GroupSnapshot], committed: Mapping[str, Committed], end_offsets: EndOffsets | None
) -> tuple[Mapping[TopicPartition, int], str]:
    """Asks for the end offsets of all these groups at once."""
    if end_offsets is None:
        return {}, ""
    wanted = (partitions_of(one.observation, committed[group]) for group, one in snapshots.items())
    return end_offsets(PartitionSet.union(wanted))


def snapshot_of(store: Store, group: str, earlier: Cluster | None = None) -> tuple[Cluster, GroupSnapshot]:
    """Reads the cluster and one group. If there is no such group, raises :class:`NotFound` with the existing names.
    ``earlier`` saves a listing of the groups."""
    cluster = read_cluster(store, earlier)
    found = read_groups(store, [group], cluster).get(group)
    if found is None:
        raise NotFound(f"no group {group!r}; {_known(cluster.groups)}")
    return cluster, found


def kind_of(store: Store, group: str, wanted: str | None = None) -> GroupKind:
    """Returns the kind ``wanted``, if given. Otherwise returns managed if ZooKeeper has such a group, and else
    client-assigned if instances serve Kafka clients. Raises :class:`NotFound` with the existing names, and
    :class:`InvalidName`.
    """
    if wanted == GroupKind.MANAGED:
        legal("group", group)
    if wanted is not None:
        return GroupKind(wanted)
    if is_legal(group) and store.exists(layout.group(group)) is not None:
        return GroupKind.MANAGED
    if read_instances(store).is_used:
        return GroupKind.CLIENT_ASSIGNED
    legal("group", group)
    snapshot_of(store, group)
    raise NotFound(f"no group {group!r}")


def describe_group(
    store: Store,
    group: str,
    end_offsets: EndOffsets | None,
    presences: Presences | None = None,
    earlier: Cluster | None = None,
) -> GroupDescription:
    """Describes ``group``. Without ``end_offsets``, does not ask the brokers, and every lag is unknown. Without
    ``presences``, does not ask the instances when they last heard from consumers without ZooKeeper. ``earlier`` saves a
    listing of the groups.

    Raises :class:`NotFound`.
    """
    cluster, snapshot = snapshot_of(store, group, earlier)
    return next(_described(store, cluster, {group: snapshot}, end_offsets, presences))


def describe_groups(
    store: Store,
    cluster: Cluster,
    groups: Iterable[str],
    end_offsets: EndOffsets | None,
    presences: Presences | None = None,
) -> tuple[GroupDescription, ...]:
    """Describes several groups like :func:`describe_group`, in one set of reads. Leaves out groups that do not
    exist."""
    return tuple(_described(store, cluster, read_groups(store, groups, cluster), end_offsets, presences))


def _described(
    store: Store,
    cluster: Cluster,
    snapshots: Mapping[str, GroupSnapshot],
    end_offsets: EndOffsets | None,
    presences: Presences | None,
) -> Iterator[GroupDescription]:
    waiting = read_waiting(store, snapshots)
    commands: dict[str, list[WaitingCommand]] = {}
    for command in waiting.commands:
        commands.setdefault(command.group, []).append(command)
    damaged: dict[str, list[Unreadable]] = {}
    for one in waiting.unreadable:
        damaged.setdefault(one.path.split("/")[3], []).append(one)
    committed = read_all_committed(store, snapshots, cluster.topics)
    ends, note = _ends(snapshots, committed, end_offsets)
    for group, snapshot in snapshots.items():
        yield _description(
            snapshot,
            cluster,
            committed[group],
            ends,
            note,
            _with_presence(store, group, member_rows(snapshot, commands.get(group, ())), cluster, presences),
            damaged.get(group, ()),
            tuple(waits(snapshot, commands.get(group, ()), round(store.clock.time() * 1000)).values())[:MAX_WAITS],
        )


def _description(
    snapshot: GroupSnapshot,
    cluster: Cluster,
    committed: Committed,
    ends: Mapping[TopicPartition, int],
    note: str,
    heard: tuple[tuple[MemberRow, ...], str],
    damaged: Sequence[Unreadable],
    waiting: Sequence[str],
) -> GroupDescription:
    seen, (members, heard_note) = snapshot.observation, heard
    target = seen.assignment
    # the coordinator reads offsets and commands before it starts a partition, and does not start it if they are
    # unreadable
    judged = group_status(replace(seen, unreadable=(*seen.unreadable, *committed.unreadable, *damaged)))
    return GroupDescription(
        group=snapshot.group,
        kind=GroupKind.MANAGED,
        state=judged.state,
        status="; ".join((judged.summary, *waiting)),
        generation=target.generation if target else None,
        reason=target.reason if target else "",
        decided_at_ms=target.timestamp_ms if target else None,
        assignor=_assignor(snapshot),
        coordinator=cluster.coordinator.broker_id if cluster.coordinator else None,
        log_partition=None,
        settings=seen.settings,
        pause=seen.pause,
        paused_everywhere=snapshot.paused_everywhere is not None,
        members=members,
        offsets=offset_rows(seen, committed, ends),
        of_earlier_topic=committed.of_earlier_topic,
        unowned=without_member(snapshot, committed, cluster.topics_changed_ms),
        lag_note=note,
        heard_note=heard_note,
        unreadable=(*seen.unreadable, *committed.unreadable, *damaged),
    )


def _with_presence(
    store: Store, group: str, members: tuple[MemberRow, ...], cluster: Cluster, presences: Presences | None
) -> tuple[tuple[MemberRow, ...], str]:
    """Asks the coordinator about members over sockets, and the instance that serves the group's Kafka clients about
    those."""
    if presences is None:
        return members, ""
    known: dict[tuple[str, str], Presence] = {}
    notes = {}
    for channel in sorted({member.channel for member in members if member.gateway is not None}):
        served_by = cluster.coordinator if channel == "socket" else _instance_of(store, cluster, group)
        reason = "no instance coordinates the group" if served_by is None else ""
        url = None if served_by is None else served_by.http_url
        if served_by is not None and url is None:
            reason = f"start the instance beside broker {served_by.broker_id} with --listen-http"
        elif url is not None:
            try:
                known |= presences(url)
            except (OSError, MalformedValue) as error:
                reason = f"the coordinator did not answer at {url}: {error}"
        if reason:
            notes[reason] = f"unknown when the coordinator last heard from consumers without ZooKeeper: {reason}"
    return tuple(_and_presence(member, known.get((group, member.consumer))) for member in members), "; ".join(
        notes.values()
    )


def _instance_of(store: Store, cluster: Cluster, group: str) -> CoordinatorInfo | None:
    """Returns the instance that serves the group's Kafka clients."""
    leader = read_instances(store).leaders.get(partition_of(group), -1)
    return cluster.instances.get(leader)


def _and_presence(member: MemberRow, found: Presence | None) -> MemberRow:
    if found is None or member.gateway is None:
        return member
    return replace(member, heard_ms_ago=found.heard_ms_ago, epoch=found.epoch, held_ms=found.held_ms)


def _channel(member: Member | None) -> str:
    if member is None or member.gateway is None:
        return "zookeeper"
    return "socket" if member.protocol is None else "kafka"


def member_rows(snapshot: GroupSnapshot, waiting: Iterable[WaitingCommand]) -> tuple[MemberRow, ...]:
    """Returns the members and all other consumers with a ledger, by name."""
    seen = snapshot.observation
    nothing = PartitionSet()
    pending: dict[str, list[WaitingCommand]] = {}
    for command in waiting:
        pending.setdefault(command.consumer, []).append(command)
    rows = []
    for consumer in sorted(seen.members.keys() | seen.ledgers.keys()):
        ledger = seen.ledgers.get(consumer)
        registered = consumer in seen.members
        member = seen.members.get(consumer) or (ledger.place if ledger else None)
        stat = snapshot.registrations.get(consumer)
        target = seen.assignment.members.get(consumer, nothing) if seen.assignment else nothing
        rows.append(
            MemberRow(
                consumer=consumer,
                registered=registered,
                host=member.host if member else None,
                client=member.client if member else None,
                channel=_channel(member),
                gateway=member.gateway if member else None,
                address=member.address if member else None,
                incarnation=member.incarnation if member else ledger.incarnation if ledger else 0,
                since_ms=stat.ctime_ms if stat else None,
                subscription=_subscription(member.subscription.to_json()) if member else "",
                mode=str(member.mode if member else Mode.INCREMENTAL),
                capacity=member.capacity if member else 1,
                rack=member.rack if member else None,
                rejoin_grace_ms=member.rejoin_grace_ms if member else 0,
                owned=ledger.owned if ledger else nothing,
                stopping=ledger.stopping if ledger else nothing,
                target=target,
                pending=tuple(pending.get(consumer, ())),
                software=member.software if member else None,
                protocol=member.protocol if member else None,
            )
        )
    return tuple(rows)


def group_row(
    snapshot: GroupSnapshot, cluster: Cluster, also_unreadable: int = 0, lag: LagTotal | None = None
) -> GroupRow:
    """Returns a summary of the group. ``also_unreadable`` counts the unreadable offsets and commands."""
    seen = snapshot.observation
    return GroupRow(
        group=snapshot.group,
        kind=GroupKind.MANAGED,
        state=group_state(seen),
        generation=seen.assignment.generation if seen.assignment else None,
        members=len(seen.members),
        partitions=sum(len(ledger.held) for ledger in seen.ledgers.values()),
        assignor=_assignor(snapshot),
        pending=sum(map(len, snapshot.pending.values())),
        unreadable=len(seen.unreadable) + also_unreadable,
        coordinator=cluster.coordinator.broker_id if cluster.coordinator else None,
        lag=lag,
    )


def _assignor(snapshot: GroupSnapshot) -> str:
    seen = snapshot.observation
    decided = seen.assignment.assignor if seen.assignment else None
    return seen.settings.assignor or decided or DEFAULT_ASSIGNOR


def _subscription(written: Mapping[str, object]) -> str:
    """Formats topics with their streams as ``flights, routes(2)``, and a pattern as ``white_list fl.*``."""
    topics = written["subscription"]
    names = [
        name if streams == 1 else f"{name}({streams})"
        for name, streams in (topics.items() if isinstance(topics, dict) else ())
    ]
    kind = written["pattern"]
    return ", ".join(names) if kind == "static" else f"{kind} {names[0]}"


def _known(groups: tuple[str, ...]) -> str:
    if not groups:
        return "there are no groups"
    shown = ", ".join(groups[:10])
    return f"there are {shown}" + (f" and {len(groups) - 10} more" if len(groups) > 10 else "")
