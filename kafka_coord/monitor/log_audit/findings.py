"""Defines the rules and the findings for an audit of the groups log."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.groups.group import Document
from kafka_coord.monitor.audit.report import Findings, Rule, clock_time


class LogRule(Rule):
    """What the audit of the groups log checks."""

    TERM_BACK = "term-back", "A term wrote a batch after a newer term had started. The brokers should have refused it."
    NO_TERM = "no-term", "A writer without a term of this partition wrote a batch."
    NO_CLAIM = (
        "no-claim",
        "A term's batches do not begin with its claim, although compaction has not removed anything before them.",
    )
    WRONG_CLAIM = (
        "wrong-claim",
        "A claim names a term other than that of its batch, or is not at the beginning of its term.",
    )
    WRONG_HEARD = "wrong-heard", "A note of which members a term has heard names another term."
    SEQUENCE = (
        "sequence",
        "A batch's sequence number does not match its position in its term: there is a gap, or another "
        "writer's batch, before it.",
    )
    UNCLAIMED_TERM = "unclaimed-term", "A term is newer than the partition's znode, so no one can have claimed it."
    GENERATION_BACK = "generation-back", "A group's generation went back."
    COMMIT_BACK = "commit-back", "An older commit replaced a newer one, so both the offset and the time went back."
    LIVE_GROUP_REMOVED = "live-group-removed", "A group was removed while it had members."
    LIVE_OFFSET_REMOVED = (
        "live-offset-removed",
        "An offset that names no topic id was removed while members of the group subscribed to its topic.",
    )
    SEEK_BACK = "seek-back", "A newer commit carries a lower offset: the client went back. A warning."
    UNREADABLE = "unreadable", "A record cannot be decoded. A warning."


class LogFindingDocument(Document, frozen=True):
    rule: LogRule
    what: str
    group: str
    partition: int
    offset: int
    when: str | None


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One violation or warning, at an offset in a partition of the log. ``time_ms`` is the time of the batch, in ms
    since 1970."""

    rule: LogRule
    what: str
    partition: int
    offset: int = -1
    group: str = ""
    time_ms: int = 0

    def document(self) -> LogFindingDocument:
        return LogFindingDocument(
            rule=self.rule,
            what=self.what,
            group=self.group,
            partition=self.partition,
            offset=self.offset,
            when=clock_time(self.time_ms) if self.time_ms else None,
        )


LogReport = Findings[LogFinding]
"""A report on the groups log."""
