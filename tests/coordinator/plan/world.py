"""A small world for the planner: one group in a model of ZooKeeper, and consumers that carry out commands in order.

The world checks each plan against the invariants. It applies every step as the executor would write it: it checks
versions, and applies all of a step or nothing. After each step, it checks facts that only the world knows: which
partitions consumers fetch, and which generations existed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from msgspec import structs

from kafka_coord.coordinator.assignors import built_in_assignors
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.steps import (
    AnswerRequest,
    DeleteOffsets,
    EvictUnledgered,
    ForgetConsumer,
    GroupState,
    Plan,
    RemoveGroup,
    SetTarget,
    Step,
    WriteHolds,
    WriteLedgerAndCommands,
    WriteOffsets,
)
from kafka_coord.groups.restore import held_in_the_end
from kafka_coord.model import (
    NODE_PREFIX,
    Assignment,
    Channel,
    Command,
    CommandId,
    Departure,
    GroupSettings,
    Holds,
    Ledger,
    Member,
    Observation,
    PartitionSet,
    Pause,
    Request,
    StopFetcher,
    Subscription,
    TopicInfo,
    TopicPartition,
    Unreadable,
    command_from_json,
)
from kafka_coord.model.json_fields import MAX_VALUE_BYTES, dump, load
from kafka_coord.model.member import LEFT, Refusals
from kafka_coord.zk import layout
from tests.coordinator.plan.invariants import violations, violations_of_ledgers

GROUP = "g"
ASSIGNORS = built_in_assignors()


class Refused(Exception):
    """The model refused a step, as ZooKeeper would. Nothing was written."""


@dataclass
class World:
    """A model of a group. ``fetching`` maps each consumer to the partitions that its live incarnation fetches, and
    ``lingering`` names consumers of a lost tree whose process may still fetch some."""

    members: dict[str, Member] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    channels: dict[str, list[tuple[CommandId, Command]]] = field(default_factory=dict)
    strays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    assignment: Assignment | None = None
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    settings: GroupSettings = field(default_factory=GroupSettings)
    pause: Pause | None = None
    epoch: int = 1
    in_grace: set[str] = field(default_factory=set)
    overdue: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    retention_passed: bool = False
    departures: dict[str, Departure] = field(default_factory=dict)
    bad_ledgers: set[str] = field(default_factory=set)
    bad_registrations: set[str] = field(default_factory=set)
    bad_offsets: set[TopicPartition] = field(default_factory=set)
    refusals: dict[str, Refusals] = field(default_factory=dict)
    holds: Holds | None = None
    holds_over: bool = False
    lingering: dict[tuple[str, str], set[TopicPartition]] = field(default_factory=dict)
    tell_bad_incarnations: bool = True
    fetching: dict[str, set[TopicPartition]] = field(default_factory=dict)
    told_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    removed: bool = False
    generations: list[int] = field(default_factory=lambda: [0])
    zxid: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))

    # events of the group

    def join(self, consumer: str, subscription: Subscription | None = None, **fields: object) -> Member:
        """Registers the consumer, as a new incarnation if it was registered before."""
        self.leave(consumer)
        wanted = subscription or Subscription.to(["flights"])
        incarnation = next(self.zxid)
        fields.setdefault("process", f"p{incarnation}")
        member = Member(consumer, incarnation, wanted, **fields)  # type: ignore[arg-type]
        self.lingering.pop((consumer, member.process), None)  # it stops everything before it registers
        self.members[consumer] = member
        self.in_grace.discard(consumer)
        self.retired.discard(consumer)
        self.channels.setdefault(consumer, [])
        self.fetching[consumer] = set()
        self.retention_passed = False
        self.removed = False
        return member

    def leave(self, consumer: str, how: Departure = LEFT) -> None:
        """Deletes the registration. If the member has a grace period, its place is kept until ``end_grace``."""
        if self.members.pop(consumer, None) is None:
            return
        self.departures[consumer] = how
        self.fetching.pop(consumer, None)
        self.bad_registrations.discard(consumer)
        self.overdue.discard(consumer)
        ledger = self.ledgers.get(consumer)
        if ledger is not None and ledger.place is not None and consumer not in self.bad_ledgers:
            self.in_grace.add(consumer)

    def lose_tree(self) -> None:
        """Loses the tree and restores it from a backup of its last state. The members' processes live on, and fetch
        until they notice."""
        for consumer, mine in self.fetching.items():
            if mine:
                self.lingering[consumer, self.members[consumer].process] = mine
        earlier = self.holds.consumers if self.holds is not None else {}
        ledgers = [one for name, one in self.ledgers.items() if name not in self.in_grace]
        held = held_in_the_end(ledgers, earlier)
        self.holds, self.holds_over = Holds(60_000, held) if held else None, False
        self.members, self.ledgers, self.channels, self.strays, self.fetching = {}, {}, {}, {}, {}
        self.requests, self.departures, self.refusals = {}, {}, {}
        for names in (self.in_grace, self.overdue, self.retired, self.bad_ledgers, self.bad_registrations):
            names.clear()
        if self.assignment is not None:
            self.assignment = structs.replace(self.assignment, znode_version=0)
        self.epoch += 1_000

    def end_holds(self) -> None:
        """The longest session timeout passes, so that no process of the lost tree fetches any longer."""
        self.lingering.clear()
        self.holds_over = True

    def end_grace(self, consumer: str) -> None:
        self.in_grace.discard(consumer)

    def topic(self, name: str, partitions: int, identity: str | None = None) -> None:
        """Creates a topic, or changes its number of partitions."""
        known = self.topics.get(name)
        kept = known.identity if known is not None else f"id{next(self.zxid)}"
        self.topics[name] = TopicInfo(name, frozenset(range(partitions)), identity or kept)

    def recreate(self, name: str, partitions: int) -> None:
        self.topics[name] = TopicInfo(name, frozenset(range(partitions)), f"id{next(self.zxid)}")

    def ask(self, **fields: object) -> Request:
        request_id = f"request-{next(self.zxid):010d}"
        request = Request(group=GROUP, request_id=request_id, **fields)  # type: ignore[arg-type]
        self.requests[request_id] = request
        return request

    def answer_to(self, request: Request) -> Request:
        return self.requests[request.request_id]

    def obey(self, consumer: str) -> bool:
        """Carries out and acknowledges the first command in the channel. Returns ``False`` if there is none."""
        if consumer not in self.members or not self.channels.get(consumer):
            return False
        _, command = self.channels[consumer].pop(0)
        self.overdue.discard(consumer)
        if command.incarnation != self.members[consumer].incarnation:
            return True
        mine = self.fetching[consumer]
        told = set(command.partitions)
        if isinstance(command, StopFetcher):
            assert told <= mine, f"{consumer} was told to stop {told - mine}, which it does not fetch"
            mine -= told
        else:
            assert not told & mine, f"{consumer} was told to start {told & mine} twice"
            mine |= told
        self.check()
        return True

    def obey_all(self) -> bool:
        return sum(self.obey(consumer) for consumer in sorted(self.members) for _ in range(3)) > 0

    # the coordinator's side

    def observe(self) -> Observation:
        unreadable = [Unreadable(layout.ledger(GROUP, c), "broken") for c in self.bad_ledgers if c in self.ledgers]
        unreadable += [
            Unreadable(
                layout.registration(GROUP, c),
                "broken",
                self.members[c].incarnation if self.tell_bad_incarnations else 0,
            )
            for c in self.bad_registrations
        ]
        unreadable += [Unreadable(layout.offset(GROUP, *tp), "broken") for tp in sorted(self.bad_offsets)]
        return Observation(
            group=GROUP,
            epoch=self.epoch,
            members={c: m for c, m in self.members.items() if c not in self.bad_registrations},
            ledgers={c: ledger for c, ledger in self.ledgers.items() if c not in self.bad_ledgers},
            channels={
                c: Channel(tuple(command_id for command_id, _ in commands), self.strays.get(c, ()))
                for c, commands in self.channels.items()
            },
            assignment=self.assignment,
            topics=dict(self.topics),
            settings=self.settings,
            departures={c: how for c, how in self.departures.items() if c not in self.members},
            pause=self.pause,
            requests=tuple(r for r in self.requests.values() if not r.answered),
            in_grace=frozenset(self.in_grace - self.members.keys()),
            overdue=frozenset(self.overdue),
            retired=frozenset(self.retired),
            retention_passed=self.retention_passed,
            unreadable=tuple(unreadable),
            refusals=dict(self.refusals),
            holds=self.holds,
            holds_over=self.holds_over,
        )

    def look(self) -> Plan:
        """Makes one pass and writes all of its plan."""
        decided = self.decide()
        for step in decided.steps:
            self.apply(step)
        return decided

    def decide(self) -> Plan:
        observation = self.observe()
        decided = plan(observation, ASSIGNORS)
        assert decided.summary
        assert plan(observation, ASSIGNORS) == decided
        broken = violations(observation, decided)
        assert not broken, broken
        return decided

    def settle(self, most: int = 30) -> Plan:
        """Makes passes and lets consumers carry out commands until nothing changes."""
        for _ in range(most):
            registered = dict(self.members)
            decided = self.look()
            obeyed = self.obey_all()
            wrote = decided.steps and decided.state is not GroupState.DEAD  # after a write, another pass follows
            if not obeyed and not wrote and registered == self.members:
                decided = self.look()
                return self.look() if decided.state is GroupState.DEAD else decided
        raise AssertionError(f"not settled after {most} passes: {decided.summary}")

    def apply(self, step: Step) -> None:
        """Writes a whole step or nothing. Raises ``Refused`` if ZooKeeper would refuse the step."""
        match step:
            case SetTarget():
                self._set_target(step)
            case WriteLedgerAndCommands():
                self._write_ledger(step)
            case ForgetConsumer():
                self._forget(step)
            case WriteHolds(holds, left):
                if self.holds is None or holds.znode_version != self.holds.znode_version:
                    raise Refused(step)
                written = structs.replace(holds, consumers=left, znode_version=holds.znode_version + 1)
                self.holds = written if left else None
            case EvictUnledgered():
                if step.consumer not in self.members:
                    raise Refused(step)
                self.leave(step.consumer)
            case WriteOffsets():
                self._check_unheld(PartitionSet.of(step.request.offsets))
                self.bad_offsets -= step.request.offsets.keys()
                self.told_offsets.update(step.request.offsets)
            case DeleteOffsets():
                self._check_unheld(step.request.partitions)
                self.bad_offsets -= set(step.request.partitions)
            case RemoveGroup():
                if self.members:
                    raise Refused(step)
                self.ledgers, self.channels, self.assignment, self.removed = {}, {}, None, True
                self.in_grace.clear()
                self.retention_passed = False
                self.bad_ledgers.clear()
                self.bad_offsets.clear()
                self.retired.clear()
                self.generations = [0]
            case AnswerRequest():
                assert step.result in {"done", "refused"}
                assert step.message
                assert not self.requests[step.request.request_id].answered
                self.requests[step.request.request_id] = structs.replace(
                    step.request, result=step.result, message=step.message
                )
        self.check()

    def _set_target(self, step: SetTarget) -> None:
        expected = self.assignment.znode_version if self.assignment is not None else None
        if step.znode_version != expected:
            raise Refused(step)
        target = step.assignment
        assert target.generation > max(self.generations), "a new generation must be higher than all earlier ones"
        raw = dump(target.to_json())
        assert len(raw) <= MAX_VALUE_BYTES
        self.generations.append(target.generation)
        version = 0 if expected is None else expected + 1
        self.assignment = Assignment.from_json(load(raw, "assignment"), "assignment", znode_version=version)
        assert self.assignment == structs.replace(target, znode_version=version), (
            "the target must equal its decoded JSON"
        )

    def _write_ledger(self, step: WriteLedgerAndCommands) -> None:
        consumer = step.ledger.consumer
        before = self.ledgers.get(consumer)
        if step.znode_version != (before.znode_version if before is not None else None):
            raise Refused(step)
        names = {command_id.name for command_id, _ in self.channels.get(consumer, [])}
        if not names.issuperset(step.drop_commands) or (step.evict and consumer not in self.members):
            raise Refused(step)
        raw = dump(step.ledger.to_json())
        assert len(raw) + sum(len(dump(command.to_json())) for command in step.commands) <= 950_000
        version = 0 if before is None else before.znode_version + 1
        after = Ledger.from_json(load(raw, "ledger"), "ledger", consumer=consumer, znode_version=version)
        assert after == structs.replace(step.ledger, znode_version=version), "the ledger must equal its decoded JSON"
        self.ledgers[consumer] = after
        kept = [entry for entry in self.channels.get(consumer, []) if entry[0].name not in step.drop_commands]
        for command in step.commands:
            raw = dump(command.to_json())
            assert len(raw) <= 700_000
            assert command_from_json(load(raw, "command"), "command") == command
            sequence = next(self.zxid)
            name = f"{NODE_PREFIX[command.type]}{sequence:010d}"
            kept.append((CommandId(sequence, command.type, name), command))
        self.channels[consumer] = kept
        if step.evict:
            self.leave(consumer)

    def _forget(self, step: ForgetConsumer) -> None:
        consumer = step.consumer
        before = self.ledgers.get(consumer)
        if step.ledger_version not in (before.znode_version if before is not None else None, -1):
            raise Refused(step)
        names = {command_id.name for command_id, _ in self.channels.get(consumer, [])}
        if not names.issuperset(step.drop_commands):
            raise Refused(step)
        kept = [entry for entry in self.channels.get(consumer, []) if entry[0].name not in step.drop_commands]
        if step.channel and (kept or self.strays.get(consumer)):
            raise Refused(step)
        if step.ledger_version is not None:
            self.ledgers.pop(consumer, None)
        self.bad_ledgers.discard(consumer)
        self.in_grace.discard(consumer)
        if consumer in self.channels:
            self.channels[consumer] = kept
        if step.refusals:
            del self.refusals[consumer]
        if step.channel:
            self.channels.pop(consumer)
            self.retired.discard(consumer)

    def _check_unheld(self, partitions: PartitionSet) -> None:
        for consumer, mine in self.fetching.items():
            assert not mine & set(partitions), f"offsets were written while {consumer} fetches the partitions"

    # the invariants that hold at any time

    def check(self) -> None:
        assert not (twice := violations_of_ledgers(self.ledgers)), twice
        fetched = {
            partition: f"{name} of the lost tree" for (name, _), mine in self.lingering.items() for partition in mine
        }
        for consumer, mine in self.fetching.items():
            for partition in mine:
                assert partition not in fetched, f"{partition} is fetched by {fetched[partition]} and {consumer}"
                fetched[partition] = consumer
                ledger = self.ledgers[consumer]
                assert ledger.incarnation == self.members[consumer].incarnation
                assert partition in ledger.held, f"{consumer} fetches {partition}, which its ledger does not name"

    def check_settled(self, decided: Plan) -> None:
        """Invariant 7: every partition of a subscribed topic is owned by the member that the target names."""
        assert decided.state in {GroupState.STABLE, GroupState.EMPTY}, decided.summary
        if not self.members and not self.in_grace:
            assert decided.state is GroupState.EMPTY
            return
        assert self.assignment is not None
        places = {c: ledger.place for c, ledger in self.ledgers.items() if c in self.in_grace}
        members = {**self.members, **{c: place for c, place in places.items() if place is not None}}
        wanted = PartitionSet(
            {
                name: topic.partitions
                for name, topic in self.topics.items()
                if any(member.subscription.wants(name) for member in members.values())
            }
        )
        covered = PartitionSet.of(p for found in self.assignment.members.values() for p in found)
        assert covered == wanted
        assert self.assignment.members.keys() == members.keys()
        for consumer, member in self.members.items():
            ledger = self.ledgers[consumer]
            assert set(ledger.owned) == self.fetching[consumer]
            assert all(member.subscription.wants(topic) for topic in ledger.owned.topics)
            assert ledger.place == (member if member.rejoin_grace_ms else None)
            for topic in ledger.owned.topics:
                assert ledger.topic_ids[topic] == self.topics[topic].identity
