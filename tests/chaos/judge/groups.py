"""Rules about groups and processes: all groups settle, nothing leaks, and memberships and processes end only for a
reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from kafka_coord.frontends.kafka.listener import THREADS
from tests.chaos.journal import Kind, Phase, Usage
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.faults import CRASHES, OF_THE_WORLD, SHARED_ROLES, of_session
from tests.chaos.judge.findings import ChaosFinding, Rule, Ruling, Severity, ruling, violation
from tests.chaos.judge.ownership import Ending

SETTLE_S = 30.0
"""The bound in s until every group is Stable and every partition has an owner, after the last fault and beyond the
consumers' session timeout.
"""

_MORE_THREADS = 6
"""An instance may also have started every thread of the pool with which its listener calls ZooKeeper: the pool fills
while ZooKeeper is slow, and keeps its threads."""
_MORE_DESCRIPTORS = 24
_OF_A_CLIENT = 6
"""The descriptors that an instance needs for a stock client. The client has up to three connections to each instance
(as bootstrap server, leader and coordinator). For each, the instance has one to its broker."""
_MORE_BYTES = 48 * 2**20
_SPIN_SAMPLES = 3
"""The number of samples, ten seconds apart."""
_SPIN_SHARE = 0.8
_ZNODES_OF_A_SCENE = 40
"""A scene leaves a group with its offsets and channels."""
_ZNODES_OF_A_MIRROR = 400
"""A migration makes the mirror, with the leaders of the groups log."""
_WARM_SAMPLES = 6
_SAMPLES = 3

_REGROUPED = frozenset({Kind.PARTITIONS_ADDED, Kind.TOPIC_ADDED})
"""What makes clients form another generation, although nothing has failed."""


def convergence(records: Records) -> Ruling:
    """Checks that every group is settled within bounded time after the last fault. Each partition must also have an
    owner at the end in the consumers' own files."""
    bound_s = SETTLE_S + records.run.setup.session_timeouts_ms.get("consumer", 0) / 1000
    quiet = next((event.t for event in records.of(Kind.QUIET)), None)
    findings: list[ChaosFinding] = []
    took: list[float] = []
    for group in records.run.groups:
        if quiet is None:
            break
        settled = [event.t for event in records.of(Kind.SETTLED) if event.name == group.name and event.t >= quiet]
        if settled:
            took.append(min(settled) - quiet)
        if not settled or took[-1] > bound_s:
            after = f"only {took[-1]:.1f} s after" if settled else "never after"
            findings.append(
                violation(
                    Rule.CONVERGENCE,
                    f"group {group.name}",
                    f"the group settled {after} the last fault",
                    (records.at(quiet, "the last fault was over"),),
                )
            )
    if quiet is not None:
        findings += _ownerless(records)
    return ruling(
        Rule.CONVERGENCE,
        findings,
        checked=f"{len(took)} groups, the slowest {max(took, default=0.0):.1f} s after the last fault",
        bound=f"{bound_s:g} s",
        exercised=quiet is not None,
        figures={"slowest_s": max(took, default=0.0)},
    )


def _ownerless(records: Records) -> Iterator[ChaosFinding]:
    books = {(book.group, book.partition): book.ownerships for book in records.books}
    for group in records.run.groups:
        for partition in records.subscribed(group):
            owners = books.get((group.name, partition), ())
            if not any(owner.begin <= records.until <= owner.end for owner in owners):
                last = max(owners, key=lambda owner: owner.end, default=None)
                yield violation(
                    Rule.CONVERGENCE,
                    f"group {group.name} {partition}",
                    "it had no owner at the end, according to the consumers' own files",
                    (records.at(last.end, f"{last.process}: {last.ending}"),) if last is not None else (),
                )


def no_leaks(records: Records) -> Ruling:
    """Checks that a process uses about the same resources at the end as after its warm-up, and that the ensemble has
    about as many znodes.
    """
    baseline = next((event.t for event in records.of(Kind.BASELINE)), None)
    since = [usage for usage in records.resources if baseline is not None and usage.t >= baseline]
    by_process = _by_process(since)
    znodes = [usage for usage in since if usage.target == "zookeeper"]
    findings: list[ChaosFinding] = []
    judged = 0
    most = {"threads": 0, "descriptors": 0, "rss_bytes": 0}
    # The third-party consumer runs a Kafka client per partition, so its resources depend on its partitions.
    foreign = {f"consumer:{one.name}" for one in records.run.consumers if one.kind.startswith("third-party")}
    clients = len(records.run.consumers) + len(records.of(Kind.JOIN)) if records.run.clients != "library" else 0
    of_clients = clients * _OF_A_CLIENT
    for (target, pid), samples in by_process.items():
        if len(samples) < _WARM_SAMPLES + 2 * _SAMPLES or target in foreign:
            continue
        judged += 1
        early, late = samples[_WARM_SAMPLES : _WARM_SAMPLES + _SAMPLES], samples[-_SAMPLES:]
        serves = target.startswith("serve:")
        for name, allowed in (
            ("threads", _MORE_THREADS + (THREADS if serves else 0)),
            ("descriptors", _MORE_DESCRIPTORS + (of_clients if serves else 0)),
            ("rss_bytes", _MORE_BYTES),
        ):
            before = median(getattr(one, name) for one in early)
            after = median(getattr(one, name) for one in late)
            most[name] = max(most[name], int(after - before))
            if after - before > allowed:
                findings.append(
                    violation(
                        Rule.NO_LEAKS,
                        f"{target} (pid {pid})",
                        f"{name} grew from {before:g} to {after:g} in {late[-1].t - early[0].t:.0f} s",
                        (records.at(early[0].t, f"{before:g}"), records.at(late[-1].t, f"{after:g}")),
                    )
                )
    findings += _znodes(records, znodes)
    grown = znodes[-1].znodes - znodes[0].znodes if znodes else 0
    return ruling(
        Rule.NO_LEAKS,
        findings,
        checked=(
            f"{judged} processes that lived long enough; at most {most['threads']:+d} threads, "
            f"{most['descriptors']:+d} descriptors, {most['rss_bytes'] / 2**20:+.1f} MiB; znodes {grown:+d}"
        ),
        bound=f"+{_MORE_THREADS} threads (instances: {THREADS} more), +{_MORE_DESCRIPTORS} descriptors,"
        f" +{_MORE_BYTES // 2**20} MiB",
        exercised=judged > 0,
        figures={f"most_{name}": float(value) for name, value in most.items()} | {"znodes": float(grown)},
    )


def no_spin(records: Records) -> Ruling:
    """Checks that no consumer or coordinator uses a whole core for half a minute. Their work is light, so this would be
    a busy loop.
    """
    by_process = _by_process(records.resources)
    findings: list[ChaosFinding] = []
    most = 0.0
    for (target, pid), samples in by_process.items():
        for first, last in zip(samples, samples[_SPIN_SAMPLES:], strict=False):
            share = (last.cpu_s - first.cpu_s) / max(last.t - first.t, 1e-9)
            most = max(most, share)
            if share > _SPIN_SHARE:
                findings.append(
                    violation(
                        Rule.NO_SPIN,
                        f"{target} (pid {pid})",
                        f"it used {share:.0%} of a core for {last.t - first.t:.0f} s",
                        (records.at(first.t, f"{first.cpu_s:.0f} s"), records.at(last.t, f"{last.cpu_s:.0f} s")),
                    )
                )
                break
    return ruling(
        Rule.NO_SPIN,
        findings,
        checked=f"{len(by_process)} processes; at most {most:.0%} of a core for half a minute",
        bound=f"{_SPIN_SHARE:.0%} of a core",
        exercised=bool(by_process),
        figures={"most_share": most},
    )


def _by_process(samples: Iterable[Usage]) -> dict[tuple[str, int], list[Usage]]:
    """Maps (target, pid) to the samples of the process, in order."""
    found: dict[tuple[str, int], list[Usage]] = {}
    for usage in samples:
        if usage.target != "zookeeper":
            found.setdefault((usage.target, usage.pid), []).append(usage)
    return found


def _znodes(records: Records, samples: list[Usage]) -> list[ChaosFinding]:
    """Reports znodes beyond the expected growth. Each new partition adds znodes of Kafka and of each group's offsets.
    Each new consumer adds a channel, which stays for ten minutes."""
    if len(samples) < 2:
        return []
    partitions = 0
    known: dict[str, int] = {}
    for event in records.of(Kind.TOPIC_ADDED, Kind.PARTITIONS_ADDED):
        topic, total = event.detail["topic"], event.detail["partitions"]
        partitions += total - known.get(topic, total - 2 if event.kind == Kind.PARTITIONS_ADDED else 0)
        known[topic] = total
    names = len(records.of(Kind.JOIN))
    groups = len(records.run.groups)
    mirrors = 1 if records.of(Kind.MIGRATING) else 0
    scenes = sum(event.phase is Phase.BEGIN for event in records.of(*OF_THE_WORLD))
    allowed = 100 + partitions * (3 + groups) + 4 * names + _ZNODES_OF_A_SCENE * scenes + _ZNODES_OF_A_MIRROR * mirrors
    grown = samples[-1].znodes - samples[0].znodes
    if grown <= allowed:
        return []
    return [
        violation(
            Rule.NO_LEAKS,
            "ZooKeeper",
            f"znodes grew by {grown}, but {partitions} new partitions, {names} new names and {scenes} scenes "
            f"explain only {allowed}",
            (records.at(samples[0].t, str(samples[0].znodes)), records.at(samples[-1].t, str(samples[-1].znodes))),
        )
    ]


def explained(records: Records) -> Ruling:
    """Checks that each lost membership has a fault of the consumer, its link or ZooKeeper. For a consumer without
    ZooKeeper, it may also be a fault of a coordinator, and for a stock client, of a broker. In a client-assigned group,
    new partitions count as one: librdkafka before 2.10 gives everything up if it commits while the group forms its next
    generation (https://github.com/confluentinc/librdkafka/issues/4059). A lost tree ends every membership, which some
    members learn only once a coordinator is elected again.
    """
    findings: list[ChaosFinding] = []
    losses = 0
    assigned = {group.name for group in records.run.groups if group.assigned}
    for life in records.lives:
        regrouped = _REGROUPED if life.journal.group in assigned else frozenset()
        for t, partitions in life.losses:
            if _tree_is_lost(records, t):
                continue
            if t > records.until:
                continue  # the testbed stops all consumers then, and a query may leave with a planned micro-batch
            losses += 1
            name, journal = life.journal.consumer, life.journal
            serving = SHARED_ROLES if journal.stock else ("zookeeper", "serve") if journal.socket else ("zookeeper",)
            why = [
                fault
                for fault in records.faults.under_way(t)
                if fault.kind in regrouped
                or (fault.kind in CRASHES | {Kind.STOP, Kind.RESET_CONNECTIONS} and of_session(fault, name, serving))
            ]
            if not why:
                findings.append(
                    violation(
                        Rule.EXPLAINED,
                        f"group {life.journal.group} {name}",
                        f"it lost its membership and {len(partitions)} partitions without a fault",
                        (records.at(t, f"{life.journal.path}: lost"),),
                    )
                )
    return ruling(Rule.EXPLAINED, findings, checked=f"{losses} losses of a membership", exercised=losses > 0)


def _tree_is_lost(records: Records, t: float) -> bool:
    ends = {event.target: event.t for event in records.of(Kind.TREE_LOST, phase=Phase.END)}
    begun = records.of(Kind.TREE_LOST, phase=Phase.BEGIN)
    return any(event.t <= t <= ends.get(event.target, records.until) for event in begun)


def unmoved(records: Records) -> Ruling:
    """Checks that no partition is revoked and assigned to the same consumer again, except to an eager consumer. Under a
    fault, this is only a warning, because the intended new owner may have died.
    """
    findings: list[ChaosFinding] = []
    stops = 0
    for book in records.books:
        for before, after in zip(book.ownerships, book.ownerships[1:], strict=False):
            if before.eager:
                continue
            stops += before.ending is Ending.STOPPED
            if before.ending is Ending.STOPPED and not before.lost_after_stop and after.process == before.process:
                excused = records.faults.under_way(before.end, after.begin)
                findings.append(
                    ChaosFinding(
                        Rule.UNMOVED,
                        Severity.WARNING if excused else Severity.VIOLATION,
                        book.where,
                        f"{before} gave it up and got it again {after.begin - before.end:.3f} s later",
                        (records.at(before.end, "stopped"), records.at(after.begin, "started")),
                    )
                )
    return ruling(
        Rule.UNMOVED,
        findings,
        checked=f"{stops} partitions given up, {len(findings)} of which came back to the same process",
        exercised=stops > 0,
        figures={"given_up": stops, "came_back": len(findings)},
    )


def complete(records: Records) -> Ruling:
    """Checks that the run reached its end, and that no process ended unexpectedly. A ZooKeeper server may end if it
    logs that it missed a transaction (ZOOKEEPER-4925). The testbed starts it again, as an operator would."""
    findings = [
        violation(Rule.COMPLETE, "the run", f"it never reached {kind}")
        for kind in (Kind.BASELINE, Kind.QUIET, Kind.ENDED)
        if not records.of(kind)
    ]
    findings += [
        ChaosFinding(
            Rule.COMPLETE,
            Severity.EXCEPTION if event.detail.get("own_check") else Severity.VIOLATION,
            event.target,
            f"it ended unexpectedly with exit code {event.detail.get('exit_code')}"
            + (f", by ZooKeeper's own check: {own}" if (own := event.detail.get("own_check")) else ""),
            (records.at(event.t, "found gone"),),
        )
        for event in records.of(Kind.DIED)
    ]
    findings += [
        violation(
            Rule.COMPLETE,
            f"consumers/{journal.path}",
            "the process was not killed, but did not leave",
            (records.at(journal.lines[-1].t, "its last line"),),
        )
        for journal in records.journals
        if not journal.closed and not records.killed(journal)
    ]
    return ruling(
        Rule.COMPLETE, findings, checked=f"{len(records.journals)} consumer processes, {len(records.events)} events"
    )
