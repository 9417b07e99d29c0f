"""What a group remembers of its subscriptions, and which partitions therefore begin at their beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.start_offsets import (
    Covering,
    FirstEnds,
    covering,
    read_start_offsets,
    unclaimed,
    write_ops,
)
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka.managed.administration import begin_adoption
from kafka_coord.model import (
    Coverage,
    Member,
    PartitionSet,
    Subscription,
    TopicInfo,
    TopicOfOffsets,
    TopicPartition,
    Unreadable,
)
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, Create, Delete, Node, Op, SetData, Stat
from tests.coordinator.harness import World
from tests.simulation.store import SimulatedStore, connected_store

GROUP = "delays"
IDS = {"flights": "TMyOC9fMQO2RvZzC_cfMOw", "fares": "AMyOC9fMQO2RvZzC_cfMOw"}


def topic(name: str, partitions: int, identity: str = "") -> TopicInfo:
    return TopicInfo(name, frozenset(range(partitions)), identity or IDS[name])


def node(coverage: Coverage | bytes) -> Node:
    data = coverage if isinstance(coverage, bytes) else coverage.to_bytes()
    return Node(data, Stat(1, 1, 0, 0, 0, 0, 0, len(data), 0, 1))


def covered(found: object, there: set[str], subscription: Subscription, *topics: TopicInfo) -> Covering:
    members = {"c1": Member("c1", 7, subscription)}
    return covering(GROUP, found, frozenset(there), members, {one.name: one for one in topics})


def coverage_written(ops: tuple[Op, ...]) -> list[Coverage]:
    path = layout.offsets(GROUP)
    return [Coverage.from_bytes(op.data, path) for op in ops if isinstance(op, SetData) and op.path == path]


@pytest.mark.parametrize("subscription", [Subscription.to(["flights"]), Subscription.matching("fl.*")])
def test_what_exists_at_the_first_subscription_counts_as_first(subscription: Subscription) -> None:
    found = covered(None, set(), subscription, topic("flights", 6), topic("fares", 3))
    assert found.topics == {"flights": TopicOfOffsets(IDS["flights"], 6)}
    (written,) = coverage_written(found.ops)
    assert (written.covers("flights"), written.covers("fares")) == (True, False)


@pytest.mark.parametrize(("protocol", "first"), [(None, 0), ("kafka", 6)])
def test_a_topic_that_was_created_after_the_registration_came_later_although_nothing_is_remembered_yet(
    protocol: str | None, first: int
) -> None:
    """A Kafka client's instance may have changed the subscription after the registration."""
    old, new = TopicInfo("fares", frozenset(range(3)), "6"), topic("flights", 6)
    new = replace(new, former_identity="8")
    members = {"c1": structs.replace(Member("c1", 7, Subscription.matching("f.*")), protocol=protocol)}
    found = covering(GROUP, None, frozenset(), members, {"fares": old, "flights": new})
    assert found.topics == {"fares": TopicOfOffsets("6", 3), "flights": TopicOfOffsets(IDS["flights"], first)}


@pytest.mark.parametrize("subscription", [Subscription.to(["flights", "fares"]), Subscription.matching(".*")])
def test_a_topic_that_appears_under_a_remembered_subscription_came_later(subscription: Subscription) -> None:
    before = node(Coverage().with_also([subscription]))
    found = covered(before, {"flights"}, subscription, topic("flights", 6), topic("fares", 3))
    assert found.topics == {"fares": TopicOfOffsets(IDS["fares"], 0)}
    assert coverage_written(found.ops) == []


def test_a_topic_that_existed_and_is_newly_subscribed_counts_as_first() -> None:
    before = node(Coverage().with_also([Subscription.to(["flights"])]))
    both = Subscription.to(["flights", "fares"])
    found = covered(before, {"flights"}, both, topic("flights", 6), topic("fares", 3))
    assert found.topics == {"fares": TopicOfOffsets(IDS["fares"], 3)}
    (written,) = coverage_written(found.ops)
    assert written.covers("fares")


def test_a_group_at_rest_writes_nothing() -> None:
    subscription = Subscription.to(["flights"])
    found = covered(node(Coverage().with_also([subscription])), {"flights"}, subscription, topic("flights", 6))
    assert (found.topics, found.ops) == ({}, ())


def test_the_first_offsets_of_a_group_without_members_get_a_parent() -> None:
    """A reset may come before the group's first member, and so does a conversion."""
    assert covering(GROUP, None, frozenset(), {}, {"flights": topic("flights", 6)}).ops == (
        Create(layout.offsets(GROUP)),
    )


def test_a_coverage_that_cannot_be_decoded_skips_nothing_and_is_replaced() -> None:
    subscription = Subscription.to(["flights"])
    found = covered(node(b"{"), set(), subscription, topic("flights", 6))
    assert found.topics == {"flights": TopicOfOffsets(IDS["flights"], 0)}
    assert coverage_written(found.ops) == [Coverage().with_also([subscription])]
    found = covered(Unreadable("/x", "no right"), set(), subscription, topic("flights", 6))
    assert (found.topics, found.ops) == ({}, ())


def test_what_is_remembered_has_a_limit() -> None:
    subscriptions = [Subscription.matching(f"x{number}" + "y" * 5_000) for number in range(100)]
    kept = Coverage().with_also(subscriptions[:70]).with_also(subscriptions[70:])
    assert [kept.covers(f"x{number}" + "y" * 5_000) for number in (0, 99)] == [False, True]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", TopicOfOffsets("")),
        (b"TMyOC9fMQO2RvZzC_cfMOw", TopicOfOffsets(IDS["flights"])),
        (b"TMyOC9fMQO2RvZzC_cfMOw 6", TopicOfOffsets(IDS["flights"], 6)),
        (b"77 0", TopicOfOffsets("77", 0)),
        (b"77 six", TopicOfOffsets("77 six")),
        (b"77 6 1789000000000", TopicOfOffsets("77", 6, 1_789_000_000_000)),
        (b"77  1789000000000", TopicOfOffsets("77", None, 1_789_000_000_000)),
        (b"77 ", TopicOfOffsets("77 ")),
        (b"77 6 soon", TopicOfOffsets("77 6 soon")),
    ],
)
def test_the_value_of_a_topics_offsets_is_read(data: bytes, expected: TopicOfOffsets) -> None:
    found = TopicOfOffsets.read(data)
    assert found == expected
    assert found.data == data


@pytest.mark.zookeeper
def test_partitions_beyond_the_counted_ones_and_those_of_a_topic_made_anew_came_later(world: World) -> None:
    store = world.store
    wanted = PartitionSet({"flights": {0, 6}, "fares": {0}})
    topics = {"flights": topic("flights", 7), "fares": topic("fares", 1)}
    store.ensure_path(layout.topic_offsets(GROUP, "flights"))
    store.ensure_path(layout.topic_offsets(GROUP, "fares"))
    store.set(layout.topic_offsets(GROUP, "flights"), TopicOfOffsets(IDS["flights"], 6).data)
    store.set(layout.topic_offsets(GROUP, "fares"), TopicOfOffsets("BMyOC9fMQO2RvZzC_cfMOw", 1).data)
    store.set(layout.offsets(GROUP), Coverage().with_also([Subscription.matching(".*")]).to_bytes())
    members = {"c1": Member("c1", 7, Subscription.matching(".*"))}
    start = read_start_offsets(store, GROUP, wanted, topics, members)
    assert start.later == {TopicPartition("flights", 6), TopicPartition("fares", 0)}
    assert start.prepare["flights"] == ()
    (made_anew,) = start.prepare["fares"]
    assert isinstance(made_anew, SetData)
    assert made_anew.data == TopicOfOffsets(IDS["fares"], 0).data


@pytest.mark.zookeeper
@pytest.mark.parametrize(("remembers", "first"), [("fares", 0), ("flights", 1)])
def test_a_reset_of_a_topic_that_was_never_started_keeps_what_came_later(
    world: World, remembers: str, first: int
) -> None:
    store = world.store
    store.ensure_path(layout.offsets(GROUP))
    store.set(layout.offsets(GROUP), Coverage().with_also([Subscription.to([remembers])]).to_bytes())
    start = read_start_offsets(store, GROUP, PartitionSet({"fares": {0}}), {"fares": topic("fares", 1)}, {})
    (made,) = start.prepare["fares"]
    assert isinstance(made, Create)
    assert made.data == TopicOfOffsets(IDS["fares"], first).data


def stored(data: bytes, subscription: Subscription | None = None) -> SimulatedStore:
    """The store of a group with offsets of ``fares``, that remembers the subscription, if there is one."""
    store = connected_store()
    store.ensure_path(layout.topic_offsets(GROUP, "fares"))
    store.set(layout.topic_offsets(GROUP, "fares"), data)
    if subscription is not None:
        store.set(layout.offsets(GROUP), Coverage().with_also([subscription]).to_bytes())
    return store


FARES = {"fares": topic("fares", 3)}
"""How many partitions there are now."""


@pytest.mark.parametrize("data", [b"[]", b"x 3", b"", IDS["fares"].encode(), f"{IDS['fares']}  1789".encode()])
@pytest.mark.parametrize("subscription", [Subscription.to(["fares"]), Subscription.matching("f.*")])
@pytest.mark.parametrize("is_reset", [False, True])
def test_no_record_is_skipped_where_the_number_of_partitions_is_lost(
    data: bytes, subscription: Subscription, *, is_reset: bool
) -> None:
    """What it was replaced by is not a number to go by, and an operator may have repaired the identity alone."""
    store, members = stored(data, subscription), {"c1": Member("c1", 7, subscription)}
    start = read_start_offsets(store, GROUP, PartitionSet({"fares": {1}}), FARES, {} if is_reset else members)
    (written,) = start.prepare["fares"]
    assert isinstance(written, SetData)
    assert written.data == TopicOfOffsets(IDS["fares"], 0).data
    assert start.later == (frozenset() if start.unclaimed else {TopicPartition("fares", 1)})


def test_the_value_that_an_operator_is_told_to_set_skips_nothing() -> None:
    told = unclaimed("[]", IDS["fares"]).partition("set it to '")[2].partition("'")[0].encode()
    store, members = stored(told), {"c1": Member("c1", 7, Subscription.to(["fares"]))}
    start = read_start_offsets(store, GROUP, PartitionSet({"fares": {1}}), FARES, members)
    assert start.later == {TopicPartition("fares", 1)}


@pytest.mark.parametrize("wanted", [PartitionSet({"fares": {1}}), PartitionSet()])
def test_the_partitions_of_a_topic_with_offsets_of_kafka_0_8_are_counted_before_the_group_remembers_it(
    wanted: PartitionSet,
) -> None:
    """Also if nothing is started yet, because the group is paused."""
    store, members = stored(b""), {"c1": Member("c1", 7, Subscription.to(["fares"]))}
    start = read_start_offsets(store, GROUP, wanted, FARES, members)
    assert start.later == frozenset()
    counted, remembered = start.parent
    assert isinstance(counted, SetData)
    assert counted.data == TopicOfOffsets(IDS["fares"], 3).data
    assert coverage_written((remembered,)) != []
    store.multi(start.parent)
    more = {"fares": topic("fares", 4)}
    again = read_start_offsets(store, GROUP, PartitionSet({"fares": {2, 3}}), more, members)
    assert (again.parent, again.later) == ((), {TopicPartition("fares", 3)})


@pytest.mark.parametrize("remembers", [None, Subscription.to(["flights"])])
def test_a_conversion_skips_nothing_that_came_later(remembers: Subscription | None) -> None:
    """Nobody knows how many partitions there were when the client-assigned group first read the topic."""
    store, claim = connected_store(), layout.log_partition(14)
    store.ensure_path(claim)
    if remembers is not None:
        store.ensure_path(layout.offsets(GROUP))
        store.set(layout.offsets(GROUP), Coverage().with_also([remembers]).to_bytes())
    committed = [TopicPartition("fares", 0), TopicPartition("fares", 1)]
    for _ in range(2):  # also when it is repeated
        begin_adoption(store, GROUP, committed, "an operator asked", Check(claim, 0), keeps=True)
    start = read_start_offsets(store, GROUP, PartitionSet({"fares": {0, 1}}), FARES, {})
    store.multi((*start.parent, *start.prepare["fares"], *write_ops(GROUP, dict.fromkeys(committed, 7), ())))
    members = {"c1": Member("c1", 7, Subscription.to(["fares", "flights"]))}
    start = read_start_offsets(store, GROUP, PartitionSet({"fares": {0, 1, 2}}), FARES, members)
    assert (start.offsets[committed[1]], start.later) == (7, {TopicPartition("fares", 2)})


def test_the_elected_instance_lists_what_is_awaited_and_no_group_delays_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = connected_store()
    store.ensure_path(layout.COORDINATOR_EPOCH)
    known, faster, gone = (TopicPartition("flights", number) for number in range(3))
    store.ensure_path(layout.BROKER_TOPICS)
    store.create(layout.broker_topic("flights"), topic_value(3, topic_id=IDS["flights"]))
    for group in ("a", "b"):
        store.ensure_path(layout.topic_offsets(group, "flights"))
        store.ensure_path(layout.unresolved(group))
    for partition in (known, faster, gone):
        store.create(layout.awaited_end("a", *partition), b"{}")
    store.create(layout.offset("a", *faster), b"3")
    store.create(layout.awaited_end("b", *known), b"{}")
    asked = PartitionSet.of([known, faster, gone])
    answers: list[Mapping[TopicPartition, int] | BrokerError] = [BrokerError("nobody listens")] * 2
    answers += [{known: 7, faster: 9}, {known: 8, faster: 9, gone: 5}]

    def lists(partitions: PartitionSet) -> Mapping[TopicPartition, int]:
        assert partitions == asked
        found = answers.pop(0)
        if isinstance(found, BrokerError):
            raise found
        return found

    awaited = {"a": [known, faster, gone], "b": [known]}
    ends = FirstEnds(store, Executor(store, Check(layout.COORDINATOR_EPOCH)), awaited, lists)
    for _ in range(2):
        ends.step()
    assert [one.levelname for one in caplog.records] == ["WARNING"], "it is said once"
    ends.step()

    def stored(group: str, partition: TopicPartition) -> bytes | None:
        path = layout.offset(group, *partition)
        return None if store.exists(path) is None else store.get(path).data

    assert [stored("a", known), stored("a", faster), stored("a", gone), stored("b", known)] == [b"7", b"3", None, b"7"]
    assert store.children(layout.unresolved("a")) == (layout.awaited_end("a", *gone).rpartition("/")[2],)
    ends.step()
    assert [stored("a", known), stored("a", gone)] == [b"7", b"5"], "the first end that anybody has listed"
    assert not store.children(layout.unresolved("a"))


def test_the_awaited_ends_of_an_earlier_topic_go_with_its_offsets() -> None:
    """A member that still carries out the start of the earlier topic may have written them after the new one was made.
    The end of the new topic would be stored for a partition that begins at its beginning."""
    store = connected_store()
    for name, identity in (("flights", IDS["flights"]), ("fares", "BMyOC9fMQO2RvZzC_cfMOw")):
        store.ensure_path(layout.topic_offsets(GROUP, name))
        store.set(layout.topic_offsets(GROUP, name), TopicOfOffsets(identity, 1).data)
        store.ensure_path(layout.awaited_end(GROUP, name, 0))
    store.ensure_path(layout.offset(GROUP, "fares", 1))
    topics = {"flights": topic("flights", 1), "fares": topic("fares", 2)}
    members = {"c1": Member("c1", 7, Subscription.to(["flights", "fares"]))}
    start = read_start_offsets(store, GROUP, PartitionSet({"flights": {0}, "fares": {0}}), topics, members)
    assert start.remove["flights"] == ()
    earlier = layout.offset(GROUP, "fares", 1), layout.awaited_end(GROUP, "fares", 0)
    assert start.remove["fares"] == tuple(map(Delete, earlier))
    assert start.later == {TopicPartition("fares", 0)}
