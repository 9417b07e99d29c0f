"""Groups far larger than usual: every write fits into a request, and other groups are served in the meantime."""

from __future__ import annotations

import json
import threading

import pytest

from kafka_coord.model import (
    GroupSettings,
    PartitionSet,
    Request,
    RequestType,
    StartFetcher,
    Subscription,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, WatchEvent
from tests.coordinator.harness import World, open_store
from tests.trouble.conftest import put
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

JUTE_MAXBUFFER = 1_048_575


def test_two_thousand_members_registered_at_once_share_ten_thousand_partitions(world: World, bystander):
    """The test writes the registrations itself. No consumer carries out commands, so every start stays outstanding."""
    members, partitions = 2_000, 10_000
    world.kafka.topic("flights", partitions)
    put(world, layout.group("delays"), fields.dump(GroupSettings(rebalance_timeout_ms=600_000).to_json()))
    world.store.ensure_path(layout.ids("delays"))
    world.instance(1).start_elected()
    value = fields.dump({"version": 1, **Subscription.to(["flights"]).to_json(), "timestamp": "1"})
    world.store.multi([Create(layout.registration("delays", f"m{n:04}"), value) for n in range(members)])
    bystander()
    ledgers = eventually(lambda: found if len(found := world.ledgers()) == members else None, within_s=20, every_s=0.2)
    assert {len(ledger.owned) for ledger in ledgers.values()} == {5}
    owned = [tp for ledger in ledgers.values() for tp in ledger.owned]
    assert len(owned) == len(set(owned)) == partitions
    eventually(lambda: len(world.outstanding()) == members)


def test_twenty_thousand_partitions_of_one_topic_are_started_and_stopped_in_values_that_fit(world: World, bystander):
    partitions = 20_000
    sizes = Sizes(world)
    world.kafka.topic("flights", partitions)
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    sizes.follow("c1")
    world.settles("c1", partitions=partitions)
    starts = [command for command in c1.seen if isinstance(command, StartFetcher)]
    assert len(starts) > 1, "20,000 start points do not fit into one value"
    assert sum(len(command.partitions) for command in starts) == partitions
    bystander()
    c2 = world.consumer("c2").join()
    world.settles("c1", "c2", partitions=partitions)
    assert c1.owned.isdisjoint(c2.owned)
    assert len(c1.owned) == len(c2.owned) == partitions // 2
    sizes.close()
    for path in (layout.assignment("delays"), layout.ledger("delays", "c1"), layout.history("delays")):
        assert len(world.node(path).data) < 900_000
    assert sizes.largest < 900_000


def test_twenty_thousand_offsets_are_reset_and_deleted_by_one_request(world: World):
    partitions = 20_000
    world.kafka.topic("flights", partitions)
    world.store.ensure_path(layout.group("delays"))
    world.instance(1).start_elected()
    every = [TopicPartition("flights", n) for n in range(partitions)]
    asked = Request(RequestType.RESET_OFFSETS, group="delays", offsets=dict.fromkeys(every, 7))
    assert world.ask(asked).message == f"offsets of {partitions} partitions written"
    assert len(world.children(layout.topic_offsets("delays", "flights"))) == partitions
    asked = Request(RequestType.DELETE_OFFSETS, group="delays", partitions=PartitionSet.of(every))
    assert world.ask(asked).result == "done"
    assert world.children(layout.topic_offsets("delays", "flights")) == ()


def test_a_group_with_the_longest_names_and_thousands_of_offsets_is_removed(world: World):
    group, topic = "g" * 249, "t" * 249
    world.store.ensure_path(layout.topic_offsets(group, topic))
    for at in range(0, 3_000, 500):
        world.store.multi([Create(layout.offset(group, topic, n), b"1") for n in range(at, at + 500)])
    world.instance(1).start_elected()
    assert world.ask(Request(RequestType.DELETE_GROUP, group=group)).result == "done"
    assert world.node(layout.group(group)) is None


def test_a_registration_as_large_as_a_request_is_read_or_ignored_and_others_continue(world: World, said, bystander):
    topics = {f"topic-{n:06}-{'x' * 60}": 1 for n in range(11_000)}
    large = json.dumps({"version": 1, "subscription": topics, "pattern": "static", "rejoin_grace_ms": 60_000}).encode()
    assert 850_000 < len(large) < 900_000
    larger = large[:-1] + b',"host":"' + b"h" * (JUTE_MAXBUFFER - 2_000 - len(large)) + b'"}'
    world.instance(1).start_elected()
    put(world, layout.registration("delays", "large"), large)
    put(world, layout.registration("delays", "larger"), larger)
    said("cannot read path=", layout.registration("delays", "larger"), "the limit is 900000")
    said("group=delays", "the registration of large is too large, so its rejoin_grace_ms is ignored")
    world.consumer("c1").join()
    eventually(lambda: world.owned().get("c1", PartitionSet()) == PartitionSet({"flights": range(4)}))
    bystander()
    world.store.delete(layout.registration("delays", "large"))
    eventually(lambda: set(world.target().members) == {"c1"})


class Sizes:
    """Records every command that a consumer gets."""

    def __init__(self, world: World) -> None:
        self._store = open_store(world.hosts)
        self._changed = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.largest = 0

    def follow(self, consumer: str) -> None:
        self._thread = threading.Thread(target=self._run, args=(layout.channel("delays", consumer),), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(10)
        self._store.close()

    def _run(self, channel: str) -> None:
        while not self._done.is_set():
            self._changed.clear()
            for name in self._store.children(channel, self._woken):
                stat = self._store.exists(f"{channel}/{name}")
                self.largest = max(self.largest, stat.data_length if stat is not None else 0)
            self._changed.wait(1.0)

    def _woken(self, _event: WatchEvent) -> None:
        self._changed.set()
