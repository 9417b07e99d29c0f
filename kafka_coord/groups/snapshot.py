"""Reads many groups at a time, in the form that the coordinator's planner uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kafka_coord.channel.operations import in_order
from kafka_coord.coordinator.observe import decode_assignment, decode_ledger, decode_member
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.reading import Reading, plainly
from kafka_coord.model import Channel, CommandId, GroupSettings, Observation, Pause, TopicPartition
from kafka_coord.model.names import is_legal
from kafka_coord.model.unresolved import Refusals, awaited_partition, read_reason
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, ReadResult, Stat, Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The planner's observation of one group, and facts that only operators need. ``registrations`` are the stats of
    the ``ids`` znodes, decodable or not. ``pause`` is the group's own pause, and ``paused_everywhere`` is the pause of
    all groups. If both exist, the observation contains the pause of all groups. ``decided_ms`` is when the target or
    one of the ledgers was last written (ms since 1970). ``awaited`` contains the partitions that start at an end which
    nobody has listed yet, each with the reason ("" if none is known).
    """

    observation: Observation
    registrations: Mapping[str, Stat] = field(default_factory=dict)
    pause: Pause | None = None
    paused_everywhere: Pause | None = None
    decided_ms: int = 0
    awaited: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.observation.group

    @property
    def missing_topics(self) -> list[str]:
        """The topics that members subscribe to by name, but that do not exist."""
        seen = self.observation
        named = {t for m in seen.members.values() if not m.subscription.is_wildcard for t in m.subscription.topics}
        return sorted(named - seen.topics.keys())

    @property
    def pending(self) -> Mapping[str, tuple[CommandId, ...]]:
        """The outstanding commands by consumer, in order of execution. Leaves out consumers without commands."""
        return {c: channel.commands for c, channel in self.observation.channels.items() if channel.commands}


def read_groups(store: Store, groups: Iterable[str], cluster: Cluster) -> dict[str, GroupSnapshot]:
    """Reads the groups in two round trips, however many there are. Skips missing groups and tolerates malformed
    znodes."""
    names, reading = tuple(groups), Reading(store)
    first = reading.all(
        [GetData(path(name)) for name in names for path in (layout.group, layout.assignment, layout.paused)]
        + [GetChildren(path(name)) for name in names for path in (*_PARENTS, layout.unresolved)]
    )
    forbidden = {one.path for one in reading.unreadable}
    there = [
        name for name in names if isinstance(first[GetData(path := layout.group(name))], Node) or path in forbidden
    ]
    listed = {
        path(name): reading.names(path(name), first[GetChildren(path(name))]) for name in there for path in _PARENTS
    }
    unresolved = {name: _listing(first[GetChildren(layout.unresolved(name))]) for name in there}
    second = reading.all(
        [GetData(layout.registration(name, c)) for name in there for c in listed[layout.ids(name)]]
        + [GetData(layout.ledger(name, c)) for name in there for c in listed[layout.owners(name)]]
        + [GetChildren(layout.channel(name, c)) for name in there for c in listed[layout.channels(name)]]
        + [GetData(path) for name in there for path in _unresolved_paths(name, unresolved[name])]
    )
    found, unreadable = {**first, **second}, reading.by_group()
    return {
        name: _snapshot(Reading(store, unreadable.get(name, ())), name, found, listed, unresolved[name], cluster)
        for name in there
    }


_PARENTS = (layout.ids, layout.owners, layout.channels)


def _listing(listing: ReadResult) -> tuple[str, ...]:
    return listing if isinstance(listing, tuple) else ()


def _unresolved_paths(group: str, names: Iterable[str]) -> list[str]:
    return [f"{layout.unresolved(group)}/{name}" for name in names]


def _snapshot(
    reading: Reading,
    group: str,
    found: Mapping[Read, ReadResult],
    listed: Mapping[str, tuple[str, ...]],
    unresolved: tuple[str, ...],
    cluster: Cluster,
) -> GroupSnapshot:
    registrations = {c: found[GetData(layout.registration(group, c))] for c in listed[layout.ids(group)]}
    ledger_nodes = {c: found[GetData(layout.ledger(group, c))] for c in listed[layout.owners(group)]}
    assignment = found[GetData(layout.assignment(group))]
    members = _decoded(
        (c, reading.decode(layout.registration(group, c), node, decode_member, registration=True))
        for c, node in registrations.items()
    )
    ledgers = _decoded(
        (c, reading.decode(layout.ledger(group, c), node, decode_ledger)) for c, node in ledger_nodes.items()
    )
    noted = {
        name: found[GetData(path)] for name, path in zip(unresolved, _unresolved_paths(group, unresolved), strict=True)
    }
    refusals = _decoded(
        (name, reading.decode(layout.refusals(group, name), node, plainly(Refusals.from_json)))
        for name, node in noted.items()
        if is_legal(name)
    )
    pause = reading.decode(
        layout.paused(group), found[GetData(layout.paused(group))], plainly(Pause.from_json), Pause()
    )
    settings = reading.decode(
        layout.group(group), found[GetData(layout.group(group))], plainly(GroupSettings.from_json), GroupSettings()
    )
    observation = Observation(
        group=group,
        epoch=cluster.coordinator.epoch if cluster.coordinator else 0,
        members=members,
        ledgers=ledgers,
        channels={
            c: Channel(*in_order(listing))
            for c in listed[layout.channels(group)]
            if isinstance(listing := found[GetChildren(layout.channel(group, c))], tuple)
        },
        assignment=reading.decode(layout.assignment(group), assignment, decode_assignment),
        topics=cluster.topics,
        settings=settings or GroupSettings(),
        pause=cluster.pause or pause,
        # Treat every absent consumer with a reserved place as within its grace period. Only the coordinator knows when
        # the period ends, and it then acts immediately.
        in_grace=frozenset(c for c, led in ledgers.items() if led.place is not None and c not in registrations),
        unreadable=tuple(reading.unreadable),
        refusals=refusals,
    )
    written = [node.stat.mtime_ms for node in (assignment, *ledger_nodes.values()) if isinstance(node, Node)]
    return GroupSnapshot(
        observation=observation,
        registrations={c: node.stat for c, node in registrations.items() if isinstance(node, Node)},
        pause=pause,
        paused_everywhere=cluster.pause,
        decided_ms=max(written, default=0),
        awaited={
            partition: read_reason(node.data)
            for name, node in noted.items()
            if isinstance(node, Node) and (partition := awaited_partition(name)) is not None
        },
    )


def _decoded(pairs: Iterable[tuple[str, T | None]]) -> dict[str, T]:
    return {name: value for name, value in pairs if value is not None}
