"""The judge's findings with their evidence, and one ruling for each rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Rule(StrEnum):
    """The rules; the value is the rule's name in the report."""

    NOTHING_MISSING = "no record is missing"
    ONE_OWNER = "no two live owners"
    REPEATS = "repeats only after a crash and past the last commit"
    ORDER = "offsets are contiguous and never go back"
    COMMITS = "no acknowledged commit is lost or goes back"
    TABLE = "Spark's table holds every record once"
    CONVERGENCE = "every group converged"
    NO_LEAKS = "nothing leaked"
    NO_SPIN = "no process spun"
    CLEAN_FAILOVER = "a coordinator's clean stop takes no owner away and delays no decision"
    KILLED_FAILOVER = "a killed coordinator is replaced in time"
    FROZEN_COORDINATOR = "a frozen coordinator wrote nothing when it woke"
    UNMOVED = "a partition that does not move is not paused"
    EXPLAINED = "no membership was lost without a fault"
    AUDIT = "the audit of ZooKeeper's log"
    GROUP_LOG = "the audit of the groups log"
    EVENT_RECORDS = "no event makes a group skip a record that still exists"
    EVENT_LAG = "nothing is lag when everything was read"
    EVENT_TERMS = "no term of the groups log ends without a fault"
    EVENT_OTHERS = "only the client that asked for too much hears of it"
    EVENT_TIMES = "no event delays anyone for longer than it must"
    EVENT_MEMBERSHIPS = "an event without a crash ends no membership and repeats no record"
    MIGRATION = "each phase of a migration is named, and what is new is seen in it"
    MOVES = "every move between the brokers and the instances is done"
    PAUSES = "a move pauses no member for longer than it may"
    COMPLETE = "the run recorded what the judge needs"


EVENT_RULES = frozenset(
    {
        Rule.EVENT_RECORDS,
        Rule.EVENT_LAG,
        Rule.EVENT_TERMS,
        Rule.EVENT_OTHERS,
        Rule.EVENT_TIMES,
        Rule.EVENT_MEMBERSHIPS,
    }
)
"""The rules about the events of the world, for a run that had some."""

RULES_OF_SOME = frozenset(
    {Rule.TABLE, Rule.COMMITS, Rule.GROUP_LOG, Rule.MIGRATION, Rule.MOVES, Rule.PAUSES},
)
"""The rules of runs with Spark, stock clients, a migration or moves."""


class Severity(StrEnum):
    VIOLATION = "violation"
    """The rule is broken: the run has failed."""
    WARNING = "warning"
    """A person should look at it. It breaks no rule by itself."""
    EXCEPTION = "exception"
    """The rule is broken in a way that is possible by design, according to docs/design.md, section 5."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A recorded fact, and its time (seconds since the run began)."""

    at_s: float
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:.3f}s {self.what}"


@dataclass(frozen=True, slots=True)
class ChaosFinding:
    """``where`` is the subject, such as ``group delays flights-3`` or ``serve:1``. ``message`` is one sentence."""

    rule: Rule
    severity: Severity
    where: str
    message: str
    evidence: tuple[Evidence, ...] = ()


def violation(rule: Rule, where: str, message: str, evidence: tuple[Evidence, ...] = ()) -> ChaosFinding:
    return ChaosFinding(rule, Severity.VIOLATION, where, message, evidence)


class Status(StrEnum):
    HELD = "held"
    BROKEN = "BROKEN"
    NOT_EXERCISED = "not exercised"
    """There was no evidence for or against the rule."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The result of one rule. ``checked`` describes the evidence with numbers, and ``bound`` is the limit."""

    rule: Rule
    status: Status
    checked: str
    bound: str = ""
    findings: tuple[ChaosFinding, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)


def ruling(
    rule: Rule,
    findings: Iterable[ChaosFinding],
    *,
    checked: str,
    bound: str = "",
    exercised: bool = True,
    figures: dict[str, float] | None = None,
) -> Ruling:
    """Returns the ruling. Any violation breaks the rule, but warnings and exceptions do not. Sorts evidence by time."""
    found = tuple(
        replace(finding, evidence=tuple(sorted(finding.evidence, key=lambda one: one.at_s))) for finding in findings
    )
    broken = any(finding.severity is Severity.VIOLATION for finding in found)
    status = Status.BROKEN if broken else Status.HELD if exercised else Status.NOT_EXERCISED
    return Ruling(rule, status, checked, bound, found, figures or {})
