"""What operators can do with groups. Each kind of group is one class with the same verbs.

A verb without options is one entry in :data:`VERBS`: the command line and the HTTP API have it from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, ClassVar, NamedTuple

from msgspec import structs

from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import KafkaCoordError, NotFound, RequestRefused, SettingsError
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import (
    AnswerDocument,
    GroupDescription,
    GroupRow,
    LagTotal,
    LogRanges,
    OffsetRow,
    paused_by,
)
from kafka_coord.groups.instances import AskedInstances, Presences
from kafka_coord.groups.requests import Acting, OnProgress, settings_change
from kafka_coord.groups.reset import OffsetChangeDocument, Resettable
from kafka_coord.model import GroupKind, GroupSettings, PartitionSet, TopicPartition
from kafka_coord.model.histories import Trail
from kafka_coord.model.sequences import some


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The groups of one kind, sorted by name. ``lag_note`` says why some lags are unknown, and ``missing`` says which
    groups, or whose offsets, cannot be shown, and why."""

    rows: tuple[GroupRow, ...]
    lag_note: str = ""
    missing: tuple[str, ...] = ()


class Contact(NamedTuple):
    """Where a member runs, and the client id that it gave. Each is "" if it is unknown."""

    host: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """What is sampled of one group: its partitions, the time of its last rebalance (ms since 1970; 0 if unknown), and
    its live members (``None`` for a member whose contact was not read)."""

    group: str
    kind: GroupKind
    rows: tuple[OffsetRow, ...]
    decided_ms: int
    members: Mapping[str, Contact | None]
    paused: bool = False
    warning_ms: int | None = None
    """How old the oldest waiting record may be without a warning, if the group has its own setting."""


OnOffsets = Callable[[GroupOffsets], object]


@dataclass(frozen=True, slots=True)
class Convertible:
    """What a conversion of one group needs. The members ``in_the_way`` must stop first; the others go on. ``gone`` are
    the partitions whose offsets do not move."""

    kind: GroupKind
    members: Sequence[str]
    in_the_way: Sequence[str]
    offsets: Mapping[TopicPartition, int]
    gone: PartitionSet


@dataclass(frozen=True, slots=True)
class DryRun:
    """What an action would do: the offsets that it would change, and sentences about everything else."""

    effects: Sequence[str]
    rows: Sequence[OffsetChangeDocument] = ()


class GroupVerbs(ABC):
    """The groups of one kind. Unless stated otherwise, a method that names a group raises :class:`NotFound` if there is
    no such group, and :class:`BrokerError` if an instance must be asked, but does not answer. A verb also raises
    :class:`RequestRefused` and :class:`Timeout`."""

    kind: ClassVar[GroupKind]
    why_not: ClassVar[str] = "its members assign the partitions"
    """Why some verbs are refused."""
    to_managed: ClassVar[str] = "kafka-coord groups convert {} --to managed"
    """The command after which they are not."""

    def __init__(self, instances: AskedInstances) -> None:
        self.instances, self.store = instances, instances.store

    @abstractmethod
    def exists(self, groups: Iterable[str]) -> dict[str, bool]:
        """Says of each group whether it exists."""

    def require(self, group: str) -> None:
        if not self.exists([group])[group]:
            raise NotFound(f"no group {group!r}")

    @abstractmethod
    def names(self) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the names of all groups, and messages that say which cannot be listed, and why."""

    @abstractmethod
    def list(self, cluster: Cluster, log_ranges: LogRanges | None, on_offsets: OnOffsets | None) -> ListedGroups:
        """Lists all groups. If ``log_ranges`` is given, calls it once, adds the lags, and passes each group's
        partitions to ``on_offsets``."""

    @abstractmethod
    def offsets(
        self, groups: Sequence[str], cluster: Cluster, log_ranges: LogRanges, resting: Collection[str] = ()
    ) -> tuple[Sequence[GroupOffsets], Sequence[str]]:
        """Reads what is sampled of the groups, and calls ``log_ranges`` once. Leaves out groups that do not exist. Of
        ``resting`` groups, which are at rest, may read less; their members may then be without contact. Also returns
        messages about what is unknown."""

    @abstractmethod
    def describe(
        self,
        group: str,
        log_ranges: LogRanges | None,
        presences: Presences | None = None,
        earlier: Cluster | None = None,
    ) -> GroupDescription:
        """Describes the group. Without ``log_ranges``, does not query the brokers, and every lag is unknown. Without
        ``presences``, does not ask the instances when they last heard from consumers without ZooKeeper. ``earlier`` is
        an earlier view of the cluster, which saves reading what has not changed."""

    @abstractmethod
    def describe_several(
        self, groups: Sequence[str] | None, log_ranges: LogRanges | None, presences: Presences | None
    ) -> tuple[Sequence[GroupDescription], Sequence[KafkaCoordError]]:
        """Describes the named groups, or all (``None``), and reads them together. Also returns an error for each group
        that does not exist or cannot be shown."""

    @abstractmethod
    def actions(self, group: str) -> Trail:
        """Returns the operator actions on the group. Raises :class:`MalformedValue`."""

    @abstractmethod
    def history(self, group: str, on_progress: OnProgress) -> Trail:
        """Returns the decisions about the group and the operator actions on it. Raises :class:`MalformedValue`."""

    @abstractmethod
    def committed(self, group: str) -> tuple[Mapping[TopicPartition, int], PartitionSet]:
        """Returns the committed offsets, and the partitions of which an offset is stored, even if unreadable."""

    @abstractmethod
    def evict(self, group: str, consumers: Sequence[str], acting: Acting) -> Sequence[AnswerDocument]:
        """Evicts the consumers from the group. If any of them is not a member, raises :class:`NotFound` without
        evicting anyone."""

    @abstractmethod
    def delete(self, group: str, acting: Acting) -> AnswerDocument:
        """Deletes the group, which must have no members."""

    @abstractmethod
    def delete_offsets(
        self, group: str, partitions: PartitionSet, before: Mapping[TopicPartition, int], acting: Acting
    ) -> AnswerDocument:
        """Deletes committed offsets. ``before`` are those of :meth:`committed`."""

    @abstractmethod
    def resettable(self, groups: Sequence[str], rule: str, acting: Acting) -> Mapping[str, Resettable]:
        """Reads what a reset of the groups needs, several at a time. ``rule`` is recorded in the history."""

    @abstractmethod
    def convertible(self, group: str, to: GroupKind) -> Convertible:
        """Reads what a conversion of the group needs."""

    @abstractmethod
    def converted(self, group: str, acting: Acting) -> None:
        """Records that the group has been converted to this kind, where its own history does not."""

    @abstractmethod
    def require_name(self, group: str) -> None:
        """Raises :class:`InvalidName` if no group of this kind can have the name."""

    @abstractmethod
    def wait_settled(self, group: str, timeout_s: float) -> None:
        """Waits until the group is at rest. Raises :class:`Timeout` after ``timeout_s`` seconds."""

    def require_pausable(self) -> None:
        """Raises :class:`SettingsError` if a reset cannot pause such a group."""
        raise SettingsError(f"--pause works only for managed groups; for a {self.kind} group, stop its members")

    def pause(self, group: str, acting: Acting) -> AnswerDocument:
        """Forbids rebalances of the group."""
        raise self._refused("paused", group, acting)

    def resume(self, group: str, acting: Acting) -> AnswerDocument:
        """Allows rebalances of the group again."""
        raise self._refused("resumed", group, acting)

    def rebalance(self, group: str, acting: Acting) -> AnswerDocument:
        """Decides a new target. If the group is paused, leaves the request in the queue and raises :class:`Timeout`
        immediately."""
        raise self._refused("rebalanced by hand", group, acting)

    def require_settings(self, group: str) -> None:
        """Raises :class:`RequestRefused` if such a group has no settings."""
        self.require(group)
        raise self._refused("given settings", group)

    def settings(self, group: str) -> GroupSettings:
        """Returns the stored settings. Raises :class:`MalformedValue` if they are unreadable."""
        raise self._refused("given settings", group)

    def change_settings(self, group: str, changes: Mapping[str, Any], acting: Acting) -> AnswerDocument:
        """Changes the named settings, and no others."""
        del changes
        raise self._refused("given settings", group, acting)

    def create(self, group: str, acting: Acting) -> None:
        """Creates the group, unless it exists."""
        del group
        raise self._refused("created", "", acting)

    def is_paused(self, group: str) -> bool | None:
        """Returns whether the group itself is paused, or ``None`` if it cannot be."""
        del group
        return None

    def dry_verb(self, group: str) -> DryRun:
        """Says what state the group is in, before one of the :data:`VERBS`."""
        found = self.describe(group, None)
        owned = sum(row.owner is not None for row in found.offsets)
        members = counted(len(_registered(found)), "member")
        paused = [f"it is paused {paused_by(found.pause)}"] if found.pause is not None else []
        state = f"group {group} is {found.state}: {members}, {counted(owned, 'partition')} with an owner"
        return DryRun([state, *paused])

    def dry_evict(self, group: str, consumers: Sequence[str], log_ranges: LogRanges) -> DryRun:
        """Counts the records that may be read again. Raises :class:`NotFound` if any of the consumers is not a
        member."""
        found = self.describe(group, log_ranges)
        members = {one.consumer: one for one in found.members}
        if unknown := [one for one in consumers if one not in members]:
            raise NotFound(f"group {group!r} has no member {some(unknown)}; no consumer would be evicted")
        others = len({*_registered(found)} - {*consumers})
        to = f"go to {counted(others, 'other member')}" if others else "have no owner until a consumer registers again"
        owned = ((one, members[one].owned) for one in consumers)
        effects = [f"{one} loses {counted(len(theirs), 'partition')} ({theirs or 'none'})" for one, theirs in owned]
        lag = LagTotal.of_rows(row for row in found.offsets if row.owner in consumers)
        most = "what was read since the last commit" if lag.lag is None else f"at most {counted(lag.lag, 'record')}"
        besides = f" (unknown for {counted(lag.lag_unknown, 'partition')})" if lag.lag_unknown else ""
        return DryRun([*effects, f"the partitions {to}; there, {most} will be read again{besides}"])

    def dry_delete(self, group: str, log_ranges: LogRanges) -> DryRun:
        """Shows the offsets that the group would lose."""
        found = self.describe(group, log_ranges)
        rows = [OffsetChangeDocument.deleting(group, row) for row in found.offsets if row.committed_offset is not None]
        also = ", its settings and its history" if found.settings is not None else ""
        effects = [f"group {group} is removed, with {counted(len(rows), 'committed offset')}{also}"]
        if members := _registered(found):
            effects.append(f"it has members ({some(members)}), so this is refused: stop them first")
        return DryRun(effects, rows)

    def dry_delete_offsets(self, group: str, partitions: PartitionSet, log_ranges: LogRanges) -> DryRun:
        """Shows the offsets of the partitions, which the group would lose."""
        known = {row.tp: row for row in self.describe(group, log_ranges).offsets}
        rows = [OffsetChangeDocument.deleting(group, known.get(tp) or _without_offset(tp)) for tp in partitions]
        effects = [f"group {group} loses {counted(len(rows), 'committed offset')}; then auto.offset.reset applies"]
        if owners := sorted({row.owner for row in rows if row.owner is not None}):
            effects.append(f"consumers own these partitions ({some(owners)}), so this is refused: stop them")
        return DryRun(effects, rows)

    def dry_settings(self, group: str, changes: Mapping[str, Any]) -> DryRun:
        before = self.settings(group)
        change = settings_change(before, structs.replace(before, **changes))
        return DryRun([f"group {group}: {change}" if change else f"group {group} has these settings already"])

    def dry_convert(self, group: str, to: GroupKind) -> DryRun:
        """Says what becomes of the group's offsets and members in a group of another kind."""
        if self.kind is to:
            return DryRun([f"group {group} is {to} already"])
        found = self.convertible(group, to)
        moving = counted(sum(tp not in found.gone for tp in found.offsets), "offset")
        members = f"{counted(len(found.members), 'member')} ({some(sorted(found.members)) or 'none'})"
        effects = [f"group {group} is {self.kind}; {moving} and {members} go on in a {to} group"]
        if found.in_the_way:
            effects.append(f"{some(sorted(found.in_the_way))} cannot, so this is refused: stop them first")
        return DryRun(effects)

    def _refused(self, what: str, group: str, acting: Acting | None = None) -> RequestRefused:
        del acting
        remedy = f". A managed group can: {self.to_managed.format(quote(group))}" if group else ""
        return RequestRefused(
            f"a {self.kind} group cannot be {what}, because {self.why_not}; nothing was changed{remedy}"
        )


def _registered(found: GroupDescription) -> list[str]:
    return [one.consumer for one in found.members if one.registered]


def _without_offset(tp: TopicPartition) -> OffsetRow:
    """Returns the row of a partition whose offset cannot be read."""
    return OffsetRow(topic=tp.topic, partition=tp.partition, owner=None, holding=None, committed_offset=None)


def dry_pauses(found: Mapping[str, GroupVerbs], *, pauses: bool) -> DryRun:
    """Says which groups would be paused, or resumed without ``pauses``, and which would not, and why."""
    already = "paused already (this pause replaces the other)" if pauses else "not paused"
    verb = "paused" if pauses else "resumed"
    sorts: dict[str, list[str]] = {}
    for group, groups in found.items():
        why = verb
        if not groups.exists([group])[group]:
            why = "no such group"
        elif (paused := groups.is_paused(group)) is None:
            why = f"cannot be {verb}, because {groups.why_not}"
        elif paused is pauses:
            why = already
        sorts.setdefault(why, []).append(group)
    return DryRun([f"{why}: {counted(len(them), 'group')} ({some(them)})" for why, them in sorts.items()])


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb without options of its own. ``summary`` and ``description`` are for the help and for ``openapi.json``."""

    act: Callable[[GroupVerbs, str, Acting], AnswerDocument]
    summary: str
    description: str = ""


VERBS: Mapping[str, Verb] = {
    "pause": Verb(lambda groups, group, acting: groups.pause(group, acting), "Forbid rebalances of the group"),
    "resume": Verb(lambda groups, group, acting: groups.resume(group, acting), "Allow rebalances of the group again"),
    "rebalance": Verb(
        lambda groups, group, acting: groups.rebalance(group, acting),
        "Decide a new target",
        "The status is 504 if the group is paused; the request then stays pending.",
    ),
}
