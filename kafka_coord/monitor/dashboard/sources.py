"""Reads the API's documents, and keeps what only repeated reads can reveal."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET, structs
from msgspec.structs import asdict

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import MalformedValue, NotFound
from kafka_coord.groups.client_assigned import (
    ClientGroup,
    ClientGroups,
    described,
    list_client_groups,
    with_offsets,
)
from kafka_coord.groups.cluster import Cluster, ClusterDocument, read_cluster, read_cluster_history
from kafka_coord.groups.directory import GroupDirectory, SearchDocument, TopicReadersDocument, read_topic, selected
from kafka_coord.groups.group import (
    ActionDocument,
    ClusterHistoryDocument,
    DecisionDocument,
    ElectionDocument,
    GroupDescription,
    GroupDocument,
    GroupRow,
    LogRanges,
    QueuedRequest,
    Time,
    Verdict,
    counted,
)
from kafka_coord.groups.instances import AskedInstances, Presence, read_presences
from kafka_coord.groups.lag import LagRound, LagService
from kafka_coord.groups.lag_trend import tolerated, trend, verdict_of_group
from kafka_coord.groups.managed import describe_groups
from kafka_coord.groups.requests import read_requests
from kafka_coord.kafka.offsets import LogRangeCache
from kafka_coord.model import GroupKind, TopicPartition
from kafka_coord.model.histories import Trail
from kafka_coord.monitor.dashboard.documents import (
    LagDocument,
    LaneDocument,
    OverviewDocument,
    PartitionLagDocument,
    PartitionRow,
    SpanDocument,
    TimelineDocument,
    TopicDocument,
    UnassignedDocument,
    UnassignedGroupDocument,
)
from kafka_coord.monitor.dashboard.group_rows import AT_ONCE, RECENT_MS, GroupRows
from kafka_coord.monitor.dashboard.timeline import Timeline
from kafka_coord.monitor.doctor import Finding, LagSight, Severity, examine, examine_group
from kafka_coord.monitor.doctor.findings import FindingDocument, info
from kafka_coord.monitor.doctor.groups import Lags, check_actions, check_lag, unreadable_finding
from kafka_coord.monitor.doctor.zookeeper import ServerFacts, check_access
from kafka_coord.zk.store import Store

MAX_ROWS = 100
"""The maximum number of groups in one list."""
MAX_LANES = 500
"""The maximum number of partitions in a timeline."""
MANY_GROUPS = 500
"""Above this number of groups, the doctor examines only groups that are not at rest, and those furthest behind."""
_MOST_FOUND = 20
_REMEMBERED = 20
"""The maximum number of groups with a stored timeline."""
_PRESENCES_S = 5.0
_ACCESS_SHARE = 2000
"""The shortest interval between checks of the ACLs, as a multiple of the CPU time of a check."""
_IN_TROUBLE = (GroupState.DEAD, GroupState.PAUSED, GroupState.REBALANCING)


@dataclass(frozen=True, slots=True)
class _States:
    """The number of groups in each state, and the groups in trouble, for one version of the rows."""

    version: int
    clients: Mapping[str, GroupRow]
    counts: Mapping[str, int]
    troubled: Sequence[GroupRow]

    @classmethod
    def of(cls, rows: GroupRows, clients: Mapping[str, GroupRow]) -> _States:
        version = rows.version  # read first, so a row that changes in the meantime is counted again
        found = {**clients, **rows.rows}.values()
        troubled = [row for row in found if row.state in _IN_TROUBLE or row.pending or row.unreadable]
        troubled.sort(key=lambda row: (-row.unreadable, str(row.state), row.group))
        counts = Counter(row.state for row in found)
        return cls(version, clients, {str(state): counts[state] for state in sorted(counts)}, troubled)


@dataclass(slots=True)
class _GroupMemory:
    """The observed owners of one group."""

    timeline: Timeline | None = None
    asked: bool = False
    """Whether the brokers have been queried about the group's partitions."""


class NotReadYet(Exception):
    """A document that the requested one depends on has not been read yet."""


class Sources:
    """Reads documents for all open pages. ``store`` was opened with ``hosts``, ``session_timeout_ms`` and ``tls``.
    ``properties`` are librdkafka settings. Calls ``wake``, which must be thread-safe, when a group changes. ``service``
    outlive the session."""

    def __init__(
        self,
        store: Store,
        hosts: str,
        properties: Mapping[str, str],
        *,
        session_timeout_ms: int,
        tls: bool,
        wake: Callable[[], None],
        service: LagService,
    ) -> None:
        self.store = store
        self._service = service
        self._hosts, self._tls, self._session_timeout_ms = hosts, tls, session_timeout_ms
        self._properties = properties
        self._instances = AskedInstances(store, properties)
        self._directory = GroupDirectory(self._instances)
        self._logs = LogRangeCache(store, properties)
        self._lock = threading.RLock()
        self._memories: OrderedDict[str, _GroupMemory] = OrderedDict()
        self._cluster: Cluster | None = None
        self.rows = GroupRows(store, wake)
        self._clients: ClientGroups | None = None
        """``None`` before the first read."""
        self._client_rows: dict[str, GroupRow] = {}
        self.lags = LagRound(self._directory, self._logs.read, service)
        self._states: _States | None = None
        self._heard: dict[str, tuple[float, Mapping[tuple[str, str], Presence]]] = {}
        self._servers: dict[str, ServerFacts] = {}
        self._access: tuple[Finding, ...] = ()
        self._access_due = 0.0

    def close(self) -> None:
        self._logs.close()
        self.store.close()

    # --- the whole cluster -------------------------------------------------------------------------------------------

    def _seen(self) -> Cluster:
        return self._cluster or self._look()

    def _look(self) -> Cluster:
        self._cluster = cluster = read_cluster(self.store, self._cluster)
        self.rows.known(cluster.groups)
        return cluster

    def cluster(self) -> ClusterDocument:
        return ClusterDocument.of(self._look())

    def cluster_history(self) -> ClusterHistoryDocument:
        found = read_cluster_history(self.store)
        return ClusterHistoryDocument(
            elections=[ElectionDocument.of(one) for one in found.elections],
            actions=ActionDocument.of_cluster(found.actions),
        )

    def requests(self) -> list[QueuedRequest]:
        return self._waiting_requests()

    def findings(self) -> list[FindingDocument]:
        """Returns the doctor's findings. If there are many groups, leaves out groups at rest, except those furthest
        behind."""
        names = None
        if self._has_many_groups:
            names = [name for name, row in list(self._all_rows().items()) if row.state not in {"Stable", "Empty"}]
            names += [name for name in self.lags.furthest_behind if name not in names]
        found = examine(
            self.store,
            self._hosts,
            session_timeout_ms=self._session_timeout_ms,
            tls=self._tls,
            kafka=self._properties,
            groups=names,
            writes=False,
            lag=LagSight(self._logs.read, self._service),
            servers=self._servers,
            earlier=self._cluster,
            access_findings=self._access_findings,
        )
        shown = [FindingDocument.of(one) for one in found]
        if names is not None:
            several = len(self._all_rows())
            what = f"{several - len(names)} of {several} groups are at rest, and were not examined here"
            shown.append(FindingDocument.of(info("groups", what, "kafka-coord doctor examines all groups")))
        return shown

    def _access_findings(self) -> Iterator[Finding]:
        """Yields the findings about the ACLs. Repeats the check only rarely, since it reads thousands of ACLs one by
        one."""
        if time.monotonic() >= self._access_due:
            began = time.thread_time()
            self._access = tuple(check_access(self.store))
            self._access_due = time.monotonic() + _ACCESS_SHARE * (time.thread_time() - began)
        return iter(self._access)

    def topics(self) -> list[TopicDocument]:
        cluster = self._seen()
        return [
            TopicDocument(
                topic=name,
                partitions=len(topic.partitions),
                changed=Time.of(cluster.topics_changed_ms.get(name)),
            )
            for name, topic in sorted(cluster.topics.items())
        ]

    def topic(self, topic: str) -> TopicReadersDocument:
        """Returns who reads the topic, among the groups whose lag has been measured."""
        rows, read = self._all_rows(), dict(self.lags.topics)
        kinds = {name: row.kind for name, row in rows.items() if topic in read.get(name, ())}
        unmeasured = self.rows.left + sum(name not in read for name in rows)
        known = kinds, self._missing
        return read_topic(self._directory, topic, self._logs.read, self._service, known, unmeasured)

    def unassigned(self) -> UnassignedDocument:
        """Returns the partitions that no live member owns. Examines at most :data:`MAX_ROWS` groups, those with members
        first. While the coordinator makes decisions, leaves out stable managed groups, whose partitions all have
        owners. Raises :class:`NotReadYet`."""
        listed = self._clients
        if not self.rows.complete or listed is None:
            raise NotReadYet
        cluster = self._seen()
        managed = [
            row for row in list(self.rows.rows.values()) if cluster.undecided or row.state is not GroupState.STABLE
        ]
        names = self.rows.rows.keys()
        clients = {
            one.group: one
            for one in listed.groups
            if one.group not in names and (one.state is not GroupState.STABLE or one.unowned(cluster.topics))
        }
        rows: list[GroupRow | ClientGroup] = [*managed, *clients.values()]
        rows.sort(key=lambda row: (not row.members, row.group))
        looked_at = [row.group for row in rows[:MAX_ROWS]]
        theirs = with_offsets(self._instances, [clients[name] for name in looked_at if name in clients])
        found = [
            *describe_groups(self.store, cluster, [name for name in looked_at if name not in clients], None),
            *described(theirs, cluster.topics, None),
        ]
        shown = {one.group: UnassignedGroupDocument.of(one, cluster.undecided) for one in found}
        groups = [shown[name] for name in looked_at if name in shown and shown[name].count]
        return UnassignedDocument(
            groups=groups, partitions=sum(one.count for one in groups), left_out=len(rows) - len(looked_at)
        )

    def overview(self) -> OverviewDocument:
        cluster, now_ms = self._seen(), self._now_ms()
        states = self._states
        if states is None or (states.version, states.clients) != (self.rows.version, self._client_rows):
            self._states = states = _States.of(self.rows, self._client_rows)
        known = self._all_rows()
        lagging = [row for name in self.lags.furthest_behind if (row := known.get(name)) is not None]
        minutes = Counter(at // 60_000 for at in list(self.rows.decided_ms) if at > now_ms - RECENT_MS)
        this_minute = now_ms // 60_000
        of_cluster = asdict(ClusterDocument.of(cluster))
        of_cluster["groups"] = sum(states.counts.values()) + self.rows.left
        return OverviewDocument(
            **of_cluster,
            groups_unread=self.rows.left,
            states=dict(states.counts),
            troubled=[self._with_lag(row) for row in states.troubled[:MAX_ROWS]],
            troubled_count=len(states.troubled),
            lagging=[self._judged(self._with_lag(row)) for row in lagging],
            lagging_count=self.lags.behind,
            lag_unknown=self.lags.unknown,
            lag_since=Time.of(self.lags.since_ms),
            lag_unmeasured=max(0, len(known) - len(self.lags.measured)),
            rebalances=[(minute * 60_000, minutes[minute]) for minute in range(this_minute - 59, this_minute + 1)],
            missing=list(self._missing),
        )

    def _judged(self, row: GroupRow) -> GroupRow:
        lag_s = None if row.lag_s is UNSET else row.lag_s
        return structs.replace(row, verdict=self._tolerated(row.group, self._service.verdict(row.group), lag_s))

    def _tolerated(self, group: str, verdict: Verdict, lag_s: float | None) -> Verdict:
        return tolerated(verdict, lag_s, self.lags.warnings_ms.get(group, self._service.warning_ms))

    @property
    def _has_many_groups(self) -> bool:
        return len(self.rows.rows) + len(self._client_rows) > MANY_GROUPS

    def groups(
        self, search: str = "", state: str = "", sort: str = "", skip: str = "", limit: str = ""
    ) -> list[GroupRow]:
        """Returns matching groups, without the first ``skip``. Raises :class:`NotReadYet`."""
        if not self.rows.complete or self._clients is None:
            raise NotReadYet
        rows = selected(map(self._with_lag, self._all_rows().values()), search, [state] if state else (), sort)
        first = _count(skip, 0)
        return rows[first : first + _count(limit, MAX_ROWS)]

    def search(self, search: str = "") -> SearchDocument:
        """Returns the first groups, topics and consumers whose names, hosts or client ids contain ``search``."""
        known = self._all_rows(), self._seen().topics, self.lags.consumers
        return SearchDocument.of(search, *known, notes=self._missing, most=_MOST_FOUND)

    @property
    def _missing(self) -> Sequence[str]:
        """Which groups cannot be shown, and why."""
        return self._clients.missing if self._clients is not None else ()

    def _all_rows(self) -> dict[str, GroupRow]:
        """Returns all rows by name. A managed group hides a client-assigned group of the same name."""
        return {**self._client_rows, **self.rows.rows}

    def _with_lag(self, row: GroupRow) -> GroupRow:
        measured = self.lags.measured.get(row.group)
        return row if measured is None else row.with_lag(measured[1])

    # --- facts that only repeated reads reveal -----------------------------------------------------------------------

    def read_rows(self) -> bool:
        """Reads some of the changed groups. Returns whether a row changed or more groups may be due for a read."""
        version = self.rows.version
        return self.rows.step(self._seen()) == AT_ONCE or self.rows.version != version

    def read_clients(self) -> bool:
        """Reads the client-assigned groups from the instances."""
        self._clients = found = list_client_groups(self._instances)
        rows = {row.group: row for row in found.rows}
        self._client_rows = rows if rows != self._client_rows else self._client_rows
        return True

    def read_lags(self) -> bool:
        """Measures the lag of the next few groups. Returns whether any group was measured."""
        # with many groups, the next sample comes too late for a trend
        return self.lags.step(self._all_rows(), self._seen(), self.rows.is_at_rest if self._has_many_groups else None)

    # --- one group ---------------------------------------------------------------------------------------------------

    def group(self, group: str) -> GroupDocument:
        with self._lock:
            memory = self._memory(group)
            found = self._describe(group, self._logs.read if not memory.asked else self._logs.known)
            memory.asked = True
            self._observe(group, memory, found)
        waiting = [one for one in self._waiting_requests() if one.group in {group, None}]
        return GroupDocument.of(found, waiting)

    def history(self, group: str) -> list[DecisionDocument]:
        return [DecisionDocument.of(one) for one in self._trail(group).decisions]

    def actions(self, group: str) -> list[ActionDocument]:
        return [ActionDocument.of(one) for one in self._trail(group).actions]

    def timeline(self, group: str) -> TimelineDocument:
        with self._lock:
            memory = self._memory(group)
            self._observe(group, memory, self._describe(group, self._logs.known))
            found = memory.timeline
            assert found is not None  # noqa: S101  observed just now
            lanes = sorted(found.spans)
            return TimelineDocument(
                group=group,
                since=Time.of(found.since_ms),
                partitions=[
                    LaneDocument(topic=tp.topic, partition=tp.partition, spans=_spans(found, tp))
                    for tp in lanes[:MAX_LANES]
                ],
                left_out=max(0, len(lanes) - MAX_LANES),
            )

    def group_findings(self, group: str) -> list[FindingDocument]:
        """Returns the doctor's findings about the group."""
        if self._directory.find(group).kind is GroupKind.MANAGED:
            found = examine_group(self.store, group, LagSight(self._logs.read, self._service), self._cluster)
            return [FindingDocument.of(one) for one in found if one.severity is not Severity.OK]
        seen = self._describe(group, self._logs.known)
        members = {one.consumer: one.host or "" for one in seen.members}
        lags = Lags(
            group, counted(seen.offsets), self._service.trends(group), members, warning_ms=self._service.warning_ms
        )
        now_ms = self._now_ms()
        trail = self._trail(group)
        of_clients = [unreadable_finding(one) for one in trail.unreadable]
        of_clients += [*check_lag(lags, now_ms), *check_actions({group: trail.actions}, now_ms)]
        return [FindingDocument.of(one) for one in of_clients]

    def lag(self, group: str) -> LagDocument:
        """Takes a sample of the group's lag and returns the lag with its trend."""
        now_ms = self._now_ms()
        found = self._describe(group, self._logs.read)
        with self._lock:
            self._memory(group).asked = True
        self._service.add(group, now_ms, found.offsets, found.decided_at_ms or 0)
        trends = self._service.trends(group)
        judged = [(row, trends.of(row.topic, row.partition)) for row in counted(found.offsets)]
        verdicts = [self._tolerated(group, one.verdict, row.lag_s) for row, one in judged]
        total = trends.total if self._tolerated(group, Verdict.BEHIND, found.lag.lag_s) is Verdict.BEHIND else None
        return LagDocument(
            group=group,
            verdict=verdict_of_group(verdicts, total),
            verdict_unknown=verdicts.count(Verdict.UNKNOWN),
            note=found.lag_note or None,
            **found.lag.fields(),
            partitions=[
                PartitionLagDocument(
                    topic=row.topic,
                    partition=row.partition,
                    lag=row.lag,
                    gone=row.gone,
                    lag_s=row.lag_s,
                    lag_s_by=row.lag_s_by,
                    verdict=verdict,
                    since=Time.of(one.since_ms if verdict is one.verdict else None),
                )
                for (row, one), verdict in zip(judged, verdicts, strict=True)
            ],
            samples=self._service.totals(group),
        )

    def partition(self, group: str, topic: str, partition: str) -> PartitionRow:
        """Returns one partition's offsets, trend and owners. Unlike :meth:`lag`, does not take a sample."""
        found = self._describe(group, self._logs.known)
        rows = [row for row in found.offsets if (row.topic, str(row.partition)) == (topic, partition)]
        if not rows:
            raise NotFound(f"group {group!r} has no partition {topic}[{partition}]")
        tp = TopicPartition(topic, rows[0].partition)
        with self._lock:
            memory = self._memory(group)
            self._observe(group, memory, found)
            spans = _spans(memory.timeline, tp) if memory.timeline is not None else []
        samples = self._service.samples(group, tp)
        judged = trend(samples)
        verdict = self._tolerated(group, judged.verdict, rows[0].lag_s)
        return PartitionRow(
            **rows[0].fields(),
            group=group,
            verdict=verdict,
            since=Time.of(judged.since_ms if verdict is judged.verdict else None),
            spans=spans,
            samples=[(one.at_ms, one.committed, one.lag, one.gone) for one in samples],
        )

    def _memory(self, group: str) -> _GroupMemory:
        memory = self._memories.setdefault(group, _GroupMemory())
        self._memories.move_to_end(group)
        if len(self._memories) > _REMEMBERED:
            self._memories.popitem(last=False)
        return memory

    def _observe(self, group: str, memory: _GroupMemory, found: GroupDescription) -> None:
        owners = {row.tp: row.owner for row in found.offsets if row.owner is not None}
        now_ms = self._now_ms()
        if memory.timeline is None:
            try:
                decisions = self._trail(group).decisions
            except MalformedValue:
                decisions = ()
            memory.timeline = Timeline.of(decisions, owners, now_ms)
        memory.timeline.observe(owners, now_ms)

    def _describe(self, group: str, log_ranges: LogRanges) -> GroupDescription:
        found = self._directory.find(group).describe(group, log_ranges, self._presences, self._seen())
        return self._service.described([found], self._now_ms())[0]

    def _presences(self, url: str) -> Mapping[tuple[str, str], Presence]:
        """Returns what the instance knows about all its consumers. Queries it at most once every few seconds."""
        at, known = self._heard.get(url, (0.0, {}))
        if time.monotonic() > at + _PRESENCES_S:
            known = read_presences(url)
            self._heard[url] = time.monotonic(), known
        return known

    def _trail(self, group: str) -> Trail:
        """Returns what is recorded in ZooKeeper about the group. The decisions about client-assigned groups are not."""
        return self._directory.find(group).actions(group)

    def _waiting_requests(self) -> list[QueuedRequest]:
        return [one for one in read_requests(self.store)[0] if not one.answered]

    def _now_ms(self) -> int:
        return round(self.store.clock.time() * 1000)


def _count(written: str, default: int) -> int:
    return int(written) if written.isascii() and written.isdigit() and len(written) < 9 else default


def _spans(timeline: Timeline, tp: TopicPartition) -> list[SpanDocument]:
    return [
        SpanDocument(consumer=one.consumer, from_ms=one.from_ms, to_ms=one.to_ms) for one in timeline.spans.get(tp, ())
    ]
