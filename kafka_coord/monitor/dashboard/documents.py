"""Defines the documents of the JSON API that no command prints, and the bodies of its actions.

As in :mod:`kafka_coord.groups.group`, docstrings become the descriptions in ``openapi.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from msgspec import UNSET, Meta, Struct, UnsetType

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.groups.cluster import ClusterDocument
from kafka_coord.groups.group import (
    AnswerDocument,
    Document,
    GroupRow,
    LagSeconds,
    LagSecondsBy,
    OffsetRow,
    OfLag,
    Partitions,
    Time,
    Verdict,
)
from kafka_coord.groups.requests import SETTINGS_LIMITS
from kafka_coord.groups.reset import OffsetChangeDocument
from kafka_coord.model import GroupKind, GroupSettings

if TYPE_CHECKING:
    from kafka_coord.frontends.socket.access import User
    from kafka_coord.groups.group import GroupDescription

MAX_TEXT = 1_000
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class OverviewDocument(ClusterDocument, frozen=True):
    groups_unread: int
    """The number of groups that have not been read yet."""
    states: dict[str, int]
    """The number of groups in each state."""
    troubled: list[GroupRow]
    """The first groups that are not at rest or have unreadable znodes."""
    troubled_count: int
    lagging: list[GroupRow]
    """The groups with the largest lag."""
    lagging_count: int
    lag_unknown: int
    """The number of partitions of all measured groups whose lag is unknown."""
    lag_since: Time | None
    """When the oldest lag was measured."""
    lag_unmeasured: int
    """The number of groups whose lag has not been measured yet."""
    rebalances: list[tuple[int, int]]
    """[minute in ms since 1970, number of rebalances]."""
    missing: list[str]
    """Which groups are not shown, and why."""


class TopicDocument(Document, frozen=True):
    topic: str
    partitions: int
    changed: Time | None
    """When the topic's znode was last written."""


class UnassignedGroupDocument(Document, frozen=True):
    group: str
    kind: GroupKind
    state: GroupState
    partitions: Partitions
    count: int
    why: str
    since: Time | None
    """The partitions have had no owner at least since then; null means unknown."""

    @classmethod
    def of(cls, found: GroupDescription, undecided: str) -> Self:
        """``undecided`` is :attr:`Cluster.undecided`."""
        return cls(
            group=found.group,
            kind=found.kind,
            state=found.state,
            partitions=found.unowned.partitions,
            count=len(found.unowned.partitions),
            why=(undecided if found.members else "") or found.status,
            since=Time.of(found.unowned.since_ms),
        )


class UnassignedDocument(Document, frozen=True):
    groups: list[UnassignedGroupDocument]
    """At most 100 groups, those with members first."""
    partitions: int
    """The number of unassigned partitions in these groups."""
    left_out: int
    """The number of groups that were not examined and may have such partitions."""


class SpanDocument(Document, array_like=True, frozen=True):
    """[consumer, from, to] in ms since 1970; from is null if the ownership began before the recorded history, and to is
    null for the current owner"""

    consumer: str
    from_ms: int | None
    to_ms: int | None


class LaneDocument(Document, frozen=True):
    """The owners of one partition, oldest first"""

    topic: str
    partition: int
    spans: list[SpanDocument]


class TimelineDocument(Document, frozen=True):
    group: str
    since: Time | None
    """The owners before this time are unknown."""
    partitions: list[LaneDocument]
    left_out: int
    """The number of further partitions."""


class PartitionLagDocument(Document, frozen=True):
    topic: str
    partition: int
    lag: int | None
    gone: int | None
    lag_s: LagSeconds
    lag_s_by: LagSecondsBy
    verdict: Verdict
    since: Time | None
    """Since when the verdict has been true."""


class LagDocument(OfLag, kw_only=True, frozen=True):
    group: str
    verdict: Verdict
    verdict_unknown: int
    """The number of partitions whose verdict is unknown."""
    note: str | None
    """Why lags are unknown."""
    partitions: list[PartitionLagDocument]
    samples: list[tuple[int, int | None, int, int | None]]
    """[ms since 1970, lag, number of partitions with unknown lag, number of unread records that are gone]."""


class PartitionRow(OffsetRow, kw_only=True, frozen=True):
    group: str
    verdict: Verdict
    since: Time | None
    """Since when the verdict has been true."""
    spans: list[SpanDocument]
    samples: list[tuple[int, int | None, int | None, int]]
    """[ms since 1970, committed offset, lag, number of unread records that are gone]."""


class ErrorDocument(Document, frozen=True):
    error: str


class SessionDocument(Document, frozen=True):
    actions: bool
    """Whether operators can log in."""
    operator: str | None
    """The operator who is logged in."""
    groups: list[str]
    """Regular expressions."""
    csrf: str | UnsetType = UNSET
    """To be sent as X-CSRF-Token with each action."""
    valid_s: float | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        operator: User | None,
        *,
        actions: bool = True,
        csrf: str | UnsetType = UNSET,
        valid_s: float | UnsetType = UNSET,
    ) -> Self:
        """Returns the document about the logged-in operator."""
        groups = list(operator.groups) if operator is not None else []
        name = operator.name if operator is not None else None
        return cls(actions=actions, operator=name, groups=groups, csrf=csrf, valid_s=valid_s)


class DoneDocument(Document, kw_only=True, frozen=True):
    answers: list[AnswerDocument] | UnsetType = UNSET
    """What was done. Without it, the answer is a dry run."""
    notes: list[str]
    effects: list[str] | UnsetType = UNSET
    """What a dry run would do, beside the rows."""
    rows: list[OffsetChangeDocument] | UnsetType = UNSET
    """The offsets that were changed or, in a dry run, would be."""
    rule: str | UnsetType = UNSET
    confirm: str | UnsetType = UNSET
    """Send it to do what is shown."""
    valid_s: float | UnsetType = UNSET


class NothingBody(Struct, frozen=True):
    pass


class TokenBody(Struct, frozen=True):
    token: Text = ""


class ActionBody(Struct, frozen=True):
    reason: Text = ""
    """Required, except with confirm."""
    dry_run: bool = False
    """Only show what would be done."""
    confirm: Text = ""
    """Of a dry run, which is then carried out; the other fields are those of the dry run."""
    name: Text = ""
    """With confirm, for what cannot be undone: the group's name."""
    accept_notes: bool = False
    """With confirm: required if any of the shown rows has a note, or the answer is 409."""


class EvictBody(ActionBody, frozen=True):
    consumers: list[Text] = []


class ManyBody(ActionBody, frozen=True):
    groups: Annotated[list[Text], Meta(max_length=1_000)] = []


class ConvertBody(ActionBody, frozen=True):
    to: Literal["managed", "client-assigned", "native"] | UnsetType = UNSET


class ConvertManyBody(ConvertBody, frozen=True):
    groups: Annotated[list[Text], Meta(max_length=1_000)] = []


class TopicsBody(ActionBody, frozen=True):
    topics: list[Text] = []


class ResetBody(TopicsBody, frozen=True):
    rule: (
        Literal["to-earliest", "to-latest", "to-current", "to-offset", "shift-by", "to-time", "from-group", "undo"]
        | UnsetType
    ) = UNSET
    value: int | Text | UnsetType = UNSET
    pause: bool = False
    create: bool = False
    """Create the group, as managed, if it does not exist."""


def _setting(name: str) -> Meta:
    least, most = SETTINGS_LIMITS[name]
    return Meta(ge=least, le=most)


class SettingsBody(ActionBody, frozen=True):
    assignor: Text | UnsetType | None = UNSET
    rebalance_timeout_ms: Annotated[int, _setting("rebalance_timeout_ms")] | UnsetType | None = UNSET
    offsets_retention_ms: Annotated[int, _setting("offsets_retention_ms")] | UnsetType | None = UNSET
    lag_warning_ms: Annotated[int, _setting("lag_warning_ms")] | UnsetType | None = UNSET

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in cls.__struct_fields__ if name not in ActionBody.__struct_fields__]

    def changes(self) -> dict[str, Any]:
        """Returns the settings to change, with the default in place of ``None``."""
        given = {name: value for name in self.names() if (value := getattr(self, name)) is not UNSET}
        return {name: getattr(GroupSettings(), name) if value is None else value for name, value in given.items()}
