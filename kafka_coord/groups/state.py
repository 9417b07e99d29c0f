"""Reads managed groups, and says what their snapshots mean: their states, the commands and members that they wait for,
and the partitions that no one owns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from kafka_coord.coordinator.assignors import AssignmentInputs, Assignor, Target, load_assignors
from kafka_coord.coordinator.image import Image, Wanted, read_commands, read_images
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.plan.reasons import partitions_text
from kafka_coord.coordinator.steps import GroupState, SetTarget
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import Unowned, WaitingCommand, duration, lasting
from kafka_coord.groups.offsets import Committed, partitions_of, subscribed
from kafka_coord.model import CommandId, CommandType, Observation, PartitionSet, Pause, TopicPartition, Unreadable
from kafka_coord.model.sequences import grouped
from kafka_coord.settings import DEFAULT_SESSION_TIMEOUT_MS
from kafka_coord.zk import layout
from kafka_coord.zk.store import Stat, Store


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group's state. ``summary`` says what a coordinator would decide now, and why."""

    state: GroupState
    summary: str


def group_status(seen: Observation) -> GroupStatus:
    """Returns the group's state and summary. Runs the planner and discards its steps, so the state always agrees with
    the coordinator's rules.

    If a group's inputs have changed since its target was written (for example, because a member has just joined), the
    group counts as rebalancing, even if the new target will not move anything.
    """
    hidden = next((one for one in seen.unreadable if one.path in _listings(seen.group)), None)
    if hidden is not None:  # the coordinator's pass over the group fails at this znode
        return GroupStatus(
            GroupState.REBALANCING, f"cannot decide, because {hidden.path} is unreadable: {hidden.reason}"
        )
    decided = plan(seen, _assignors(seen))
    state = decided.state
    if state is GroupState.STABLE and any(isinstance(step, SetTarget) for step in decided.steps):
        state = GroupState.REBALANCING
    return GroupStatus(state, decided.summary)


def _listings(group: str) -> tuple[str, ...]:
    return layout.ids(group), layout.owners(group), layout.channels(group)


def group_state(seen: Observation) -> GroupState:
    return group_status(seen).state


@cache
def _installed() -> Mapping[str, Assignor]:
    return load_assignors()


def _assignors(seen: Observation) -> Mapping[str, Assignor]:
    """Returns the installed assignors, and placeholders for those that are installed only on the coordinator's host.
    With a placeholder, the planner can still judge an existing target."""
    named = {seen.settings.assignor, *(member.assignor for member in seen.members.values())}
    if seen.assignment is not None:
        named.add(seen.assignment.assignor)
    elsewhere = {name: _InstalledElsewhere() for name in named if name and name not in _installed()}
    return {**_installed(), **elsewhere} if elsewhere else _installed()


class _InstalledElsewhere:
    """A placeholder for an assignor that is not installed here."""

    def assign(self, inputs: AssignmentInputs) -> Target:
        raise NotImplementedError(f"cannot assign {len(inputs.members)} members without this assignor")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The outstanding commands, sorted by group, then by consumer, then in order of execution."""

    commands: tuple[WaitingCommand, ...]
    unreadable: tuple[Unreadable, ...] = ()


def read_waiting(store: Store, snapshots: Mapping[str, GroupSnapshot]) -> Waiting:
    """Reads every outstanding command of the groups in one round trip."""
    listed = [
        (group, consumer, command)
        for group, snapshot in sorted(snapshots.items())
        for consumer, commands in sorted(snapshot.pending.items())
        for command in commands
    ]
    waiting, unreadable = [], []
    for (group, consumer, command_id), outstanding in zip(listed, read_commands(store, listed), strict=True):
        if outstanding is None:
            continue  # acknowledged since the listing
        command, since_ms, fault = outstanding
        if fault is not None:
            unreadable.append(Unreadable(fault.where, fault.reason))
        member = snapshots[group].observation.members.get(consumer)
        live = member is not None and command is not None and command.incarnation == member.incarnation
        waiting.append(WaitingCommand.of(group, consumer, command_id, since_ms, command, for_live=live))
    return Waiting(tuple(waiting), tuple(unreadable))


def without_member(snapshot: GroupSnapshot, committed: Committed, topics_changed_ms: Mapping[str, int]) -> Unowned:
    """Returns the existing partitions that members subscribe to or ledgers list, but no registered member holds. In a
    group without members, also includes those with a committed offset, or that former members subscribed to."""
    seen = snapshot.observation
    free = partitions_of(seen, Committed({}) if seen.members else committed)
    free &= PartitionSet({topic: seen.topics[topic].partitions for topic in free.topics if topic in seen.topics})
    for consumer, ledger in seen.ledgers.items():
        if consumer in snapshot.registrations:
            free -= ledger.held
    return Unowned(free, _since_ms(snapshot, free, topics_changed_ms)) if free else Unowned()


def lost(snapshot: GroupSnapshot, topics_changed_ms: Mapping[str, int], now_ms: int) -> Unowned | None:
    """Returns the subscribed partitions that no one has held for longer than a session, or ``None`` if there are none.
    Also returns ``None`` for a group that is paused, has no members, or has an unreadable ledger, whose owner may
    hold the partitions.
    """
    seen = snapshot.observation
    hidden = any(one.path.startswith(layout.owners(seen.group)) for one in seen.unreadable)
    if seen.pause is not None or hidden or not seen.members:
        return None
    free = subscribed(seen)
    for ledger in seen.ledgers.values():
        free -= ledger.held
    since_ms = _since_ms(snapshot, free, topics_changed_ms)
    session_ms = max([DEFAULT_SESSION_TIMEOUT_MS, *(one.session_timeout_ms for one in seen.members.values())])
    return Unowned(free, since_ms) if free and since_ms and now_ms - since_ms > session_ms else None


def _since_ms(snapshot: GroupSnapshot, partitions: PartitionSet, topics_changed_ms: Mapping[str, int]) -> int | None:
    """Returns the time of the latest of three events: the group's last decision, the last change of its topics, and the
    first registration among its current members. ZooKeeper does not record when a partition lost its owner."""
    members = snapshot.observation.members
    if not members:
        return snapshot.decided_ms or None
    registered = [snapshot.registrations[c].ctime_ms for c in members if c in snapshot.registrations]
    changed = [topics_changed_ms.get(topic, 0) for topic in partitions.topics]
    return max([snapshot.decided_ms, *changed, min(registered)]) if registered else None


def waits(
    snapshot: GroupSnapshot, waiting: Iterable[WaitingCommand], now_ms: int, elected_ms: int | None
) -> dict[str, str]:
    """Maps each live consumer with unacknowledged commands to a message about the oldest command, its age, and what
    happens next. ``elected_ms`` is the time when the coordinator was elected, or ``None`` if no coordinator makes
    decisions. Each new coordinator gives the consumer the full time limit again."""
    messages: dict[str, str] = {}
    seen = snapshot.observation
    of_consumer = grouped(waiting, lambda one: one.consumer)
    for consumer in sorted(of_consumer.keys() & snapshot.registrations.keys()):
        command = min(of_consumer[consumer], key=lambda one: one.since_ms or 0)
        began_ms = command.since_ms or 0
        member = seen.members.get(consumer)
        verb = "stop" if command.type is CommandType.STOP_FETCHER else "start"
        task = f"to {verb} {partitions_text(command.partitions)}" if command.partitions else command.command
        host = f" on host {member.host}" if member is not None and member.host else ""
        text = f"{consumer}{host} has not acknowledged its command {task} {lasting(began_ms, now_ms)}"
        if seen.pause is not None:
            messages[consumer] = f"{text}; it is not evicted while the group is paused"
            continue
        if elected_ms is None:
            messages[consumer] = f"{text}; it is not evicted while no coordinator makes decisions"
            continue
        left_ms = (
            seen.settings.rebalance_timeout_for(member, command.type)
            if member is not None
            else seen.settings.rebalance_timeout_ms
        ) - (now_ms - max(began_ms, elected_ms))
        messages[consumer] = (
            f"{text}; the coordinator evicts it in {duration(left_ms)}"
            if left_ms > 0
            else f"{text}, longer than its rebalance timeout, so the coordinator evicts it now"
        )
    return messages


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The planner's observation of one group, and facts that only operators need. ``registrations`` are the stats of
    the ``ids`` znodes, decodable or not. ``pause`` is the group's own pause, and ``paused_everywhere`` is the pause of
    all groups. If both exist, the observation contains the pause of all groups. ``decided_ms`` is when the target or
    one of the ledgers was last written (ms since 1970). ``awaited`` contains the partitions that start at an end which
    nobody has listed yet, each with the reason ("" if none is known).
    """

    observation: Observation
    registrations: Mapping[str, Stat] = field(default_factory=dict)
    pause: Pause | None = None
    paused_everywhere: Pause | None = None
    decided_ms: int = 0
    awaited: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.observation.group

    @property
    def missing_topics(self) -> list[str]:
        """The topics that members subscribe to by name, but that do not exist."""
        seen = self.observation
        named = {t for m in seen.members.values() if not m.subscription.is_wildcard for t in m.subscription.topics}
        return sorted(named - seen.topics.keys())

    @property
    def pending(self) -> Mapping[str, tuple[CommandId, ...]]:
        """The outstanding commands by consumer, in order of execution. Leaves out consumers without commands."""
        return {c: channel.commands for c, channel in self.observation.channels.items() if channel.commands}


def read_groups(store: Store, groups: Iterable[str], cluster: Cluster) -> dict[str, GroupSnapshot]:
    """Reads the groups in two round trips, however many there are. Skips missing groups and tolerates malformed
    znodes."""
    images = read_images(store, [Wanted(group, reasons=True) for group in groups])
    return {group: _snapshot(image, cluster) for group, image in images.items()}


def _snapshot(image: Image, cluster: Cluster) -> GroupSnapshot:
    places = {consumer for consumer, ledger in image.ledgers.items() if ledger.place is not None}
    observation = replace(
        image.observation(cluster.coordinator.epoch if cluster.coordinator else 0, cluster.topics),
        pause=cluster.pause or image.pause,
        # Treat every absent consumer with a reserved place as within its grace period. Only the coordinator knows when
        # the period ends, and it then acts immediately.
        in_grace=frozenset(places - image.registered),
    )
    return GroupSnapshot(observation, image.registrations, image.pause, cluster.pause, image.decided_ms, image.awaited)
