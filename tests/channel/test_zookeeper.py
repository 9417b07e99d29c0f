"""Tests of the consumer's end of the channel on a real ZooKeeper: each request, and concurrent changes of znodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from kafka_coord.channel.operations import Holder, Registration, command_op
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import MembershipLost, StoreUnavailable
from kafka_coord.model import CommandType, PartitionSet, StopFetcher, TopicPartition
from kafka_coord.zk import SystemClock, connect, kazoo_private, layout
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import SessionState, WatchEvent, WatchType
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

VALUE = b'{"version":1,"subscription":{"t":1},"timestamp":"0","host":"h","client":"x"}'
T = [TopicPartition("t", number) for number in range(5_000)]


@pytest.fixture
def store(zk_hosts: str) -> Iterator[KazooStore]:
    store = connect(zk_hosts)
    store.ensure_path(layout.topic_offsets("g", "t"))
    yield store
    store.close()


@pytest.fixture
def other_store(zk_hosts: str) -> Iterator[KazooStore]:
    store = connect(zk_hosts)
    yield store
    store.close()


@pytest.fixture
def channel(store: KazooStore) -> ConsumerChannel:
    return ConsumerChannel(store, "g", "c")


@pytest.fixture
def registration(channel: ConsumerChannel) -> Registration:
    found = channel.register(VALUE)
    assert isinstance(found, Registration)
    return found


@pytest.fixture
def give(store: KazooStore, registration: Registration) -> Callable[[], str]:
    """Writes a stop-fetcher, and returns its path."""

    def write() -> str:
        stop = StopFetcher(1, 1, registration.incarnation, PartitionSet.of(T[:2]), "by hand")
        (path,) = store.multi([command_op("g", "c", stop)])
        assert isinstance(path, str)
        return path

    return write


def test_registering_again_with_the_same_value_finds_the_registration(
    channel: ConsumerChannel, registration: Registration
) -> None:
    assert channel.register(VALUE) == registration


class SkippingClock(SystemClock):
    """A clock that is ``skipped_s`` ahead once that is set, as if nothing had been received for that long."""

    skipped_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped_s


def test_no_consumer_registers_in_a_session_that_may_have_ended(zk_hosts: str) -> None:
    clock = SkippingClock()
    with closing(connect(zk_hosts, clock=clock)) as store:
        channel = ConsumerChannel(store, "g", "c")
        clock.skipped_s = 20.0
        with pytest.raises(StoreUnavailable, match="may have ended"):
            channel.register(VALUE)
        assert store.exists(layout.registration("g", "c")) is None
        eventually(lambda: store.session.lease_deadline() > clock.monotonic(), within_s=15)  # extended by a heartbeat
        assert isinstance(channel.register(VALUE), Registration)


def test_another_consumer_gets_the_holder_of_the_name(other_store: KazooStore, registration: Registration) -> None:
    holder = ConsumerChannel(other_store, "g", "c").register(VALUE)
    assert isinstance(holder, Holder)
    assert holder.incarnation == registration.incarnation
    assert holder.member is not None
    assert (holder.member.host, holder.member.client) == ("h", "x")


def test_an_abandoned_registration_is_replaced_by_a_new_incarnation(
    channel: ConsumerChannel, registration: Registration
) -> None:
    channel.abandon(registration)
    again = channel.register(VALUE + b" ")
    assert isinstance(again, Registration)
    assert again.incarnation > registration.incarnation
    assert again.token > registration.token
    assert not channel.is_registered(registration)
    assert channel.is_registered(again)


def test_an_acknowledgement_deletes_the_command_and_writes_the_offsets_in_one_request(
    channel: ConsumerChannel, registration: Registration, store: KazooStore, give: Callable[[], str]
) -> None:
    path = give()
    ((command,), strays) = channel.outstanding()
    assert (command.type, strays) == (CommandType.STOP_FETCHER, ())
    read = channel.read(command)
    assert read is not None
    assert read.incarnation == registration.incarnation

    channel.acknowledge(registration, command, {T[0]: 10, T[1]: 20})

    assert store.exists(path) is None
    assert channel.read(command) is None
    assert channel.committed(T[:3]) == {T[0]: 10, T[1]: 20, T[2]: None}
    stat = store.exists(layout.offset("g", "t", 0))
    assert stat is not None
    assert channel.outstanding() == ((), ())


def test_a_repeated_acknowledgement_of_a_stop_does_not_overwrite_the_next_owners_offset(
    channel: ConsumerChannel, registration: Registration, store: KazooStore, give: Callable[[], str]
) -> None:
    give()
    ((command,), _) = channel.outstanding()
    channel.acknowledge(registration, command, {T[0]: 10})
    store.set(layout.offset("g", "t", 0), b"25")  # as if by the next owner

    channel.acknowledge(registration, command, {T[0]: 10})

    assert channel.committed(T[:1]) == {T[0]: 25}


def test_an_evicted_consumer_can_neither_acknowledge_nor_commit_nor_leave(
    channel: ConsumerChannel, registration: Registration, store: KazooStore, give: Callable[[], str]
) -> None:
    path = give()
    ((command,), _) = channel.outstanding()
    store.delete(registration.path)

    with pytest.raises(MembershipLost, match="'c' is no longer registered in group 'g'"):
        channel.acknowledge(registration, command, {T[0]: 10})
    with pytest.raises(MembershipLost):
        channel.commit(registration, {T[0]: 10})
    with pytest.raises(MembershipLost):
        channel.leave(registration, {T[0]: 10})

    assert store.exists(path) is not None
    assert channel.committed(T[:1]) == {T[0]: None}


def test_offsets_are_written_whether_or_not_their_znodes_exist(
    channel: ConsumerChannel, registration: Registration, store: KazooStore
) -> None:
    store.create(layout.offset("g", "t", 0), b"5")  # the consumer does not know this znode
    channel.commit(registration, {T[0]: 6, T[1]: 1})
    store.delete(layout.offset("g", "t", 1))  # the consumer knows this znode, which is gone now
    channel.commit(registration, {T[0]: 7, T[1]: 2})
    assert channel.committed(T[:2]) == {T[0]: 7, T[1]: 2}


def test_offsets_of_a_topic_that_was_removed_are_left_out(
    channel: ConsumerChannel, registration: Registration, store: KazooStore
) -> None:
    gone = TopicPartition("gone", 0)
    assert channel.commit(registration, {gone: 6, T[0]: 1}) == {"gone"}
    assert channel.committed([gone, T[0]]) == {gone: None, T[0]: 1}
    assert store.exists(layout.topic_offsets("g", "gone")) is None


def test_thousands_of_offsets_are_committed(channel: ConsumerChannel, registration: Registration) -> None:
    offsets = {partition: partition.partition for partition in T}
    channel.commit(registration, offsets)
    assert channel.committed(T) == offsets


def test_a_deleted_channel_does_not_count_as_empty(
    channel: ConsumerChannel, registration: Registration, store: KazooStore
) -> None:
    store.delete(layout.channel("g", "c"))
    with pytest.raises(MembershipLost, match="was deleted"):
        channel.outstanding()
    with pytest.raises(MembershipLost):
        channel.commit(registration, {T[0]: 1})


@pytest.mark.parametrize("follows", [True, False], ids=["followed", "watched once"])
def test_every_new_command_causes_an_event_and_acknowledgements_cause_none(
    channel: ConsumerChannel, registration: Registration, give: Callable[[], str], store: KazooStore, follows: bool
) -> None:
    """With ``follows``, there is a persistent watch. Otherwise, one-shot watches must be set again each time."""
    if not follows:
        store._persistent.refused(store.session.session_id)
    heard: list[WatchEvent] = []
    assert channel.outstanding(heard.append) == ((), ())

    first = give()
    eventually(lambda: heard)
    (command,), _ = channel.outstanding(heard.append)
    channel.acknowledge(registration, command, {})
    second = give()

    if follows:
        eventually(lambda: [event.path for event in heard] == [first, second])
    else:
        eventually(
            lambda: {(event.type, event.path) for event in heard} == {(WatchType.CHILD, layout.channel("g", "c"))}
        )


def test_unwatch_stops_events_and_a_new_watch_receives_them(
    channel: ConsumerChannel, give: Callable[[], str], store: KazooStore
) -> None:
    before: list[WatchEvent] = []
    after: list[WatchEvent] = []
    channel.outstanding(before.append)
    channel.unwatch()
    first = give()
    channel.outstanding(after.append)
    second = give()
    eventually(lambda: [event.path for event in after] == [second])
    assert not before
    assert {command.name for command in channel.outstanding()[0]} == {
        path.rpartition("/")[2] for path in (first, second)
    }


def test_a_watcher_is_notified_of_a_broken_connection_and_of_commands_after_it(
    channel: ConsumerChannel, give: Callable[[], str], store: KazooStore
) -> None:
    heard: list[WatchEvent] = []
    channel.outstanding(heard.append)
    kazoo_private.break_connection(store._client)
    eventually(lambda: [event.type for event in heard] == [WatchType.CHILD])
    eventually(lambda: store.session.state is SessionState.CONNECTED)

    channel.outstanding(heard.append)
    path = give()

    eventually(lambda: [event.path for event in heard[1:]] == [path])


def test_a_channel_that_was_recreated_is_still_watched(
    channel: ConsumerChannel, registration: Registration, give: Callable[[], str], store: KazooStore
) -> None:
    heard: list[WatchEvent] = []
    channel.outstanding(heard.append)
    store.delete(layout.channel("g", "c"))
    eventually(lambda: heard)
    with pytest.raises(MembershipLost, match="was deleted"):
        channel.outstanding(heard.append)
    store.ensure_path(layout.channel("g", "c"))
    channel.outstanding(heard.append)
    path = give()
    eventually(lambda: heard[-1].path == path)
    assert [event.path for event in heard].count(path) == 1
    assert registration.consumer == "c"


def test_the_first_listed_end_is_kept_whoever_lists_it(
    store: KazooStore, channel: ConsumerChannel, registration: Registration
) -> None:
    channel.await_ends(registration, {T[0]: "no leader", T[1]: "no leader"})
    assert store.exists(layout.awaited_end("g", *T[0])) is not None
    store.create(layout.offset("g", *T[0]), b"70")  # another member, or the elected instance, was faster
    assert channel.keep_ends(registration, {T[0]: 77, T[1]: 9}) == {T[0]: 70, T[1]: 9}
    assert channel.committed(T[:2]) == {T[0]: 70, T[1]: 9}
    assert [store.exists(layout.awaited_end("g", *tp)) for tp in T[:2]] == [None, None]


def test_refused_topics_are_written_under_the_token_and_taken_back(
    store: KazooStore, channel: ConsumerChannel, registration: Registration
) -> None:
    path = layout.refusals("g", "c")
    channel.refuse(registration, {"salaries": "TOPIC_AUTHORIZATION_FAILED"})
    assert b"salaries" in store.get(path).data
    channel.refuse(registration, {})
    assert store.exists(path) is None
    store.delete(registration.path)
    with pytest.raises(MembershipLost):
        channel.refuse(registration, {"salaries": "TOPIC_AUTHORIZATION_FAILED"})
