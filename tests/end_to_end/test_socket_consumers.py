"""Consumers with and without ZooKeeper in one group, while coordinators come and go."""

from __future__ import annotations

import pytest

from kafka_coord.zk import layout
from tests.end_to_end.parties import all_given, elected, expected, owners, wait_for_all
from tests.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]


def test_a_group_of_both_kinds_hands_over_cleanly(listening, make_topic, reader, numbered):
    topic = make_topic(partitions=6)
    producer = numbered(topic, 6).start()
    readers = [reader("mixed-ways", topic, "z1")]
    readers.append(reader("mixed-ways", topic, "s1", zookeeper=None, bootstrap=listening.bootstrap))
    eventually(lambda: owners(readers) == [3, 3])
    for one in readers:
        one.consumer.subscribe(include=topic)
        eventually(lambda: owners(readers) == [3, 3] and one.consumer.stats.registrations == 2)  # noqa: B023
    readers.append(reader("mixed-ways", topic, "s2", zookeeper=None, bootstrap=listening.bootstrap))
    eventually(lambda: owners(readers) == [2, 2, 2])
    readers[1].stop()
    eventually(lambda: owners([readers[0], readers[2]]) == [3, 3])
    readers[0].stop()
    eventually(lambda: owners([readers[2]]) == [6])
    written = producer.stop()
    wait_for_all(readers, written)
    readers[2].stop()
    given = all_given(readers)
    assert set(given) == expected(written)
    assert set(given.values()) == {1}, "no record was delivered twice"


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_when_the_coordinator_stops_consumers_find_the_next_one_and_keep_their_partitions(
    how, listening, store, make_topic, reader, numbered
):
    topic, group = make_topic(partitions=6), f"socket-failover-{how}"
    producer = numbered(topic, 6).start()
    readers = [
        reader(group, topic, name, zookeeper=None, bootstrap=listening.bootstrap, session_timeout_ms=20_000)
        for name in ("s1", "s2")
    ]
    eventually(lambda: owners(readers) == [3, 3])
    before = eventually(lambda: elected(store))
    target = store.get(layout.assignment(group)).stat.mzxid
    had = [one.consumer.assignment() for one in readers]
    leader = next(i for i in listening.instances if i.broker.broker_id == before.broker_id)

    getattr(leader, how)()

    eventually(lambda: (now := elected(store)) and now.epoch > before.epoch and now, within_s=30)
    for one in readers:
        one.consumer.commit()  # answered by the next coordinator
    assert [one.consumer.assignment() for one in readers] == had, "not one partition changes hands"
    assert store.get(layout.assignment(group)).stat.mzxid == target, "the target assignment did not change"
    written = producer.stop()
    wait_for_all(readers, written)
    stats = [one.consumer.stats for one in readers]
    for one in readers:
        one.stop()
    assert [(one.registrations, one.losses) for one in stats] == [(1, 0), (1, 0)], "no consumer registered again"
    given = all_given(readers)
    assert set(given) == expected(written)
    assert set(given.values()) == {1}, "no record was delivered twice"


def test_a_consumer_that_finds_no_coordinator_for_longer_than_its_session_goes_on_where_it_was(
    listening, store, make_topic, reader, numbered
):
    topic, group = make_topic(partitions=6), "socket-lost"
    producer = numbered(topic, 6).start()
    readers = [reader(group, topic, "s1", zookeeper=None, bootstrap=listening.bootstrap, session_timeout_ms=8_000)]
    eventually(lambda: owners(readers) == [6])
    for instance in listening.instances:
        instance.kill()
    eventually(lambda: readers[0].consumer.stats.waits)
    for instance in listening.instances:
        instance.start()
    eventually(lambda: owners(readers) == [6])
    written = producer.stop()
    wait_for_all(readers, written)
    stats = readers[0].consumer.stats
    readers[0].stop()
    given = all_given(readers)
    assert set(given) == expected(written)
    assert set(given.values()) == {1}, "no record was delivered twice"
    assert (stats.registrations, stats.losses) == (1, 0)


def test_a_consumer_that_requests_another_assignor_than_the_group_uses_says_so(
    listening, make_topic, reader, caplog: pytest.LogCaptureFixture
):
    topic = make_topic(partitions=2)
    readers = [
        reader("other-assignor", topic, name, zookeeper=None, bootstrap=listening.bootstrap, **more)
        for name, more in (("s1", {"assignor": "stciky"}), ("s2", {}))
    ]
    eventually(lambda: owners(readers) == [1, 1])
    said = eventually(lambda: [one.getMessage() for one in caplog.records if "uses the assignor" in one.getMessage()])
    for one in readers:
        one.stop()
    assert said[0].startswith("the group uses the assignor sticky, not stciky consumer=s1 group=other-assignor: ")
