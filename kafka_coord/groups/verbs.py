"""What operators can do with groups. Each kind of group is one class with the same verbs.

A verb without options is one entry in :data:`VERBS`: the command line and the HTTP API have it from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kafka_coord.errors import NotFound, RequestRefused, SettingsError
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import AnswerDocument, GroupDescription, GroupRow, LogRanges, OffsetRow
from kafka_coord.groups.instances import AskedInstances, Presences
from kafka_coord.groups.requests import Acting, OnProgress
from kafka_coord.groups.reset import Resettable
from kafka_coord.model import GroupKind, PartitionSet, TopicPartition
from kafka_coord.model.histories import Trail


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
    """What a conversion of one group needs. ``members_rejoin`` says whether the group's members need not stop first.
    ``gone`` are the partitions whose offsets do not move."""

    kind: GroupKind
    members: Sequence[str]
    members_rejoin: bool
    offsets: Mapping[TopicPartition, int]
    gone: PartitionSet


class GroupVerbs(ABC):
    """The groups of one kind. Unless stated otherwise, a method that names a group raises :class:`NotFound` if there is
    no such group, and :class:`BrokerError` if an instance must be asked, but does not answer. A verb also raises
    :class:`RequestRefused` and :class:`Timeout`."""

    kind: ClassVar[GroupKind]

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
    ) -> tuple[Sequence[GroupDescription], Sequence[str]]:
        """Describes the named groups, or all (``None``), and reads them together. Also returns a message for each group
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
    def convertible(self, group: str) -> Convertible:
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

    def _refused(self, what: str, group: str, acting: Acting) -> RequestRefused:
        del group, acting
        return RequestRefused(
            f"a {self.kind} group cannot be {what}, because its members assign the partitions; nothing was changed"
        )


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
