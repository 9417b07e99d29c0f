"""``kafka-coord serve`` processes that die or are told to end while a group works (docs/design.md, section 5)."""

from __future__ import annotations

import pytest

from kafka_coord.zk import layout
from tests.end_to_end.parties import all_given, elected, expected, owners, wait_for_all
from tests.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_next_coordinator_takes_over_without_interrupting_any_consumer(
    how, listening, store, make_topic, reader, numbered
):
    topic = make_topic(partitions=6)
    producer = numbered(topic, 6).start()
    readers = [reader(f"failover-{how}", topic, name) for name in ("r1", "r2")]
    eventually(lambda: owners(readers) == [3, 3])
    before = eventually(lambda: elected(store))
    target = store.get(layout.assignment(f"failover-{how}")).stat.mzxid
    leader = next(i for i in listening.instances if i.broker.broker_id == before.broker_id)

    getattr(leader, how)()

    after = eventually(lambda: (now := elected(store)) and now.epoch > before.epoch and now, within_s=30)
    assert after.broker_id != before.broker_id
    assert store.get(layout.assignment(f"failover-{how}")).stat.mzxid == target, "the target assignment did not change"
    readers.append(reader(f"failover-{how}", topic, "r3"))
    eventually(lambda: owners(readers) == [2, 2, 2])
    written = producer.stop()
    wait_for_all(readers, written)
    for one in readers:
        one.stop()
    given = all_given(readers)
    assert set(given) == expected(written)
    assert set(given.values()) == {1}, "no record was delivered twice"
