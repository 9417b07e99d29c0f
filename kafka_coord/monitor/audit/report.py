"""Defines the rules of an audit, and collects its violations and warnings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, Self, TypeVar

from msgspec import UNSET, UnsetType

from kafka_coord.groups.group import Document, iso_time

MAX_FINDINGS = 1_000
"""A report keeps at most this many violations and this many warnings, but it counts them all."""


class Rule(StrEnum):
    """A rule of an audit: its name in reports, and what it finds. A warning does not fail the audit."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        rule = str.__new__(cls, name)
        rule._value_ = name
        rule.meaning = meaning
        return rule


class AuditRule(Rule):
    """What the audit of ZooKeeper's log checks. The number is that of the invariant in docs/design.md."""

    TWO_HOLDERS = "two-holders", "1: two live incarnations of a group held the same partition."
    START_WHILE_HELD = (
        "start-while-held",
        "2: a start-fetcher was written while another live incarnation held the partition.",
    )
    START_WITHOUT_LEDGER = (
        "start-without-ledger",
        "2: a start-fetcher lists partitions that are not in its consumer's ledger after the step.",
    )
    START_ELSEWHERE = (
        "start-elsewhere",
        "8: a start-fetcher for a free partition did not begin at the partition's stored offset.",
    )
    RELEASED_EARLY = (
        "released-early",
        "2: a live incarnation's ledger lost a partition without an acknowledged stop-fetcher.",
    )
    UNFENCED_WRITE = (
        "unfenced-write",
        "3: a znode that only the coordinator may write was written without checking the epoch (in a "
        "conversion, the term).",
    )
    STALE_EPOCH = (
        "stale-epoch",
        "3: a session wrote without having won the newest epoch, or a value carries another epoch.",
    )
    EPOCH_BACK = "epoch-back", "5: an election did not raise the epoch, or a manual change lowered it."
    ACK_BY_ANOTHER = "ack-by-another", "4: a live consumer's command was removed by a session other than its own."
    ACK_UNFENCED = (
        "ack-unfenced",
        "4: a command was acknowledged without checking the consumer's registration and token.",
    )
    ACK_OUT_OF_ORDER = (
        "ack-out-of-order",
        "4: a command was acknowledged while an earlier command of the consumer was outstanding.",
    )
    GENERATION_BACK = (
        "generation-back",
        "5: the generation of a target did not grow, or the generation of a command or ledger went back.",
    )
    OFFSET_BACK = "offset-back", "5: an offset was moved back by someone who did not hold the partition."
    UNFENCED_COMMIT = "unfenced-commit", "An offset was written without checking the consumer's registration and token."
    COMMIT_BY_ANOTHER = "commit-by-another", "An offset was written by a consumer that did not hold the partition."
    SPLIT_UNIT = "split-unit", "A change to a ledger and the command for it were not written in the same transaction."
    TWO_LEDGERS = "two-ledgers", "1: two ledgers listed the same partition, and the incarnation of one had ended."
    TWO_COMMANDS = (
        "two-commands",
        "4: a second stop or start was written for an incarnation while the first was outstanding.",
    )
    EAGER_ORDER = (
        "eager-order",
        "An eager member was told to start before every eager member had acknowledged its stop.",
    )
    NEEDLESS_STOP = "needless-stop", "6: a partition was stopped although it stays with its owner in the target."
    PAUSE_IGNORED = (
        "pause-ignored",
        "A target, command or eviction was written for a paused group by a coordinator that must have seen the pause.",
    )
    OPERATOR_WRITE_WHILE_HELD = (
        "operator-write-while-held",
        "5: the coordinator set or deleted the offset of a partition that a live incarnation held.",
    )
    OPERATOR_WRITE_UNASKED = (
        "operator-write-unasked",
        "5: the coordinator set an offset that no operator asked for and that is no first end of a partition, "
        "or deleted one that a member may need.",
    )
    EARLIER_TOPIC = (
        "earlier-topic",
        "8: a start-fetcher began at an offset that belongs to a deleted topic of the same name.",
    )
    UNREADABLE_START = "unreadable-start", "8: a partition was started although its stored offset could not be read."
    GRACE_BROKEN = "grace-broken", "The place of a departed consumer was given away before its rejoin grace had ended."
    EVICTED_EARLY = (
        "evicted-early",
        "A member was evicted before its rebalance timeout expired, and no operator had requested it.",
    )
    EVICTED_AND_RELEASED = (
        "evicted-and-released",
        "2: a member's partitions were taken in the very transaction that evicted it.",
    )
    LIVE_GROUP_REMOVED = (
        "live-group-removed",
        "A group's offsets were deleted while it had members, a reserved place, or a target with members.",
    )
    RETENTION_BROKEN = (
        "retention-broken",
        "The offsets of an empty group were deleted before their retention period had passed.",
    )
    SPLIT_ELECTION = (
        "split-election",
        "3: an election did not write the coordinator's znode and the next epoch in one transaction.",
    )
    EPOCH_SKIPPED = (
        "epoch-skipped",
        "3: an election did not raise the epoch by exactly one, so it was not based on the current epoch.",
    )
    NOT_CONVERGED = (
        "not-converged",
        "7: a group had not reached its target by the end of the log. With --running, a warning.",
    )
    SEEK_BACK = (
        "seek-back",
        "A partition's holder moved its offset back: the application called seek, or auto.offset.reset "
        "applied. A warning.",
    )
    BY_HAND = "by-hand", "Another tool changed the epoch, or changed or deleted a registration. A warning."
    UNREADABLE = "unreadable", "A value cannot be decoded. A warning, after which the audit continues."
    INCOMPLETE = (
        "incomplete",
        "Older logs are missing, so the audit starts from a snapshot; the last record is truncated; or the log has "
        "nothing below --chroot. A warning.",
    )


Fault = tuple[AuditRule, str]
"""A violated rule, and what violates it."""


class AuditFindingDocument(Document, frozen=True):
    rule: AuditRule
    what: str
    group: str
    zxid: str | None
    """``null`` for a finding without a position in the log."""
    when: str | None
    """``null`` for a finding without a position in the log."""
    who: str


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One violation or warning. ``time_ms`` is the server's wall clock (ms since 1970), or 0 if unknown."""

    rule: AuditRule
    what: str
    group: str = ""
    zxid: int = 0
    time_ms: int = 0
    who: str = ""

    def document(self) -> AuditFindingDocument:
        return AuditFindingDocument(
            rule=self.rule,
            what=self.what,
            group=self.group,
            zxid=f"{self.zxid:#x}" if self.zxid else None,
            when=clock_time(self.time_ms) if self.time_ms else None,
            who=self.who,
        )


def clock_time(time_ms: int) -> str:
    """Returns ``2026-01-31T12:00:00.123Z``, or the number if ``datetime`` cannot represent the time."""
    return iso_time(time_ms) or f"{time_ms} ms"


class RuleFinding(Protocol):
    """A finding from an audit of ZooKeeper's log or of the groups log."""

    def document(self) -> Document: ...


F = TypeVar("F", bound=RuleFinding)
D = TypeVar("D", bound=Document)


class EventDocument(Document, frozen=True):
    """An event in the history of a partition, group or consumer"""

    when: str
    zxid: str
    group: str
    what: str
    why: str
    """The reason; empty if unknown."""
    who: str


class AuditDocument(Document, Generic[D], frozen=True):
    """``kafka-coord audit -o json``"""

    violations: list[D]
    warnings: list[D]
    checked: dict[str, int]
    history: list[EventDocument] | UnsetType = UNSET
    """The events of the chosen partition, group or consumer."""


@dataclass(slots=True)
class Findings(Generic[F]):
    """All findings from an audit. ``figures`` counts what was checked, so that a clean report shows that something was
    checked."""

    violations: list[F] = field(default_factory=list)
    warnings: list[F] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not self.violations

    def violation(self, finding: F) -> None:
        self.count("violations")
        if len(self.violations) < MAX_FINDINGS:
            self.violations.append(finding)

    def warning(self, finding: F) -> None:
        self.count("warnings")
        if len(self.warnings) < MAX_FINDINGS:
            self.warnings.append(finding)

    def count(self, figure: str, by: int = 1) -> None:
        self.figures[figure] = self.figures.get(figure, 0) + by

    def document(self, history: list[EventDocument] | UnsetType = UNSET) -> AuditDocument[Document]:
        return AuditDocument(
            violations=[found.document() for found in self.violations],
            warnings=[found.document() for found in self.warnings],
            checked=self.figures,
            history=history,
        )


Report = Findings[AuditFinding]
"""A report on ZooKeeper's transaction log."""
