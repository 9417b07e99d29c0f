"""Finds what is unreadable, stale, stuck or forgotten in groups. Does no I/O: callers pass what they have read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.coordinator.remediation import what_to_do
from kafka_coord.groups.cluster import Cluster, group_of
from kafka_coord.groups.group import QueuedRequest, WaitingCommand, lasting
from kafka_coord.groups.state import GroupSnapshot, lost, waits
from kafka_coord.model import Pause, Unreadable
from kafka_coord.model.sequences import grouped, some
from kafka_coord.monitor.doctor.findings import Finding, error, info, ok, warning
from kafka_coord.zk import layout

FORGOTTEN_PAUSE_MS = 3_600_000
OLD_REQUEST_MS = 60_000
SLOW_COMMAND_MS = 5_000
"""The age at which a command is reported. A healthy consumer acknowledges a command in milliseconds."""
LISTING_WARNING_BYTES = 700_000
"""Warn if the group names together exceed this size. ZooKeeper lists children in one response, which jute.maxbuffer
limits to 1 MB by default."""


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
        what = (
            f"group {group}: the registration of {some(persistent, 5)} is persistent, so it does not end with a session"
        )
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
            what = f"group {group}: {some(channel.strays, 5)} in the channel of {consumer} is not a command"
            yield info("channels", what, f"delete it below {layout.channel(group, consumer)}", group)
    yield from _check_waiting(cluster, snapshot, waiting, now_ms)
    if snapshot.pause is not None:
        finding = warning if now_ms - snapshot.pause.since_ms > FORGOTTEN_PAUSE_MS else info
        what = f"group {group} has been paused {_by(snapshot.pause, now_ms)}"
        yield finding("pauses", what, f"kafka-coord groups resume {group}", group)
    missing = snapshot.missing_topics
    if missing:
        do, it = ("does", "it") if len(missing) == 1 else ("do", "them")
        what = f"group {group} subscribes to {some(missing, 5)}, which {do} not exist"
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
    group = snapshot.group
    late = {one.consumer for one in waiting if one.waited_ms(now_ms) > SLOW_COMMAND_MS}
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
        what = f"group {group}: {counted(len(orphaned), 'command')} for {some(gone, 5)}, which {are} gone"
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
