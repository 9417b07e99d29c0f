"""Finds what is unreadable, stale, stuck or forgotten in groups, and explains a group's lag and gives a remedy. Does no
I/O: callers pass what they have read and sampled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote  # remedies are copied to a shell, and anyone may have named a group

from kafka_coord.coordinator.plan.reasons import counted, partitions_text, plural
from kafka_coord.coordinator.tolerant_reads import what_to_do
from kafka_coord.groups.cluster import Cluster, group_of
from kafka_coord.groups.group import OffsetRow, QueuedRequest, Verdict, WaitingCommand, ago, duration, lasting
from kafka_coord.groups.lag import WARNING_MS
from kafka_coord.groups.lag_trend import Hot, Trend, Trends
from kafka_coord.groups.state import GroupSnapshot, lost, waits
from kafka_coord.groups.verbs import GroupOffsets
from kafka_coord.model import Action, PartitionSet, Pause, Unreadable
from kafka_coord.model.histories import by_command, changed_offsets
from kafka_coord.model.offsets import gone_text
from kafka_coord.model.sequences import grouped, some
from kafka_coord.monitor.doctor.findings import Finding, error, info, ok, warning
from kafka_coord.zk import layout

FORGOTTEN_PAUSE_MS = 3_600_000
OLD_REQUEST_MS = 60_000
_SLOW_PART = 2
"""A command is reported once this part of the time in which it must be acknowledged has passed: one half. A healthy
consumer may need seconds, for a slow record or, in Spark, for its micro-batch."""
LISTING_WARNING_BYTES = 700_000
"""Warn if the group names together exceed this size. ZooKeeper lists children in one response, which jute.maxbuffer
limits to 1 MB by default."""
LAG = "lag"
NEWS_MS = 3_600_000
"""How long an operator's change to offsets is reported as a warning."""
REMEMBERED_MS = 24 * NEWS_MS
"""How long an operator's change to offsets is reported at all, and how long lag in a group without members is reported
as a warning."""


def check_groups(
    cluster: Cluster, snapshots: Mapping[str, GroupSnapshot], waiting: Iterable[WaitingCommand], now_ms: int
) -> Iterator[Finding]:
    """Yields a finding for each problem in a group that requires an operator's attention."""
    any_problem = False
    commands = grouped(waiting, lambda one: one.group)
    for group, snapshot in sorted(snapshots.items()):
        for finding in _check_group(cluster, snapshot, commands.get(group, []), now_ms):
            any_problem = True
            yield finding
    size = sum(len(name) + 4 for name in cluster.groups)
    if size > LISTING_WARNING_BYTES:
        what = f"the names of the {len(cluster.groups)} groups take {size} bytes; a listing cannot exceed 1 MB"
        yield warning("groups", what, "delete unused groups, or raise jute.maxbuffer on servers and clients")
    elif not any_problem:
        yield ok("groups", f"{counted(len(cluster.groups), 'managed group')}, nothing stale or stuck")


def _check_group(
    cluster: Cluster, snapshot: GroupSnapshot, waiting: list[WaitingCommand], now_ms: int
) -> Iterator[Finding]:
    group, seen = snapshot.group, snapshot.observation
    for one in seen.unreadable:
        yield unreadable_finding(one)
    persistent = [  # an instance expires the members that it serves
        consumer
        for consumer, stat in snapshot.registrations.items()
        if not stat.ephemeral_owner and (consumer not in seen.members or seen.members[consumer].gateway is None)
    ]
    if persistent:
        what = f"group {group}: the registration of {some(persistent)} is persistent, so it does not end with a session"
        yield warning(
            "registrations", what, f"once its consumer is gone: kafka-coord groups evict {group} {persistent[0]}", group
        )
    for consumer in gone_holders(snapshot):
        what = f"group {group}: {consumer} is gone, but still holds {seen.ledgers[consumer].held}"
        if cluster.undecided or seen.pause is not None:
            yield warning("ledgers", what, _RELEASED_LATER, group)
        else:  # a second check after a moment found the same holders
            yield error("ledgers", what, _see_the_log(group), group)
    without = lost(snapshot, cluster.topics_changed_ms, now_ms)
    if without is not None and without.since_ms is not None:
        what = f"group {group}: NO ONE OWNS {without.partitions}, for at least {(now_ms - without.since_ms) // 1000} s"
        yield error("partitions", what, _RELEASED_LATER if cluster.undecided else _see_the_log(group), group)
    for consumer, channel in sorted(seen.channels.items()):
        if channel.strays:
            what = f"group {group}: {some(channel.strays)} in the channel of {consumer} is not a command"
            yield info("channels", what, f"delete it below {layout.channel(group, consumer)}", group)
    yield from _check_waiting(cluster, snapshot, waiting, now_ms)
    if snapshot.pause is not None:
        finding = warning if now_ms - snapshot.pause.since_ms > FORGOTTEN_PAUSE_MS else info
        what = f"group {group} has been paused {_by(snapshot.pause, now_ms)}"
        yield finding("pauses", what, f"kafka-coord groups resume {group}", group)
    missing = snapshot.missing_topics
    if missing:
        do, it = ("does", "it") if len(missing) == 1 else ("do", "them")
        what = f"group {group} subscribes to {some(missing)}, which {do} not exist"
        yield info("subscriptions", what, f"create {it}", group)


_RELEASED_LATER = "no decisions are made until the other findings are resolved"


def _see_the_log(group: str) -> str:
    return (
        f"resolve the other findings about {group}; if there are none: kafka-coord groups rebalance {group} --wait, and"
        f" see the coordinator's log for group={group}"
    )


def gone_holders(snapshot: GroupSnapshot) -> list[str]:
    """Returns the consumers that hold partitions, but have neither a registration nor a reserved place."""
    seen = snapshot.observation
    return [
        consumer
        for consumer, ledger in sorted(seen.ledgers.items())
        if ledger.held and consumer not in snapshot.registrations and consumer not in seen.in_grace
    ]


def _check_waiting(
    cluster: Cluster, snapshot: GroupSnapshot, waiting: list[WaitingCommand], now_ms: int
) -> Iterator[Finding]:
    group, seen = snapshot.group, snapshot.observation

    def is_late(one: WaitingCommand) -> bool:
        member = seen.members.get(one.consumer)
        limit_ms = (
            seen.settings.rebalance_timeout_for(member, one.type) if member else seen.settings.rebalance_timeout_ms
        )
        return _SLOW_PART * one.waited_ms(now_ms) > limit_ms

    late = {one.consumer for one in waiting if is_late(one)}
    for consumer, text in waits(snapshot, waiting, now_ms, cluster.deciding_since_ms).items():
        if consumer in late:
            todo = (
                f"the consumer or its host is hung. To evict the consumer: kafka-coord groups evict {group} {consumer}"
            )
            yield warning("commands", f"group {group}: {text}", todo, group)
    orphaned = [one.consumer for one in waiting if one.consumer not in snapshot.registrations]
    if orphaned:
        gone = sorted({*orphaned})
        are = "is" if len(gone) == 1 else "are"
        what = f"group {group}: {counted(len(orphaned), 'command')} for {some(gone)}, which {are} gone"
        yield info("channels", what, "the coordinator removes them with the consumer's ledger", group)


def check_pause(cluster: Cluster, now_ms: int) -> Iterator[Finding]:
    """Warns about a pause of all groups, even a short one."""
    if cluster.pause is not None:
        what = f"all groups have been paused {_by(cluster.pause, now_ms)}"
        yield warning("pauses", what, "kafka-coord groups resume --all")


def check_requests(
    queued: Iterable[QueuedRequest], unreadable: Iterable[Unreadable], now_ms: int, *, elected: bool
) -> Iterator[Finding]:
    check = "requests"
    old = [one for one in queued if not one.answered and one.waited_ms(now_ms) > OLD_REQUEST_MS]
    for one in old[:20]:
        age_s = one.waited_ms(now_ms) // 1000
        about = f" for group {one.group}" if one.group else ""
        by = one.by or "someone"
        what = f"{one.request} ({one.type}{about}) by {by} has waited for {age_s} s"
        todo = f"if it is no longer needed, withdraw it: kafka-coord coordinator withdraw {one.request}"
        yield (error if elected else warning)(check, what, todo, one.group or "")
    if len(old) > 20:
        yield warning(check, f"{len(old) - 20} more requests are waiting", "kafka-coord coordinator requests")
    for unread in unreadable:
        yield error(check, f"{unread.path} cannot be read: {unread.reason}", "delete that znode")


def unreadable_finding(one: Unreadable, offset: int | None = None) -> Finding:
    """Returns the finding for an unreadable znode, with the remedy. If the znode holds an offset, ``offset`` is its
    last known value."""
    group = group_of(one.path) if one.path.startswith(f"{layout.GROUPS}/") else ""
    return error("unreadable znodes", f"{one.path}: {one.reason}", what_to_do(one.path, offset), group)


def _by(pause: Pause, now_ms: int) -> str:
    why = f" ({pause.reason})" if pause.reason else ""
    who = f"by {pause.by}" if pause.by else "(the operator's name cannot be read)"
    return f"{who}{why}" + (f" {lasting(pause.since_ms, now_ms)}" if pause.since_ms else "")


@dataclass(frozen=True, slots=True)
class Lags:
    """One group's lag. ``members`` maps the live consumers to their hosts ("" if unknown). A partition is late once its
    oldest waiting record is older than ``warning_ms``, by its timestamp or by the partition's own rate, or if its age
    is unknown."""

    group: str
    rows: Sequence[OffsetRow]
    trends: Trends
    members: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    warning_ms: int = WARNING_MS

    def is_late(self, rows: Iterable[OffsetRow]) -> bool:
        """Returns whether any of the partitions is late."""
        return any(row.lag_s is None or 1000 * row.lag_s >= self.warning_ms for row in rows)

    @classmethod
    def of(cls, found: GroupOffsets, trends: Trends, warning_ms: int) -> Lags:
        """``warning_ms`` is the site's."""
        if found.warning_ms is not None:
            warning_ms = found.warning_ms
        members = {name: contact.host if contact else "" for name, contact in found.members.items()}
        return cls(found.group, found.rows, trends, members, found.paused, warning_ms)


def check_lag(seen: Lags, now_ms: int) -> Iterator[Finding]:
    """Yields a finding for each consumer or group that falls behind, with the cause if known."""
    behind = {verdict: [row for row in seen.rows if _trend(seen, row).verdict is verdict] for verdict in Verdict}
    if not seen.is_late(behind[Verdict.BEHIND]):
        behind[Verdict.BEHIND] = []
    for owner, rows in sorted(grouped(behind[Verdict.STALLED], lambda row: row.owner or "").items()):
        yield _stalled(seen, owner, rows, now_ms)
    if behind[Verdict.STOPPED]:
        yield _stopped(seen, behind[Verdict.STOPPED], now_ms)
    late = [row for row in behind[Verdict.UNKNOWN] if row.lag and row.lag_s is not None and seen.is_late([row])]
    if late:
        yield _late(seen, late)
    gone = [row for row in seen.rows if row.gone]
    if gone:
        yield _gone(seen, gone)
    unread = [row for row in seen.rows if row.unread and row.lag]
    if unread:
        yield _unread(seen, unread)
    for one in seen.trends.hot:
        yield _hot(seen, one)
    total = seen.trends.total
    if behind[Verdict.BEHIND]:
        rows = behind[Verdict.BEHIND]
        yield _behind(seen, rows, _since(seen, rows, now_ms), sum(_trend(seen, row).growth_s or 0 for row in rows))
    elif (
        total is not None
        and not behind[Verdict.STALLED]
        and not behind[Verdict.STOPPED]
        and seen.is_late(row for row in seen.rows if row.lag)
    ):
        rows = [row for row in seen.rows if row.lag]
        yield _behind(seen, rows, lasting(total.since_ms or now_ms, now_ms), total.growth_s or 0)
    if behind[Verdict.REWOUND]:
        rows = behind[Verdict.REWOUND]
        when = ago(_began(seen, rows) or now_ms, now_ms)
        what = f"group {seen.group}: the offsets of {_partitions(rows)} were moved back {when}"
        todo = (
            f"the group rereads {_records(rows)}; to see who did this: kafka-coord groups history {quote(seen.group)}"
        )
        yield info(LAG, what, todo, seen.group)


def check_actions(actions: Mapping[str, Iterable[Action]], now_ms: int) -> Iterator[Finding]:
    """Yields a finding for the operators' last changes to the groups' offsets, which may explain lag or repeated
    records. One command that changed many groups is one finding, and a command that changed no offset is none."""
    last: list[tuple[str | None, Action]] = []
    for group, done in sorted(actions.items()):
        changes = list(filter(changed_offsets, done))
        last += [(group, one) for one in changes[-1:] if now_ms - one.at_ms < REMEMBERED_MS]
    for command in by_command(last):
        first, one = command[0]
        others = f" and of {counted(len(command) - 1, 'other group')}," if len(command) > 1 else ""
        verb = "set" if one.kind == "reset-offsets" else "deleted"
        why = f" ({one.reason})" if one.reason else ""
        change = f": {one.change}" if one.change else ""
        when = ago(one.at_ms, now_ms)
        what = f"group {first}: {one.by or 'someone'} {verb} its offsets{others} {when}{why}{change}"
        todo = (
            "this may be the cause of lag or repeated records; to undo it:"
            f" kafka-coord groups reset-offsets {quote(first or '')} --all-topics --undo"
        )
        yield (warning if now_ms - one.at_ms < NEWS_MS else info)("offsets", what, todo, first or "")


def _trend(seen: Lags, row: OffsetRow) -> Trend:
    return seen.trends.of(row.topic, row.partition)


def _stalled(seen: Lags, owner: str, rows: Sequence[OffsetRow], now_ms: int) -> Finding:
    host = f" on host {seen.members[owner]}" if seen.members.get(owner) else ""
    what = (
        f"group {seen.group}: {owner}{host} has not committed in {_partitions(rows)}"
        f" {_since(seen, rows, now_ms)}; {_waiting(rows)}"
    )
    todo = (
        f"see the log of {owner}, which is stuck on a record or does not commit; then restart {owner}"
        " (evicting it does not help, because it would register again)"
    )
    if all(_trend(seen, row).may_work for row in rows):
        todo = f"nothing, if it works on a batch for up to five minutes; otherwise {todo}"
        return info(LAG, what, todo, seen.group)
    return (warning if seen.is_late(rows) else info)(LAG, what, todo, seen.group)


def _unread(seen: Lags, rows: Sequence[OffsetRow]) -> Finding:
    lag = sum(row.lag or 0 for row in rows)
    what = (
        f"group {seen.group}: its offset stands still in {_partitions(rows)}, {lag:,} {plural('offset', lag)} before"
        " the end, which could not be read: they may hold records, or only markers of transactions"
    )
    todo = (
        "if this client may not read the topic (READ), allow it; otherwise, reading took more than 3 s: try again. See"
        " docs/operations.md, Lag without records"
    )
    return info(LAG, what, todo, seen.group)


def _gone(seen: Lags, rows: Sequence[OffsetRow]) -> Finding:
    what = (
        f"group {seen.group}: {gone_text(sum(row.gone or 0 for row in rows))} from {_partitions(rows)}: they were"
        " deleted, by retention or by an operator, before the group read them"
    )
    todo = (
        "this ends once the group commits again; if it has nothing to read, set its offsets:"
        f" kafka-coord groups reset-offsets {quote(seen.group)} --all-topics --to-earliest"
    )
    if not seen.members:
        return info(LAG, what, todo, seen.group)
    todo = f"keep the records longer, or let the group read faster; {todo}"
    return warning(LAG, what, todo, seen.group)


def _stopped(seen: Lags, rows: Sequence[OffsetRow], now_ms: int) -> Finding:
    what = f"no one has read {_partitions(rows)} {_since(seen, rows, now_ms)}; {_waiting(rows)}"
    if seen.paused:
        return info(LAG, f"group {seen.group}: {what}", f"kafka-coord groups resume {quote(seen.group)}", seen.group)
    if seen.members:
        command = f"kafka-coord groups rebalance {quote(seen.group)} --wait (or, if not managed: restart a member)"
        todo = f"resolve the other findings about {seen.group}; then: {command}"
        return (warning if seen.is_late(rows) else info)(LAG, f"group {seen.group}: {what}", todo, seen.group)
    began = _began(seen, rows)
    missed = began is not None and now_ms - began < REMEMBERED_MS and seen.is_late(rows)
    todo = f"start its consumers, or, if it is no longer needed, {_delete(seen)}"
    return (warning if missed else info)(LAG, f"group {seen.group} has no members: {what}", todo, seen.group)


def _late(seen: Lags, rows: Sequence[OffsetRow]) -> Finding:
    """Of partitions that have not been observed for long enough to tell why they are late."""
    what = f"group {seen.group} is late in {_partitions(rows)}: {_waiting(rows)}"
    if seen.members:
        return warning(LAG, what, f"see whether it catches up: kafka-coord watch {quote(seen.group)}", seen.group)
    missed = not seen.paused and all(1000 * (row.lag_s or 0) < REMEMBERED_MS for row in rows)
    todo = f"it has no members: start its consumers, or, if it is no longer needed, {_delete(seen)}"
    return (warning if missed else info)(LAG, what, todo, seen.group)


def _delete(seen: Lags) -> str:
    return f"remove it: kafka-coord groups delete {quote(seen.group)}"


def _behind(seen: Lags, rows: Sequence[OffsetRow], since: str, growth_s: float) -> Finding:
    speed = f", growing by {_rate(growth_s)}" if growth_s >= 0.5 else ""
    what = f"group {seen.group} has been falling behind in {_partitions(rows)} {since}; {_waiting(rows)}{speed}"
    owners, hot = {row.owner for row in rows}, {one.partition for one in seen.trends.hot}
    of_hot = sum(row.lag or 0 for row in rows if row.tp in hot)
    if 2 * of_hot > sum(row.lag or 0 for row in rows):
        todo = f"most of them are in {PartitionSet.of(hot)}, which is hot (see its finding)"
    elif len(seen.members) < len(seen.rows):
        read = f"{counted(len(seen.members), 'consumer')} read{'s' if len(seen.members) == 1 else ''}"
        todo = f"add consumers ({read} {counted(len(seen.rows), 'partition')}), or make them faster"
        if len(owners) == 1 < len(seen.members):
            todo += f"; only {owners.pop()} is behind, so compare its host with the other hosts"
    else:
        todo = "make the consumers faster, or add partitions, because each partition already has its own consumer"
    return warning(LAG, what, todo, seen.group)


def _hot(seen: Lags, hot: Hot) -> Finding:
    topic, number = hot.partition
    what = (
        f"group {seen.group}: {topic}[{number}] is hot: it gets {math.floor(100 * hot.share)} % of the new records of"
        f" {topic} ({_rate(hot.records_s)}); the rest goes to {counted(hot.others, 'other partition')}"
    )
    todo = "let the producers spread their keys evenly; more consumers do not help, because only one reads a partition"
    late = seen.trends.of(topic, number).verdict in {Verdict.BEHIND, Verdict.STALLED} or seen.trends.total is not None
    return (warning if late else info)(LAG, what, todo, seen.group)


def _partitions(rows: Iterable[OffsetRow]) -> str:
    return partitions_text(PartitionSet.of(row.tp for row in rows))


def _records(rows: Iterable[OffsetRow]) -> str:
    lag = sum(row.lag or 0 for row in rows)
    return f"{lag:,} {plural('record', lag)}"


def _waiting(rows: Sequence[OffsetRow]) -> str:
    """Returns ``1,800 records waiting, the oldest for 12 min``, without the age if that of any partition is unknown."""
    ages = [row.lag_s for row in rows]
    known = [age_s for age_s in ages if age_s is not None]
    oldest = f", the oldest for {duration(round(1000 * max(known)))}" if len(known) == len(ages) > 0 else ""
    return f"{_records(rows)} waiting{oldest}"


def _began(seen: Lags, rows: Iterable[OffsetRow]) -> int | None:
    since = (_trend(seen, row).since_ms for row in rows)
    return min((one for one in since if one is not None), default=None)


def _since(seen: Lags, rows: Iterable[OffsetRow], now_ms: int) -> str:
    """Returns how long the trends have lasted: ``for 12 min (since 10:45:03 UTC)``, or ``""`` if unknown."""
    began = _began(seen, rows)
    return "" if began is None else lasting(began, now_ms)


def _rate(records_s: float) -> str:
    """Formats a rate as ``412 a second`` or ``9 a minute``."""
    return f"{records_s:,.0f} a second" if records_s >= 1 else f"{records_s * 60:,.0f} a minute"
