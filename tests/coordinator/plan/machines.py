"""Random groups, faults and orders of events for the planner, as state machines of Hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from kafka_coord.model import (
    GroupSettings,
    Mode,
    PartitionSet,
    Pause,
    RequestType,
    Subscription,
    TopicPartition,
)
from tests.coordinator.plan.world import Refused, World

CONSUMERS = ("c1", "c2", "c3", "c4", "c5")
TOPICS = ("flights", "planes", "airports")
consumers = st.sampled_from(CONSUMERS)
topics = st.sampled_from(TOPICS)
counts = st.integers(0, 7)
subscriptions = st.one_of(
    st.just(Subscription.to(["flights"])),
    st.builds(
        lambda chosen, streams: Subscription.to(sorted(chosen), streams),
        st.sets(topics, min_size=1),
        st.integers(1, 3),
    ),
    st.sampled_from([Subscription.matching("fl.*|planes"), Subscription.matching("planes", exclude=True)]),
)


class Group(RuleBasedStateMachine):
    """The invariants hold after each step, in any order of events. At the end, every partition has an owner."""

    mode = st.just(Mode.INCREMENTAL)

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(partitions=st.integers(1, 8), first=st.integers(1, 3))
    def begin(self, partitions: int, first: int) -> None:
        self.world.topic("flights", partitions)
        for consumer in CONSUMERS[:first]:
            self.world.join(consumer)
        self.world.settle()

    @rule(
        consumer=consumers,
        subscription=subscriptions,
        data=st.data(),
        capacity=st.integers(1, 4),
        grace=st.booleans(),
        assignor=st.sampled_from([None, None, "range", "weighted", "roundrobin", "no-such"]),
    )
    def joins_or_restarts(self, consumer, subscription, data, capacity, grace, assignor) -> None:
        self.world.join(
            consumer,
            subscription,
            capacity=capacity,
            mode=data.draw(self.mode),
            rejoin_grace_ms=60_000 if grace else 0,
            assignor=assignor,
        )

    @rule(consumer=consumers)
    def leaves(self, consumer) -> None:
        self.world.leave(consumer)

    @rule(consumer=consumers)
    def returns_unchanged(self, consumer) -> None:
        ledger = self.world.ledgers.get(consumer)
        if consumer in self.world.in_grace and ledger is not None and ledger.place is not None:
            place = ledger.place
            self.world.join(consumer, place.subscription, rejoin_grace_ms=place.rejoin_grace_ms, mode=place.mode)

    @rule(consumer=consumers)
    def grace_ends(self, consumer) -> None:
        self.world.end_grace(consumer)

    @rule(consumer=consumers)
    def retires(self, consumer) -> None:
        if consumer not in self.world.members and consumer in self.world.channels:
            self.world.in_grace.discard(consumer)
            self.world.retired.add(consumer)

    @rule(topic=topics, partitions=counts)
    def topic_changes(self, topic, partitions) -> None:
        self.world.topic(topic, partitions)

    @rule(topic=topics, partitions=counts)
    def topic_is_created_again(self, topic, partitions) -> None:
        self.world.recreate(topic, partitions)

    @rule(topic=topics)
    def topic_is_deleted(self, topic) -> None:
        self.world.topics.pop(topic, None)

    @rule(consumer=consumers)
    def obeys(self, consumer) -> None:
        self.world.obey(consumer)

    @rule(consumer=consumers)
    def is_slow(self, consumer) -> None:
        if self.world.channels.get(consumer) and consumer in self.world.members:
            self.world.overdue.add(consumer)

    @rule()
    def coordinator_changes(self) -> None:
        self.world.epoch += 1

    @rule(by=st.sampled_from(["", "op"]))
    def is_paused(self, by) -> None:
        self.world.pause = Pause(by=by)

    @rule()
    def is_resumed(self) -> None:
        self.world.pause = None

    @rule(assignor=st.sampled_from([None, "range", "weighted", "sticky", "no-such"]))
    def settings_change(self, assignor) -> None:
        self.world.settings = GroupSettings(assignor=assignor)

    @rule(
        kind=st.sampled_from([RequestType.REBALANCE, RequestType.EVICT, RequestType.LOOK, RequestType.DELETE_GROUP]),
        consumer=consumers,
    )
    def operator_asks(self, kind, consumer) -> None:
        self.world.ask(type=kind, consumer=consumer if kind is RequestType.EVICT else "")

    @rule(topic=topics, partition=st.integers(0, 6), delete=st.booleans())
    def operator_changes_offsets(self, topic, partition, delete) -> None:
        if delete:
            partitions = PartitionSet({topic: [partition]})
            self.world.ask(type=RequestType.DELETE_OFFSETS, partitions=partitions)
        else:
            self.world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition(topic, partition): 7})

    @precondition(lambda self: not self.world.bad_ledgers)
    @rule()
    def tree_is_lost_and_restored(self) -> None:
        self.world.lose_tree()

    @rule(consumer=consumers)
    def process_of_the_lost_tree_registers(self, consumer) -> None:
        for name, process in list(self.world.lingering):
            if name == consumer and consumer not in self.world.members:
                self.world.join(consumer, process=process)

    @rule()
    def sessions_of_the_lost_tree_are_over(self) -> None:
        self.world.end_holds()

    @rule(consumer=consumers)
    def ledger_breaks(self, consumer) -> None:
        if consumer in self.world.ledgers and consumer not in self.world.in_grace:
            self.world.bad_ledgers.add(consumer)

    @rule(consumer=consumers, known=st.booleans())
    def registration_breaks(self, consumer, known) -> None:
        if consumer in self.world.members:
            self.world.bad_registrations.add(consumer)
            self.world.tell_bad_incarnations = known

    @rule(topic=topics, partition=st.integers(0, 6))
    def offset_breaks(self, topic, partition) -> None:
        self.world.bad_offsets.add(TopicPartition(topic, partition))

    @rule(topic=topics, partition=st.integers(0, 6))
    def offset_is_healed(self, topic, partition) -> None:
        self.world.bad_offsets.discard(TopicPartition(topic, partition))

    @rule()
    def offsets_expire(self) -> None:
        self.world.retention_passed = not self.world.members and not self.world.in_grace

    @rule()
    def coordinator_looks(self) -> None:
        self.world.look()

    @rule(data=st.data())
    def coordinator_looks_while_things_happen(self, data) -> None:
        """Writes a plan step by step. Between steps, consumers act, and the coordinator may die."""
        for step in self.world.decide().steps:
            happening = data.draw(st.sampled_from(["", "", "obey", "leave", "restart", "dies", "grow"]))
            consumer = data.draw(consumers)
            if happening == "obey":
                self.world.obey(consumer)
            elif happening == "leave":
                self.world.leave(consumer)
            elif happening == "restart" and consumer in self.world.members:
                self.world.join(consumer)
            elif happening == "grow" and "flights" in self.world.topics:
                self.world.topic("flights", len(self.world.topics["flights"].partitions) + 1)
            elif happening == "dies":
                self.world.epoch += 1
                return
            try:
                self.world.apply(step)
            except (Refused, KeyError):
                return

    @precondition(lambda self: not self.world.bad_ledgers and not self.world.bad_registrations)
    @rule()
    def everything_settles(self) -> None:
        self.world.pause = None
        self.world.bad_offsets.clear()
        self.world.end_holds()
        self.world.check_settled(self.world.settle())

    def teardown(self) -> None:
        """Invariant 7: when events stop, every group reaches its target in a bounded number of passes."""
        world = self.world
        world.pause = None
        world.bad_offsets.clear()
        world.end_holds()
        for consumer in world.bad_ledgers | world.bad_registrations:
            world.ask(type=RequestType.EVICT, consumer=consumer)
        decided = world.settle()
        world.check_settled(decided)
        assert all(request.answered for request in world.requests.values())
        assert world.look().steps == (), "a pass over a settled group must write nothing"


class EagerGroup(Group):
    """A group with some eager members, which stop all partitions before they start any."""

    mode = st.sampled_from([Mode.EAGER, Mode.EAGER, Mode.INCREMENTAL])


SETTINGS = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    # the phase "explain" traces every line, which takes hours
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
GROUP = Group.TestCase
GROUP.settings = SETTINGS
EAGER_GROUP = EagerGroup.TestCase
EAGER_GROUP.settings = SETTINGS
