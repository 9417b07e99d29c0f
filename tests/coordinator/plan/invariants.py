"""The invariants of coordination as formulas, and the check of those that a snapshot and its plan can break.

A *state* of a group is what ZooKeeper holds: for each consumer ``c`` its incarnation ``inc(c)`` (the czxid of its
registration), its ledger ``L(c)`` and its outstanding commands ``cmds(c)``; the target ``T``; the committed offsets.
``held(c) = L(c).owned | L(c).stopping``. A plan is a sequence of steps. The executor may stop after any of them, so
every prefix of a plan must keep the invariants. ``c`` and ``d`` are different consumers, ``X`` is a set of partitions,
and sets are written as in Python.

1. **One holder.** In every state ``held(c) & held(d) == {}``.
2. **No start while held.** A step tells ``c`` to start ``X`` only if ``held(d) & X == {}`` for every ``d`` in the state
   before that step. The unreadable ledger of a live consumer may name any partition that no other ledger names. While
   there is one, ``X`` must lie within the partitions that the readable ledgers held at the snapshot. Eager members also
   wait for each other: an eager member starts only while no eager member has a stop outstanding, and while no other
   eager member owns anything from before ``T``.
3. **Newest epoch.** Every multi begins with ``check(coordinator_epoch, version)``. Every target and command of a plan
   carries the epoch of the leadership that looked, and every command the generation of ``T``.
4. **Commands in order, once, to one incarnation.** Every command to ``c`` carries ``inc(c)``; ``cmds(c)`` has at most
   one stop and one start; deleting a command is its acknowledgement, in one multi with the offsets it settles.
5. **Growth.** The generation of a new target is above every earlier one, and the generation of a ledger never falls. A
   plan writes or deletes the offset of ``p`` only for a request, and only while no consumer holds ``p``. A partition
   whose stop is acknowledged counts as released.
6. **No needless stop.** A step tells ``c`` to stop ``X`` only if ``X <= L(c).owned`` and ``X & T(c) == {}``. Two
   exceptions: an eager ``c`` that owns ``X`` from before ``T``, and partitions of a deleted topic whose name another
   topic has now.
7. **Progress.** A new target is complete: for each subscribed topic, ``T`` gives each partition to exactly one
   subscriber that is allowed to read the topic, if there is one. A plan that says *Stable* leaves ``owned(c) == T(c)``
   for every live ``c``, no partition stopping and no command outstanding. When events stop, every group becomes Stable
   in a bounded number of passes.
8. **Clean handover.** ``p`` leaves ``held(c)`` of a live ``c`` only from ``L(c).stopping``, and only when ``cmds(c)``
   has no stop, because the acknowledgement commits the offset. A start begins at the committed offset, so a partition
   whose offset is unreadable is not started.

A paused group gets no new target and no command. Only an operator can evict a member of it.

How to call it: :func:`violations` with an observation and the plan made from it (every prefix of the plan is checked,
without any store), and :func:`violations_of_ledgers` with all ledgers of a group at any instant. Both return one
sentence for each violation. Invariants 3, 4 and 8 also bind the executor and the consumers; the simulator, the audit
and the tests with real processes check those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kafka_coord.coordinator.plan.member_update import stale_topics
from kafka_coord.coordinator.plan.membership import held_before, is_dead, membership_of
from kafka_coord.coordinator.plan.reconcile import without_offset
from kafka_coord.coordinator.plan.target import resolve
from kafka_coord.coordinator.steps import (
    DeleteOffsets,
    EvictUnledgered,
    ForgetConsumer,
    GroupState,
    Plan,
    RemoveGroup,
    SetTarget,
    Step,
    WriteLedgerAndCommands,
    WriteOffsets,
)
from kafka_coord.model import (
    NO_PARTITIONS,
    Assignment,
    Command,
    CommandType,
    Ledger,
    Mode,
    Observation,
    PartitionSet,
    RequestType,
    StopFetcher,
)


def violations(observation: Observation, plan: Plan) -> list[str]:
    """Returns one sentence for each invariant that ``plan``, made from ``observation``, breaks."""
    replay = _Replay(observation, dict(observation.ledgers), observation.assignment)
    found = violations_of_ledgers(observation.ledgers)
    for step in plan.steps:
        found += replay.broken_by(step)
        found += violations_of_ledgers(replay.ledgers)
    if plan.state is GroupState.STABLE:
        found += replay.unsettled()
    return found


def violations_of_ledgers(ledgers: Mapping[str, Ledger]) -> list[str]:
    """Checks invariant 1 for one state of one group. The keys of ``ledgers`` are the consumers."""
    found = []
    holders: dict[str, dict[int, str]] = {}
    for consumer, ledger in ledgers.items():
        for topic, numbers in ledger.held.unordered():
            of_topic = holders.setdefault(topic, {})
            for number in numbers:
                if of_topic.setdefault(number, consumer) != consumer:
                    found.append(f"1: {topic}[{number}] is held by {of_topic[number]} and by {consumer}")
    return found


@dataclass(slots=True)
class _Replay:
    """The state while the steps of a plan are written one by one."""

    observation: Observation
    ledgers: dict[str, Ledger]
    target: Assignment | None
    evicted: set[str] = field(default_factory=set)
    waiting: dict[str, dict[str, CommandType]] = field(default_factory=dict)
    """The types of the outstanding commands, by consumer and name."""

    def __post_init__(self) -> None:
        for consumer, channel in self.observation.channels.items():
            self.waiting[consumer] = {command.name: command.type for command in channel.commands}

    def broken_by(self, step: Step) -> list[str]:
        """Checks ``step`` against the state, then writes it."""
        match step:
            case SetTarget(assignment):
                found = [*self._target(assignment)]
                self.target = assignment
            case WriteLedgerAndCommands():
                found = [*self._write(step)]
                self.ledgers[step.ledger.consumer] = step.ledger
            case ForgetConsumer(consumer):
                found = [*self._forget(consumer)]
                self._drop(consumer, step.drop_commands)
                if step.ledger_version is not None:
                    self.ledgers.pop(consumer, None)
            case EvictUnledgered(consumer):
                found = [*self._evict(consumer)]
            case WriteOffsets(request):
                found = [*self._offsets(PartitionSet.of(request.offsets))]
            case DeleteOffsets(request):
                found = [*self._offsets(request.partitions)]
            case RemoveGroup():
                found = ["7: a group with members is removed"] if self.observation.members else []
                self.ledgers.clear()
            case _:
                found = []
        return found

    def unsettled(self) -> list[str]:
        """Checks invariant 7 for the state in which every step is written."""
        target = self.target.members if self.target is not None else {}
        found = []
        for consumer in membership_of(self.observation).live:
            ledger = self.ledgers.get(consumer)
            owned = ledger.owned if ledger is not None else NO_PARTITIONS
            if owned != target.get(consumer, NO_PARTITIONS) or (ledger is not None and ledger.stopping):
                found.append(f"7: Stable, but {consumer} does not own exactly what the target names")
            if self.waiting.get(consumer):
                found.append(f"7: Stable, but {consumer} has commands outstanding")
        return found

    def _target(self, target: Assignment) -> Iterator[str]:
        seen = self.observation
        if seen.pause is not None:
            yield "a paused group gets a new target"
        if target.epoch != seen.epoch:
            yield f"3: a target of epoch {target.epoch} is written in epoch {seen.epoch}"
        known = [seen.generation_floor, *(ledger.generation for ledger in seen.ledgers.values())]
        known += [seen.assignment.generation] if seen.assignment is not None else []
        if target.generation <= max(known):
            yield f"5: generation {target.generation} is written after {max(known)}"
        membership = membership_of(seen)
        members = {c: m for c, m in membership.effective.items() if c in target.members}
        given: dict[str, list[int]] = {}
        for consumer, partitions in target.members.items():
            if consumer not in members or consumer in self.evicted:
                yield f"7: the target names {consumer}, which is not a member"
            for topic, numbers in partitions.unordered():
                given.setdefault(topic, []).extend(numbers)
        subscribed = resolve(members, seen.topics)
        wanted = {topic for c, topics in subscribed.items() for topic in topics if topic not in seen.refused(c)}
        for consumer, partitions in target.members.items():
            for topic in seen.refused(consumer).keys() & set(partitions.topics):
                yield f"7: the target gives {topic} to {consumer}, which is not allowed to read it"
        for topic in wanted | given.keys():
            partitions_of = seen.topics[topic].partitions if topic in wanted else frozenset()
            if sorted(given.get(topic, [])) != sorted(partitions_of):
                yield f"7: the target does not give each partition of {topic} to exactly one subscriber"

    def _write(self, step: WriteLedgerAndCommands) -> Iterator[str]:
        consumer, after = step.ledger.consumer, step.ledger
        before = self.ledgers.get(consumer)
        member = self.observation.members.get(consumer)
        if before is not None and after.generation < before.generation:
            yield f"5: the generation of {consumer} falls from {before.generation} to {after.generation}"
        if step.evict:
            yield from self._evict(consumer)
        if step.commands:
            if self.observation.pause is not None:
                yield f"a member of a paused group gets a command: {consumer}"
            if member is None or after.incarnation != member.incarnation:
                yield f"4: {consumer} gets a command, but its incarnation is gone"
        same = before is not None and before.incarnation == after.incarnation
        owned = before.owned if before is not None and same else NO_PARTITIONS
        yield from self._released(step, before if same else None)
        self._drop(consumer, step.drop_commands)
        for command in step.commands:
            yield from self._command(after, command, owned)
            stops = isinstance(command, StopFetcher)
            owned = owned - command.partitions if stops else owned | command.partitions
        if after.owned - owned:
            yield f"2: the ledger of {consumer} owns {after.owned - owned}, which it was not told to start"
        if member is not None and owned - after.owned:
            yield f"4: the ledger of {consumer} no longer owns {owned - after.owned}, which it was not told to stop"

    def _command(self, ledger: Ledger, command: Command, owned: PartitionSet) -> Iterator[str]:
        """Checks one command, written together with ``ledger``, to a consumer that owned ``owned`` before."""
        consumer, waiting = ledger.consumer, self.waiting.setdefault(ledger.consumer, {})
        if command.type in waiting.values():
            yield f"4: {consumer} has two commands of one kind outstanding"
        waiting[f"new {command.type}"] = command.type
        if command.epoch != self.observation.epoch:
            yield f"3: a command of epoch {command.epoch} is written in epoch {self.observation.epoch}"
        if self.target is None or command.generation != self.target.generation:
            yield f"3: a command to {consumer} has generation {command.generation}, but the target has another"
        if command.incarnation != ledger.incarnation:
            yield f"4: the {command.type} does not name the incarnation in the ledger of {consumer}"
        if not command.partitions:
            yield f"4: the {command.type} to {consumer} names no partition"
        if isinstance(command, StopFetcher):
            yield from self._stop(consumer, command.partitions, owned)
        else:
            yield from self._start(consumer, command.partitions)
            if not owned.isdisjoint(command.partitions):
                yield f"4: {consumer} is told to start {owned & command.partitions}, which it already owns"

    def _drop(self, consumer: str, names: Iterable[str]) -> None:
        for name in names:
            self.waiting.get(consumer, {}).pop(name, None)

    def _stop_outstanding(self, consumer: str) -> bool:
        return CommandType.STOP_FETCHER in self.waiting.get(consumer, {}).values()

    def _released(self, step: WriteLedgerAndCommands, before: Ledger | None) -> Iterator[str]:
        """Checks invariant 8. A dead incarnation holds nothing, so all of its partitions may be released."""
        consumer = step.ledger.consumer
        member = self.observation.members.get(consumer)
        if before is None or member is None or is_dead(before, member):
            return
        gone = before.held - step.ledger.held
        if gone - before.stopping or (gone and self._stop_outstanding(consumer)):
            yield f"8: {gone} of {consumer} is released, but the stop is not acknowledged"

    def _stop(self, consumer: str, partitions: PartitionSet, owned: PartitionSet) -> Iterator[str]:
        target, ledger = self.target, self.ledgers.get(consumer)
        member = self.observation.members.get(consumer)
        if partitions - owned:
            yield f"6: {consumer} is told to stop {partitions - owned}, which it does not own"
        if target is None or ledger is None or member is None:
            yield f"6: {consumer} is told to stop, but has no target, ledger or registration"
            return
        if member.mode is Mode.EAGER and ledger.generation < target.generation:
            return
        recreated = stale_topics([ledger], self.observation.topics)
        stays = (partitions & target.members.get(consumer, NO_PARTITIONS)).filter(lambda t: t not in recreated)
        if stays:
            yield f"6: {consumer} is told to stop {stays}, which the target leaves where it is"

    def _start(self, consumer: str, partitions: PartitionSet) -> Iterator[str]:
        target, seen = self.target, self.observation
        if target is None or partitions - target.members.get(consumer, NO_PARTITIONS):
            yield f"2: {consumer} is told to start partitions that the target does not give it"
        for other, ledger in self.ledgers.items():
            if other != consumer and not ledger.held.isdisjoint(partitions):
                yield f"2: {consumer} is told to start {ledger.held & partitions}, held by {other}"
        for before in held_before(seen):
            if not before.held.isdisjoint(partitions):
                yield f"2: {consumer} is told to start {before.held & partitions}, held before the restore"
        if membership_of(seen).ledger_unreadable:
            named = PartitionSet.union(ledger.held for ledger in seen.ledgers.values())
            if partitions - named:
                yield f"2: {consumer} is told to start {partitions - named}, which an unreadable ledger may name"
        if not partitions.isdisjoint(without_offset(seen)):
            yield f"8: {consumer} is told to start {partitions & without_offset(seen)}, whose offset is unreadable"
        if target is not None and seen.members[consumer].mode is Mode.EAGER:
            yield from self._eager(consumer, target)

    def _eager(self, consumer: str, target: Assignment) -> Iterator[str]:
        for other, member in self.observation.members.items():
            ledger = self.ledgers.get(other)
            if member.mode is not Mode.EAGER or ledger is None or is_dead(ledger, member):
                continue
            if self._stop_outstanding(other):
                yield f"2: eager {consumer} is told to start while {other} has a stop outstanding"
            if other != consumer and ledger.generation < target.generation and ledger.owned:
                yield f"2: eager {consumer} is told to start while {other} owns {ledger.owned} from before"

    def _forget(self, consumer: str) -> Iterator[str]:
        member, ledger = self.observation.members.get(consumer), self.ledgers.get(consumer)
        if member is not None and ledger is not None and not is_dead(ledger, member):
            yield f"8: {consumer} is alive, but its ledger is removed"

    def _evict(self, consumer: str) -> Iterator[str]:
        self.evicted.add(consumer)
        asked = {r.consumer for r in self.observation.requests if r.type is RequestType.EVICT}
        if self.observation.pause is not None and consumer not in asked:
            yield f"a member of a paused group is evicted: {consumer}"

    def _offsets(self, partitions: PartitionSet) -> Iterator[str]:
        for consumer, ledger in self.ledgers.items():
            member = self.observation.members.get(consumer)
            if member is not None and is_dead(ledger, member):
                continue
            acknowledged = member is not None and not self._stop_outstanding(consumer)
            held = (ledger.owned if acknowledged else ledger.held) & partitions
            if held:
                yield f"5: offsets of {held} are changed while {consumer} holds them"
