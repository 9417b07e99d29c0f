"""Tests that a consumer registers, loses its membership and returns. An earlier incarnation may no longer write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from kafka_coord import Consumer, ConsumerIdInUse, InvalidName, InvalidPattern, MembershipLost, SettingsError
from kafka_coord.channel.operations import Holder, Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.model import SubscriptionKind, TopicPartition
from kafka_coord.zk import connect, layout
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Create
from tests.chaos.force_expire import expire
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.lossy_store import LossyStore
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

T0 = TopicPartition("t", 0)

MakeStore = Callable[..., KazooStore]
MakeConsumer = Callable[..., Consumer]


@pytest.fixture
def make_store(zk_hosts: str) -> Iterator[MakeStore]:
    """Opens sessions on this test's own chroot."""
    made: list[KazooStore] = []

    def make(hosts: str = zk_hosts, *, session_timeout_ms: int = 6_000) -> KazooStore:
        made.append(connect(hosts, session_timeout_ms=session_timeout_ms))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> KazooStore:
    return make_store()


@pytest.fixture
def make_consumer(zk_hosts: str) -> Iterator[MakeConsumer]:
    """Makes consumers without brokers. They hold partitions and commit, but read no records."""
    made: list[Consumer] = []

    def make(**settings: object) -> Consumer:
        arguments = {"group": "g", "topics": ["t"], "auto_offset_reset": "earliest", "session_timeout_ms": 10_000}
        arguments |= {} if "store" in settings else {"zookeeper": zk_hosts}
        made.append(Consumer(**(arguments | settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for consumer in made:
        consumer.close(timeout_s=2)


@pytest.fixture
def coordinator(store: KazooStore) -> HandCoordinator:
    return HandCoordinator(store, "g")


def hold(consumer: Consumer, coordinator: HandCoordinator, at: int) -> None:
    """Makes the consumer the owner of ``T0``, with the offset ``at`` to commit."""
    coordinator.run_start(consumer.consumer_id, {T0: 0})
    consumer.seek(T0, at)


def test_a_registration_contains_all_settings_that_the_coordinator_needs(
    make_consumer: MakeConsumer, coordinator: HandCoordinator, store: KazooStore
) -> None:
    began = time.time()
    consumer = make_consumer(
        topics={"t": 2, "u": 1},
        capacity=3,
        rack="east",
        assignor="weighted",
        mode="eager",
        rejoin_grace_ms=5_000,
    )

    member = coordinator.await_member(consumer.consumer_id)

    assert member.subscription.topics == {"t": 2, "u": 1}
    assert (member.capacity, member.rack, member.assignor, member.mode) == (3, "east", "weighted", "eager")
    assert (member.rejoin_grace_ms, member.session_timeout_ms) == (5_000, 10_000)
    assert f"pid={os.getpid()}" in (member.client or "")
    assert int(began * 1000) <= int(member.timestamp) <= time.time() * 1000
    assert consumer.consumer_id.startswith("g_")
    stat = store.exists(layout.registration("g", consumer.consumer_id))
    channel = store.exists(layout.channel("g", consumer.consumer_id))
    assert stat is not None
    assert channel is not None
    assert stat.ephemeral_owner != 0
    assert channel.mzxid == stat.czxid  # one request has created both


@pytest.mark.parametrize(
    ("name", "kind"),
    [("include", SubscriptionKind.INCLUDE), ("exclude", SubscriptionKind.EXCLUDE)],
)
def test_pattern_subscriptions_are_registered_unchanged(
    name: str, kind: SubscriptionKind, make_consumer: MakeConsumer, coordinator: HandCoordinator
) -> None:
    consumer = make_consumer(topics=None, streams=2, **{name: "fl.{1,3}|routes"})
    subscription = coordinator.await_member(consumer.consumer_id).subscription
    assert (subscription.kind, subscription.pattern, subscription.streams) == (kind, "fl.{1,3}|routes", 2)
    assert len(consumer.streams) == 2


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"group": "a/b"}, InvalidName, "group name 'a/b'"),
        ({"consumer_id": ".."}, InvalidName, "consumer name"),
        ({"topics": ["bad topic"]}, InvalidName, "topic name 'bad topic'"),
        ({"topics": "flights"}, SettingsError, r"topics=\['flights'\]"),
        ({"topics": []}, SettingsError, "topics is empty"),
        ({"topics": None}, SettingsError, "give one of"),
        ({"include": "x"}, SettingsError, "not topics and include"),
        ({"topics": None, "include": "a", "exclude": "b"}, SettingsError, "not include and exclude"),
        ({"topics": None, "include": "(a"}, InvalidPattern, "missing"),
        ({"on_start": print, "on_assign": print}, SettingsError, "on_assign or on_start, not both"),
        ({"on_stop": print, "on_revoke": print}, SettingsError, "on_revoke or on_stop, not both"),
        ({"topics": {"t": 0}}, SettingsError, "1 to 1000"),
        ({"auto_offset_reset": "newest"}, SettingsError, "earliest, latest, error"),
        ({"mode": "lazy"}, SettingsError, "incremental, eager"),
        ({"capacity": 0}, SettingsError, "capacity must be an integer .*, not 0"),
        ({"rejoin_grace_ms": -1}, SettingsError, "rejoin_grace_ms must be an integer .*, not -1"),
        ({"kafka": {"enable.auto.commit": True}}, SettingsError, "auto_commit_interval_ms"),
        ({"kafka": {"no.such.setting": 1}}, SettingsError, "no.such.setting"),
        ({"zookeeper": ""}, SettingsError, "neither zookeeper nor bootstrap"),
        ({"bootstrap": "127.0.0.1:7171"}, SettingsError, "not both"),
    ],
)
def test_invalid_settings_are_refused_before_the_consumer_registers(
    settings: dict[str, object], error: type[Exception], message: str, make_consumer: MakeConsumer
) -> None:
    with pytest.raises(error, match=message):
        make_consumer(**settings)


def test_a_registration_whose_reply_is_lost_is_found_and_not_repeated(
    make_consumer: MakeConsumer, make_store: MakeStore, coordinator: HandCoordinator
) -> None:
    lossy = LossyStore(make_store())
    lossy.lose_reply_of(lambda ops: any(isinstance(op, Create) and op.ephemeral for op in ops))
    consumer = make_consumer(store=lossy)

    member = coordinator.await_member(consumer.consumer_id)
    hold(consumer, coordinator, 7)
    consumer.commit()

    assert lossy.lost == 1
    assert coordinator.await_member(consumer.consumer_id).incarnation == member.incarnation
    assert consumer.stats.registrations == 1
    assert coordinator.offset(T0) == 7  # the commit shows that the consumer knows its token


def test_a_commit_whose_reply_is_lost_is_repeated(
    make_consumer: MakeConsumer, make_store: MakeStore, coordinator: HandCoordinator
) -> None:
    lossy = LossyStore(make_store())
    consumer = make_consumer(store=lossy, auto_commit_interval_ms=None)
    hold(consumer, coordinator, 7)
    lossy.lose_reply_of(lambda ops: any("/offsets/" in op.path for op in ops))

    consumer.commit()

    assert (lossy.lost, coordinator.offset(T0)) == (1, 7)


def test_a_name_in_use_is_refused_once_its_holder_cannot_be_an_old_session(
    make_consumer: MakeConsumer, coordinator: HandCoordinator
) -> None:
    first = make_consumer(consumer_id="c", session_timeout_ms=6_000)
    incarnation = coordinator.await_member("c").incarnation
    second = make_consumer(consumer_id="c", session_timeout_ms=1_000)

    with pytest.raises(ConsumerIdInUse, match=rf"'c' of group 'g' is held by .*pid={os.getpid()}.*consumer_id"):
        second.poll(20)

    assert coordinator.await_member("c").incarnation == incarnation
    assert first.registered


def test_a_consumer_gets_its_name_after_its_predecessors_session_ends(
    make_consumer: MakeConsumer, make_store: MakeStore, coordinator: HandCoordinator
) -> None:
    dying = make_store(session_timeout_ms=1_000)
    ghost = ConsumerChannel(dying, "g", "c").register(b'{"version":1,"subscription":{"t":1},"timestamp":"0"}')
    assert isinstance(ghost, Registration)
    consumer = make_consumer(consumer_id="c")
    eventually(lambda: not consumer.registered)

    dying.close()

    assert coordinator.await_member("c", other_than=ghost.incarnation)
    eventually(lambda: consumer.registered)


def test_an_evicted_consumer_drops_its_partitions_and_registers_again(
    make_consumer: MakeConsumer, coordinator: HandCoordinator
) -> None:
    lost: list[frozenset[TopicPartition]] = []
    consumer = make_consumer(auto_commit_interval_ms=None, on_lost=lost.append)
    incarnation = coordinator.await_member(consumer.consumer_id).incarnation
    hold(consumer, coordinator, 7)

    coordinator.evict(consumer.consumer_id)

    again = coordinator.await_member(consumer.consumer_id, other_than=incarnation)
    assert again.incarnation > incarnation
    eventually(lambda: consumer.assignment() == frozenset() and consumer.registered)
    assert lost == [{T0}]
    with pytest.raises(MembershipLost):
        consumer.commit()
    assert coordinator.offset(T0) == -1
    assert "evicted" in consumer.stats.last_loss


def test_a_consumer_whose_channel_was_deleted_loses_its_membership_at_once(
    make_consumer: MakeConsumer, coordinator: HandCoordinator, store: KazooStore
) -> None:
    lost: list[frozenset[TopicPartition]] = []
    consumer = make_consumer(on_lost=lost.append)
    incarnation = coordinator.await_member(consumer.consumer_id).incarnation
    hold(consumer, coordinator, 7)

    store.delete(layout.channel("g", consumer.consumer_id))

    again = coordinator.await_member(consumer.consumer_id, other_than=incarnation)
    eventually(lambda: consumer.registered)
    assert lost == [{T0}]
    assert (consumer.stats.losses, consumer.stats.registrations) == (1, 2)
    assert f"{layout.channel('g', consumer.consumer_id)} was deleted" in consumer.stats.last_loss
    coordinator.run_start(consumer.consumer_id, {T0: 0})
    assert again.incarnation > incarnation


def test_an_evicted_incarnation_can_neither_commit_nor_leave(make_store: MakeStore, store: KazooStore) -> None:
    """A recreated znode has version 0 again. Without the token, the frozen consumer's write would succeed."""
    value = b'{"version":1,"subscription":{"t":1},"timestamp":"0"}'
    frozen = ConsumerChannel(make_store(), "g", "c")
    registration = frozen.register(value)
    assert isinstance(registration, Registration)
    store.ensure_path(layout.topic_offsets("g", "t"))

    store.delete(layout.registration("g", "c"))  # evicts the frozen consumer, which does not notice
    namesake = ConsumerChannel(make_store(), "g", "c")
    theirs = namesake.register(value)
    assert isinstance(theirs, Registration)
    assert namesake.commit(theirs, {T0: 50}) == frozenset()

    with pytest.raises(MembershipLost):
        frozen.commit(registration, {T0: 10})
    with pytest.raises(MembershipLost):
        frozen.leave(registration, {T0: 10})

    assert namesake.committed([T0]) == {T0: 50}
    assert isinstance(frozen.register(value), Holder)


def test_a_name_that_is_used_again_after_its_channel_was_removed_gets_a_valid_token(
    make_store: MakeStore, store: KazooStore
) -> None:
    value = b'{"version":1,"subscription":{"t":1},"timestamp":"0"}'
    channel = ConsumerChannel(make_store(), "g", "c")
    first = channel.register(value)
    assert isinstance(first, Registration)
    channel.leave(first, {})
    store.delete(layout.channel("g", "c"))
    store.ensure_path(layout.topic_offsets("g", "t"))

    second = channel.register(value)

    assert isinstance(second, Registration)
    channel.commit(second, {T0: 3})
    assert channel.committed([T0]) == {T0: 3}


def test_a_consumer_whose_session_is_lost_registers_again(
    make_store: MakeStore,
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory()
    watching = make_store(server.connect_string, session_timeout_ms=30_000)
    with Consumer(
        server.connect_string, group="g", topics=["t"], session_timeout_ms=2_000, auto_offset_reset="earliest"
    ) as consumer:
        coordinator = HandCoordinator(watching, "g")
        incarnation = coordinator.await_member(consumer.consumer_id).incarnation
        hold(consumer, coordinator, 7)
        found = watching.get(layout.registration("g", consumer.consumer_id))
        assert found is not None

        server.pause()
        # the consumer stops before its session can have ended on a server that it cannot reach
        eventually(lambda: consumer.stats.waits == 1)
        assert consumer.assignment() == {T0}
        server.resume()
        expire(server.connect_string, found.stat.ephemeral_owner)  # a server that was away may renew it instead

        eventually(lambda: consumer.stats.losses == 1)
        coordinator.await_member(consumer.consumer_id, other_than=incarnation)
        eventually(lambda: consumer.registered)
        coordinator.run_start(consumer.consumer_id, [T0])


def test_a_consumer_keeps_its_membership_through_a_zookeeper_outage(
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory()
    with Consumer(server.connect_string, group="g", topics=["t"], session_timeout_ms=6_000) as consumer:
        eventually(lambda: consumer.registered)
        server.kill()
        eventually(lambda: consumer.stats.waits == 1)
        assert consumer.poll(0.1) is None  # no error, because the consumer is still trying
        assert consumer.registered
        assert "waits" in repr(consumer)
        server.start()
        eventually(lambda: "waits" not in repr(consumer))
        assert (consumer.stats.registrations, consumer.stats.losses) == (1, 0)


def test_close_commits_and_leaves_without_a_coordinator(
    make_consumer: MakeConsumer, coordinator: HandCoordinator
) -> None:
    consumer = make_consumer(auto_commit_interval_ms=60_000)
    hold(consumer, coordinator, 7)

    consumer.close()
    consumer.close()

    assert coordinator.member(consumer.consumer_id) is None
    assert coordinator.offset(T0) == 7


def test_close_with_leave_gives_up_the_place_that_the_grace_period_would_keep(
    make_consumer: MakeConsumer, coordinator: HandCoordinator, store: KazooStore
) -> None:
    consumer = make_consumer(consumer_id="c", rejoin_grace_ms=60_000)
    coordinator.await_member("c")

    consumer.close(leave=True)

    assert coordinator.member("c") is None
    (request,) = store.children(layout.REQUESTS)
    assert b'"type":"evict"' in store.get(layout.request(request)).data
