"""Reads many groups at a time, in the form that the coordinator's planner uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kafka_coord.channel.operations import in_order
from kafka_coord.model import (
    Assignment,
    Channel,
    CommandId,
    GroupSettings,
    Ledger,
    Member,
    Observation,
    Pause,
    Unreadable,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.cluster import Cluster
from kafka_coord.monitor.reading import Reading, split
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, ReadResult, Stat, Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The planner's observation of one group, and facts that only operators need. ``registrations`` are the stats of
    the ``ids`` znodes, decodable or not. ``pause`` is the group's own pause. ``paused_everywhere`` is the pause of all
    groups. If both exist, the observation has the pause of all groups. ``decided_ms`` is when its target or one of its
    ledgers was last written (ms since 1970).
    """

    observation: Observation
    registrations: Mapping[str, Stat] = field(default_factory=dict)
    pause: Pause | None = None
    paused_everywhere: Pause | None = None
    decided_ms: int = 0

    @property
    def group(self) -> str:
        return self.observation.group

    @property
    def pending(self) -> Mapping[str, tuple[CommandId, ...]]:
        """The outstanding commands by consumer, in order of execution, without consumers that have none."""
        return {c: channel.commands for c, channel in self.observation.channels.items() if channel.commands}


_PER_GROUP = 6


def read_groups(store: Store, groups: Iterable[str], cluster: Cluster) -> dict[str, GroupSnapshot]:
    """Reads the groups in two rounds, for any number of groups. Skips missing groups, and tolerates malformed
    znodes."""
    names = tuple(groups)
    reading = Reading(store)
    found = reading.many(read for name in names for read in _first_round(name))
    drafts: list[_Draft] = []
    for at, name in enumerate(names):
        one = found[at * _PER_GROUP : (at + 1) * _PER_GROUP]
        if isinstance(one[0], Node) or any(refused.path == layout.group(name) for refused in reading.unreadable):
            drafts.append(_Draft(store, name, one))
    second = reading.many(read for draft in drafts for read in draft.second_round())
    snapshots, forbidden = {}, reading.by_group()
    for draft, part in zip(drafts, split(second, *(draft.reads for draft in drafts)), strict=True):
        snapshots[draft.group] = draft.finish(part, cluster, forbidden.get(draft.group, ()))
    return snapshots


def _first_round(group: str) -> tuple[Read, ...]:
    return (
        GetData(layout.group(group)),
        GetChildren(layout.ids(group)),
        GetChildren(layout.owners(group)),
        GetChildren(layout.channels(group)),
        GetData(layout.assignment(group)),
        GetData(layout.paused(group)),
    )


class _Draft:
    """A group between the two rounds of reads."""

    def __init__(self, store: Store, group: str, found: tuple[ReadResult, ...]) -> None:
        self.group = group
        self._reading = Reading(store)
        self._node, ids, owners, channels, self._assignment, self._paused = found
        self._consumers = self._reading.names(layout.ids(group), ids)
        self._ledgered = self._reading.names(layout.owners(group), owners)
        self._channelled = self._reading.names(layout.channels(group), channels)
        self.reads = len(self._consumers) + len(self._ledgered) + len(self._channelled)

    def second_round(self) -> Iterable[Read]:
        yield from (GetData(layout.registration(self.group, c)) for c in self._consumers)
        yield from (GetData(layout.ledger(self.group, c)) for c in self._ledgered)
        yield from (GetChildren(layout.channel(self.group, c)) for c in self._channelled)

    def finish(self, found: Sequence[ReadResult], cluster: Cluster, forbidden: Iterable[Unreadable]) -> GroupSnapshot:
        reading, group = self._reading, self.group
        reading.unreadable += forbidden
        parts = split(found, len(self._consumers), len(self._ledgered), len(self._channelled))
        registrations = dict(zip(self._consumers, parts[0], strict=True))
        members = _decoded(
            (c, reading.decode(layout.registration(group, c), node, _member, registration=True))
            for c, node in registrations.items()
        )
        ledgers = _decoded(
            (c, reading.decode(layout.ledger(group, c), node, _ledger))
            for c, node in zip(self._ledgered, parts[1], strict=True)
        )
        pause = reading.decode(layout.paused(group), self._paused, _pause, Pause())
        observation = Observation(
            group=group,
            epoch=cluster.coordinator.epoch if cluster.coordinator else 0,
            members=members,
            ledgers=ledgers,
            channels={
                c: Channel(*in_order(listing))
                for c, listing in zip(self._channelled, parts[2], strict=True)
                if isinstance(listing, tuple)
            },
            assignment=reading.decode(layout.assignment(group), self._assignment, _assignment),
            topics=cluster.topics,
            settings=reading.decode(layout.group(group), self._node, _settings, GroupSettings()) or GroupSettings(),
            pause=cluster.pause or pause,
            # Only the coordinator knows when they disappeared. It acts as soon as their grace period ends.
            in_grace=frozenset(c for c, led in ledgers.items() if led.place is not None and c not in registrations),
            unreadable=tuple(reading.unreadable),
        )
        return GroupSnapshot(
            observation=observation,
            registrations={c: node.stat for c, node in registrations.items() if isinstance(node, Node)},
            pause=pause,
            paused_everywhere=cluster.pause,
            decided_ms=max(
                (node.stat.mtime_ms for node in (self._assignment, *parts[1]) if isinstance(node, Node)), default=0
            ),
        )


def _decoded(pairs: Iterable[tuple[str, T | None]]) -> dict[str, T]:
    return {name: value for name, value in pairs if value is not None}


def _member(value: fields.Json, node: Node, where: str) -> Member:
    return Member.from_json(value, where.rpartition("/")[2], node.stat.czxid, where)


def _ledger(value: fields.Json, node: Node, where: str) -> Ledger:
    return Ledger.from_json(value, where.rpartition("/")[2], node.stat.version, where)


def _assignment(value: fields.Json, node: Node, where: str) -> Assignment:
    return Assignment.from_json(value, node.stat.version, where)


def _settings(value: fields.Json, _: Node, where: str) -> GroupSettings:
    return GroupSettings.from_json(value, where)


def _pause(value: fields.Json, _: Node, where: str) -> Pause:
    return Pause.from_json(value, where)
