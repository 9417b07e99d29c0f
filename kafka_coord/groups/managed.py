"""Describes managed groups: a summary of each group, or one group in full, with its history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from kafka_coord.coordinator.image import read_targets
from kafka_coord.coordinator.plan.membership import membership_of
from kafka_coord.coordinator.plan.reasons import first_of, plural
from kafka_coord.coordinator.tolerant_reads import what_to_do
from kafka_coord.errors import KafkaCoordError, MalformedValue, NoNode, NotFound, RequestRefused, Timeout
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.groups.cluster import Cluster, Reading, group_of, plainly, read_cluster
from kafka_coord.groups.group import (
    AnswerDocument,
    GroupDescription,
    GroupRow,
    LagTotal,
    LogRanges,
    MemberRow,
    OffsetRow,
    Time,
    WaitingCommand,
    paused_by,
)
from kafka_coord.groups.instances import Presence, Presences, read_instances, require_members
from kafka_coord.groups.offsets import (
    Committed,
    all_partitions,
    holders,
    offset_rows,
    partitions_of,
    read_all_committed,
    read_committed,
    rows_of,
)
from kafka_coord.groups.requests import (
    Acting,
    OnProgress,
    ask,
    change_settings,
    pause,
    pause_of,
    resume,
    settled,
    submit,
    wait_until,
)
from kafka_coord.groups.reset import Resettable
from kafka_coord.groups.state import (
    GroupSnapshot,
    Waiting,
    group_state,
    group_status,
    read_groups,
    read_waiting,
    waits,
    without_member,
)
from kafka_coord.groups.verbs import Contact, Convertible, GroupOffsets, GroupVerbs, ListedGroups, OnOffsets
from kafka_coord.model import (
    NO_PARTITIONS,
    Action,
    GroupKind,
    GroupSettings,
    Ledger,
    Member,
    PartitionSet,
    Request,
    RequestType,
    Settled,
    Subscription,
    TopicPartition,
    Unreadable,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail, offsets_change
from kafka_coord.model.names import is_legal, legal
from kafka_coord.model.offsets import LogRange
from kafka_coord.model.operations import DEFAULT_ASSIGNOR
from kafka_coord.model.sequences import grouped, some
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Store

MAX_WAITS = 3
"""A group's status names at most this many consumers with unacknowledged commands."""


def _logs(
    snapshots: Mapping[str, GroupSnapshot], committed: Mapping[str, Committed], log_ranges: LogRanges | None
) -> tuple[Mapping[TopicPartition, LogRange], str]:
    """Requests the logs of all the groups at once."""
    if log_ranges is None:
        return {}, ""
    wanted = (partitions_of(one.observation, committed[group]) for group, one in snapshots.items())
    return log_ranges(PartitionSet.union(wanted))


def snapshot_of(store: Store, group: str, earlier: Cluster | None = None) -> tuple[Cluster, GroupSnapshot]:
    """Reads the cluster and one group. If there is no such group, raises :class:`NotFound`, which lists the existing
    groups. ``earlier`` is an earlier view of the cluster, which saves listing the groups again if the list has not
    changed."""
    cluster = read_cluster(store, earlier)
    found = read_groups(store, [group], cluster).get(group)
    if found is None:
        known = f"existing groups: {some(cluster.groups, 10)}" if cluster.groups else "there are no groups"
        raise NotFound(f"no group {group!r}; {known}")
    return cluster, found


def describe_group(
    store: Store,
    group: str,
    log_ranges: LogRanges | None,
    presences: Presences | None = None,
    earlier: Cluster | None = None,
) -> GroupDescription:
    """Describes ``group``. Without ``log_ranges``, does not query the brokers, and every lag is unknown. Without
    ``presences``, does not ask the instances when they last heard from consumers without ZooKeeper. ``earlier`` is an
    earlier view of the cluster, which saves listing the groups again if the list has not changed. Raises
    :class:`NotFound`.
    """
    cluster, snapshot = snapshot_of(store, group, earlier)
    return next(describe_snapshots(store, cluster, {group: snapshot}, log_ranges, presences))


def describe_groups(
    store: Store,
    cluster: Cluster,
    groups: Iterable[str],
    log_ranges: LogRanges | None,
    presences: Presences | None = None,
) -> tuple[GroupDescription, ...]:
    """Describes several groups like :func:`describe_group`, but reads them together. Leaves out groups that do not
    exist."""
    return tuple(describe_snapshots(store, cluster, read_groups(store, groups, cluster), log_ranges, presences))


def describe_snapshots(
    store: Store,
    cluster: Cluster,
    snapshots: Mapping[str, GroupSnapshot],
    log_ranges: LogRanges | None,
    presences: Presences | None = None,
    waiting: Waiting | None = None,
) -> Iterator[GroupDescription]:
    """Describes groups that have already been read, like :func:`describe_group`. Reads the groups' outstanding
    commands, unless ``waiting`` is given."""
    waiting = waiting or read_waiting(store, snapshots)
    commands = grouped(waiting.commands, lambda one: one.group)
    damaged = grouped(waiting.unreadable, lambda one: group_of(one.path))
    committed = read_all_committed(store, snapshots, cluster.topics)
    logs, note = _logs(snapshots, committed, log_ranges)
    now_ms = round(store.clock.time() * 1000)
    for group, snapshot in snapshots.items():
        seen, outstanding = snapshot.observation, commands.get(group, [])
        target = seen.assignment
        members, heard_note = _with_presence(store, group, member_rows(snapshot, outstanding), cluster, presences)
        # The coordinator does not start a partition whose offset or commands it cannot read, so these count as
        # unreadable too.
        unreadable = (*seen.unreadable, *committed[group].unreadable, *damaged.get(group, ()))
        judged = group_status(replace(seen, unreadable=unreadable))
        missing = snapshot.missing_topics
        nothing = [f"members subscribe to topics that do not exist: {some(missing)}"] if missing else []
        waits_for = list(waits(snapshot, outstanding, now_ms, cluster.deciding_since_ms).values())
        if len(waits_for) > MAX_WAITS:
            more = len(waits_for) - MAX_WAITS
            waits_for[MAX_WAITS:] = [f"{more} more {plural('consumer', more)} with unacknowledged commands"]
        yield GroupDescription(
            group=group,
            kind=GroupKind.MANAGED,
            state=judged.state,
            status="; ".join((judged.summary, *nothing, *waits_for, *_cannot_read(snapshot))),
            generation=target.generation if target else None,
            reason=target.reason if target else "",
            decided_at_ms=target.timestamp_ms if target else None,
            assignor=_assignor(snapshot),
            coordinator=cluster.coordinator.broker_id if cluster.coordinator else None,
            settings=seen.settings,
            pause=seen.pause,
            paused_everywhere=snapshot.paused_everywhere is not None,
            members=members,
            offsets=_with_awaited(offset_rows(seen, committed[group], logs), snapshot.awaited),
            of_earlier_topic=committed[group].of_earlier_topic,
            unowned=without_member(snapshot, committed[group], cluster.topics_changed_ms),
            lag_note=note,
            heard_note=heard_note,
            unreadable=unreadable,
        )


def _with_presence(
    store: Store, group: str, members: tuple[MemberRow, ...], cluster: Cluster, presences: Presences | None
) -> tuple[tuple[MemberRow, ...], str]:
    """Asks the coordinator about socket members, and the instance that serves the group about its Kafka clients. The
    second item of the result says why some responses are missing (or is ``""``)."""
    if presences is None:
        return members, ""
    known: dict[str, Presence] = {}
    notes: dict[str, None] = {}
    for channel in sorted({member.channel for member in members if member.gateway is not None}):
        served_by = cluster.coordinator
        if channel == "kafka":
            served_by = cluster.instances.get(read_instances(store).leaders.get(partition_of(group), -1))
        if served_by is None:
            reason = "no instance coordinates the group"
        elif served_by.http_url is None:
            reason = f"start the instance beside broker {served_by.broker_id} with --listen-http"
        else:
            try:
                found = presences(served_by.http_url)
                known |= {consumer: one for (in_group, consumer), one in found.items() if in_group == group}
                continue
            except (OSError, MalformedValue) as error:
                reason = f"the coordinator did not answer at {served_by.http_url}: {error}"
        notes[f"it is unknown when the coordinator last heard from consumers without ZooKeeper: {reason}"] = None
    rows = tuple(
        structs.replace(member, **known[member.consumer]._asdict())
        if member.gateway is not None and member.consumer in known
        else member
        for member in members
    )
    return rows, "; ".join(notes)


def member_rows(snapshot: GroupSnapshot, waiting: Iterable[WaitingCommand]) -> tuple[MemberRow, ...]:
    """Returns the members and all other consumers with a ledger, sorted by name."""
    seen = snapshot.observation
    pending = grouped(waiting, lambda one: one.consumer)
    targets = seen.assignment.members if seen.assignment else {}
    rows = []
    for consumer in sorted(seen.members.keys() | seen.ledgers.keys()):
        ledger = seen.ledgers.get(consumer) or Ledger(consumer, 0)
        unknown = Member(consumer, ledger.incarnation, Subscription.to(()))
        member = seen.members.get(consumer) or ledger.place or unknown
        stat = snapshot.registrations.get(consumer)
        rows.append(
            MemberRow(
                consumer=consumer,
                registered=consumer in seen.members,
                host=member.host,
                client=member.client,
                channel="zookeeper" if member.gateway is None else "socket" if member.protocol is None else "kafka",
                gateway=member.gateway,
                address=member.address,
                incarnation=member.incarnation,
                since_ms=Time.of(stat.ctime_ms) if stat else None,
                subscription=_subscription(member.subscription),
                mode=str(member.mode),
                capacity=member.capacity,
                rack=member.rack,
                rejoin_grace_ms=member.rejoin_grace_ms,
                owned=ledger.owned,
                stopping=ledger.stopping,
                target=targets.get(consumer, NO_PARTITIONS),
                pending=pending.get(consumer, []),
                software=member.software,
                protocol=member.protocol,
                refused=seen.refused(consumer),
            )
        )
    return tuple(rows)


def _cannot_read(snapshot: GroupSnapshot) -> Iterator[str]:
    """Says which topics members may not read, and which partitions have no position yet."""
    seen = snapshot.observation
    refusing = {consumer: topics for consumer in sorted(seen.members) if (topics := seen.refused(consumer))}
    told = [f"{one} may not read {some(sorted(of), 3)} ({next(iter(of.values()))})" for one, of in refusing.items()]
    yield from first_of(told, MAX_WAITS, "consumers may not read some topics")
    if snapshot.awaited:
        reasons = sorted({reason for reason in snapshot.awaited.values() if reason})
        why = f" ({some(reasons, 2)})" if reasons else ""
        yield f"no position yet in {PartitionSet.of(snapshot.awaited)}{why}"


def _with_awaited(rows: Iterable[OffsetRow], awaited: Mapping[TopicPartition, str]) -> tuple[OffsetRow, ...]:
    return tuple(
        structs.replace(row, unresolved=awaited[row.tp]) if row.tp in awaited and row.committed_offset is None else row
        for row in rows
    )


def offsets_of(snapshot: GroupSnapshot, committed: Committed, logs: Mapping[TopicPartition, LogRange]) -> GroupOffsets:
    """Returns what is sampled of a group that has already been read."""
    seen = snapshot.observation
    members = {name: Contact(one.host or "", one.client or "") for name, one in seen.members.items()}
    rows = offset_rows(seen, committed, logs)
    return GroupOffsets(
        snapshot.group,
        GroupKind.MANAGED,
        rows,
        seen.decided_ms,
        members,
        paused=seen.pause is not None,
        warning_ms=seen.settings.lag_warning_ms,
    )


def _has_others(target: Mapping[str, PartitionSet], committed: Committed) -> bool:
    """Returns whether a group with members has offsets of topics that its target does not name."""
    named = {topic for share in target.values() for topic in share.topics}
    return bool(target) and not named.issuperset(tp.topic for tp in committed.offsets)


def group_row(
    snapshot: GroupSnapshot, cluster: Cluster, also_unreadable: int = 0, lag: LagTotal | None = None
) -> GroupRow:
    """Returns a summary of the group. ``also_unreadable`` counts the unreadable offsets and commands."""
    seen = snapshot.observation
    return GroupRow(
        group=snapshot.group,
        kind=GroupKind.MANAGED,
        state=group_state(seen),
        generation=seen.assignment.generation if seen.assignment else None,
        members=len(seen.members),
        partitions=sum(len(ledger.held) for ledger in seen.ledgers.values()),
        assignor=_assignor(snapshot),
        pending=sum(map(len, snapshot.pending.values())),
        unreadable=len(seen.unreadable) + also_unreadable,
        coordinator=cluster.coordinator.broker_id if cluster.coordinator else None,
    ).with_lag(lag)


def _assignor(snapshot: GroupSnapshot) -> str:
    seen = snapshot.observation
    decided = seen.assignment.assignor if seen.assignment else None
    return seen.settings.assignor or decided or DEFAULT_ASSIGNOR


def _subscription(found: Subscription) -> str:
    """Formats topics as ``flights, routes(2)``, with the number of streams if it is not 1, and a pattern as
    ``include fl.*``."""
    if found.is_wildcard:
        return f"{found.kind} {found.pattern}"
    topics = sorted(found.topics.items())
    return ", ".join(topic if streams == 1 else f"{topic}({streams})" for topic, streams in topics)


def read_trail(store: Store, group: str) -> Trail:
    """Returns the history of a managed group. Raises :class:`NotFound`, and :class:`MalformedValue` if nothing of it
    can be read."""
    path = layout.history(group)
    try:
        node = store.get(path)
    except NoNode:
        if store.exists(layout.group(group)) is None:
            raise NotFound(f"no group {group!r}") from None
        return Trail()
    try:
        return Trail.from_json(fields.load(node.data, path), path)
    except MalformedValue as error:
        raise MalformedValue(
            error.where, f"{error.reason} (the coordinator replaces it at its next decision)"
        ) from None


def read_actions(store: Store, groups: Iterable[str]) -> tuple[dict[str, tuple[Action, ...]], list[Unreadable]]:
    """Returns the operator actions on each group, oldest first, and what is unreadable in the ``history`` and
    ``settled`` znodes."""
    reading, names, actions = Reading(store), tuple(groups), {}
    found = reading.all(GetData(path(name)) for name in names for path in (layout.history, layout.settled))
    for name in names:
        history, settled = layout.history(name), layout.settled(name)
        trail = reading.decode(history, found[GetData(history)], plainly(Trail.from_json)) or Trail()
        reading.unreadable += trail.unreadable
        reading.decode(settled, found[GetData(settled)], plainly(Settled.from_json))
        actions[name] = trail.actions
    return actions, reading.unreadable


_GO_ON_ALONE = {GroupKind.NATIVE: "consumer"}
"""The protocol whose members go on in a group of another kind if all of them use it. Classic ones do anyway."""


class ManagedVerbs(GroupVerbs):
    """The groups in ZooKeeper. The elected coordinator makes the changes."""

    kind = GroupKind.MANAGED

    def converted(self, group: str, acting: Acting) -> None:
        """The group's history begins with the conversion."""

    def require_name(self, group: str) -> None:
        legal("group", group)

    def exists(self, groups: Iterable[str]) -> dict[str, bool]:
        return {one: is_legal(one) and self.store.exists(layout.group(one)) is not None for one in groups}

    def names(self) -> tuple[Sequence[str], Sequence[str]]:
        return read_cluster(self.store).groups, ()

    def list(self, cluster: Cluster, log_ranges: LogRanges | None, on_offsets: OnOffsets | None) -> ListedGroups:
        """Takes a fixed number of round trips, however many groups there are."""
        snapshots = read_groups(self.store, cluster.groups, cluster)
        committed = read_all_committed(self.store, snapshots, cluster.topics)
        commands = Counter(group_of(one.path) for one in read_waiting(self.store, snapshots).unreadable)
        logs, note = _logs(snapshots, committed, log_ranges)
        rows = []
        for group, snapshot in sorted(snapshots.items()):
            lag = None
            if log_ranges is not None:
                found = offsets_of(snapshot, committed[group], logs)
                lag = LagTotal.of_rows(found.rows)
                if on_offsets is not None:
                    on_offsets(found)
            unreadable = len(committed[group].unreadable) + commands[group]
            rows.append(group_row(snapshot, cluster, also_unreadable=unreadable, lag=lag))
        return ListedGroups(tuple(rows), note)

    def offsets(
        self, groups: Sequence[str], cluster: Cluster, log_ranges: LogRanges, resting: Collection[str] = ()
    ) -> tuple[Sequence[GroupOffsets], Sequence[str]]:
        """The target of a group at rest lists its partitions and members, so only the target and the offsets are read,
        unless some of the offsets are of other topics: which of these count only the subscriptions tell."""
        committed = read_all_committed(self.store, groups, cluster.topics)
        targets = {
            name: target.members if target is not None else {}
            for name, target in read_targets(self.store, [name for name in groups if name in resting]).items()
        }
        targets = {name: target for name, target in targets.items() if not _has_others(target, committed[name])}
        snapshots = read_groups(self.store, [name for name in groups if name not in targets], cluster)
        owned = {name: PartitionSet.union(target.values()) for name, target in targets.items()}
        at_rest = {
            name: PartitionSet.of(committed[name].offsets)
            | (owned[name] if target else committed[name].once_subscribed)
            for name, target in targets.items()
        }
        wanted = [partitions_of(one.observation, committed[name]) for name, one in snapshots.items()]
        logs, note = log_ranges(PartitionSet.union((*at_rest.values(), *wanted)))
        found = [offsets_of(one, committed[name], logs) for name, one in snapshots.items()]
        for name, target in targets.items():
            held = {tp: (consumer, "owned") for consumer, theirs in target.items() for tp in theirs}
            rows = rows_of(at_rest[name], held, committed[name], logs)
            found.append(GroupOffsets(name, self.kind, rows, 0, dict.fromkeys(target)))
        return found, [note] if note else []

    def describe(
        self,
        group: str,
        log_ranges: LogRanges | None,
        presences: Presences | None = None,
        earlier: Cluster | None = None,
    ) -> GroupDescription:
        return describe_group(self.store, group, log_ranges, presences, earlier)

    def describe_several(
        self, groups: Sequence[str] | None, log_ranges: LogRanges | None, presences: Presences | None
    ) -> tuple[Sequence[GroupDescription], Sequence[KafkaCoordError]]:
        if groups is not None and len(groups) == 1:
            try:
                return [self.describe(groups[0], log_ranges, presences)], ()
            except NotFound as error:
                return (), [error]
        cluster = read_cluster(self.store)
        names = cluster.groups if groups is None else groups
        found = describe_groups(self.store, cluster, names, log_ranges, presences) if names else ()
        known = {one.group for one in found}
        return found, [NotFound(f"no group {group!r}") for group in groups or () if group not in known]

    def actions(self, group: str) -> Trail:
        return read_trail(self.store, group)

    def history(self, group: str, on_progress: OnProgress) -> Trail:
        del on_progress
        return read_trail(self.store, group)

    def committed(self, group: str) -> tuple[Mapping[TopicPartition, int], PartitionSet]:
        cluster, _ = snapshot_of(self.store, group)
        found = read_committed(self.store, group, cluster.topics)
        return found.offsets, found.stored

    def evict(self, group: str, consumers: Sequence[str], acting: Acting) -> Sequence[AnswerDocument]:
        membership = membership_of(snapshot_of(self.store, group)[1].observation)
        known = {
            *membership.live,
            *membership.in_grace,
            *membership.gone,
            *membership.any_registration_unreadable,
            *membership.any_ledger_unreadable,
        }
        require_members(group, consumers, known)
        return [self._ask(acting, RequestType.EVICT, group, consumer=consumer) for consumer in consumers]

    def delete(self, group: str, acting: Acting) -> AnswerDocument:
        return self._ask(acting, RequestType.DELETE_GROUP, group)

    def delete_offsets(
        self, group: str, partitions: PartitionSet, before: Mapping[TopicPartition, int], acting: Acting
    ) -> AnswerDocument:
        change = offsets_change(before, dict.fromkeys(partitions))
        return self._ask(acting, RequestType.DELETE_OFFSETS, group, partitions=partitions, change=change)

    def resettable(self, groups: Sequence[str], rule: str, acting: Acting) -> dict[str, Resettable]:
        if not groups:
            return {}
        cluster = read_cluster(self.store)
        snapshots = read_groups(self.store, groups, cluster)
        committed = read_all_committed(self.store, groups, cluster.topics)
        found = {}
        for group in groups:
            seen = (snapshots.get(group) or snapshot_of(self.store, group)[1]).observation
            found[group] = Resettable(
                group,
                all_partitions(cluster.topics),
                partitions_of(seen, committed[group]),
                committed[group].offsets,
                {tp: owner for tp, (owner, _) in holders(seen.ledgers.values()).items()},
                ", or add --pause to reset while they run",
                partial(self._again, group, rule, acting),
                partial(self._reset, group, committed[group].offsets, rule, acting),
            )
        return found

    def creatable(self, groups: Collection[str], rule: str, acting: Acting) -> dict[str, Resettable]:
        """Like :meth:`resettable`, of groups that do not exist yet."""
        if not groups:
            return {}
        there = all_partitions(read_cluster(self.store).topics)
        return {
            group: Resettable(
                *(group, there, PartitionSet(), {}, {}, ""),
                afresh=partial(self._again, group, rule, acting),
                write=partial(self._reset, group, {}, rule, acting),
            )
            for group in groups
        }

    def _again(self, group: str, rule: str, acting: Acting) -> Resettable:
        return self.resettable([group], rule, acting)[group]

    def _reset(
        self,
        group: str,
        before: Mapping[TopicPartition, int],
        rule: str,
        acting: Acting,
        offsets: Mapping[TopicPartition, int],
    ) -> str:
        """Only the coordinator can ensure that no partition is started in the meantime."""
        change = f"{rule}: {offsets_change(before, offsets)}"
        answer = self._ask(acting, RequestType.RESET_OFFSETS, group, offsets=offsets, change=change)
        return f"{answer.result}: {answer.message}"

    def convertible(self, group: str, to: GroupKind) -> Convertible:
        """Classic clients go on in the other kind, and KIP-848 clients in a native group, if there are no others."""
        cluster, snapshot = snapshot_of(self.store, group)
        found = read_committed(self.store, group, cluster.topics)
        if found.unreadable:
            raise RequestRefused(f"{found.unreadable[0].path} cannot be read: {found.unreadable[0].reason}")
        readable = snapshot.observation.members
        protocols = {one: readable[one].protocol if one in readable else None for one in snapshot.registrations}
        alone = _GO_ON_ALONE.get(to)
        goes_on = alone if alone is not None and set(protocols.values()) == {alone} else "classic"
        others = [one for one, protocol in protocols.items() if protocol != goes_on]
        return Convertible(self.kind, [*snapshot.registrations], others, found.offsets, found.of_earlier_topic)

    def wait_settled(self, group: str, timeout_s: float) -> None:
        wait_until(self.store, group, settled, what="become stable", timeout_s=timeout_s)

    def require_pausable(self) -> None:
        pass

    def pause(self, group: str, acting: Acting) -> AnswerDocument:
        pause(self.store, group, by=acting.by, reason=acting.reason)
        return AnswerDocument.done("pause", group, f"group {group} paused")

    def resume(self, group: str, acting: Acting) -> AnswerDocument:
        resume(self.store, group, by=acting.by, reason=acting.reason)
        return AnswerDocument.done("resume", group, f"group {group} resumed")

    def require_settings(self, group: str) -> None:
        """Each managed group has settings."""

    def settings(self, group: str) -> GroupSettings:
        observation = snapshot_of(self.store, group)[1].observation
        for one in observation.unreadable:
            if one.path == layout.group(group):
                raise MalformedValue(one.path, f"{one.reason}; {what_to_do(one.path)}")
        return observation.settings

    def change_settings(self, group: str, changes: Mapping[str, Any], acting: Acting) -> AnswerDocument:
        def changed(old: GroupSettings) -> GroupSettings:
            return structs.replace(old, **changes)

        change_settings(self.store, group, changed, by=acting.by, reason=acting.reason)
        return AnswerDocument.done("settings", group, f"settings of group {group} changed")

    def create(self, group: str, acting: Acting) -> None:
        change_settings(self.store, group, lambda same: same, by=acting.by, reason=acting.reason, create=True)

    def is_paused(self, group: str) -> bool | None:
        return pause_of(self.store, group, everywhere=False) is not None

    def rebalance(self, group: str, acting: Acting) -> AnswerDocument:
        if self.store.exists(layout.group(group)) is None:
            raise NotFound(f"no managed group {group!r}")
        paused = pause_of(self.store, group)
        if paused is not None:
            request = Request(RequestType.REBALANCE, group=group, reason=acting.reason, by=acting.by)
            name = submit(self.store, request)
            raise Timeout(
                f"{name} is pending, because group {group!r} is paused {paused_by(paused)}"
                f". To withdraw the request: kafka-coord coordinator withdraw {name}"
            )
        return self._ask(acting, RequestType.REBALANCE, group)

    def _ask(self, acting: Acting, kind: RequestType, group: str, **more: Any) -> AnswerDocument:
        request = Request(kind, group=group, reason=acting.reason, by=acting.by, **more)
        return AnswerDocument.of(ask(self.store, request, acting.timeout_s, acting.on_progress))
