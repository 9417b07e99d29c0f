"""Topics that the brokers know, and the mirror does not have yet: nobody is told that they do not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka.instances import Instances, Together
from kafka_coord.frontends.kafka.managed import watching
from kafka_coord.frontends.kafka.managed.group import ManagedGroup
from kafka_coord.frontends.kafka.managed.watching import ZooKeeperTopics
from kafka_coord.model import TopicInfo, TopicPartition, topic_id_to_bytes
from kafka_coord.model.broker import AnsweredTopic
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import NEW_WITHIN_S, await_new
from tests.coordinator.electing import Elected
from tests.coordinator.mirrored import topic, topic_id
from tests.simulation.brokers import SimulatedBrokers, Truth
from tests.simulation.scheduler import VirtualClock

LOG: Truth = {"log": topic("log", 10_000)}
ONE = 1
"""The broker beside the instance."""


class World:
    """A mirror, and an instance beside broker 1 that knows topics by it."""

    def __init__(self, seed: int = 1) -> None:
        self.brokers = SimulatedBrokers(Random(seed), VirtualClock(), LOG)
        self.elected = Elected(self.brokers)
        self.brokers.clock = self.elected.clock
        self.watches: dict[str, Callable[[], None]] = {}
        self.looked_up: list[frozenset[str]] = []
        self.told = 0
        self.topics = ZooKeeperTopics(self.elected.store, self.watches.__setitem__, self._look_up, self._tell)
        self.elected.step(2)

    def _tell(self) -> None:
        self.told += 1

    async def _look_up(self, topics: Collection[str]) -> Mapping[str, TopicInfo | None]:
        self.looked_up.append(frozenset(topics))
        if ONE in self.brokers.silent:
            raise BrokerError("no answer")
        seen = {name: one for name, one in self.brokers.seen_by(ONE).items() if name not in self.brokers.hidden}
        return {
            name: TopicInfo(name, frozenset(seen[name].replicas), seen[name].topic_id) if name in seen else None
            for name in set(topics) - self.brokers.hidden
        }

    def becomes(self, *topics: AnsweredTopic) -> None:
        self.brokers.becomes({**LOG, **{one.name: one for one in topics}})

    def learn(self, *topics: str, follow: bool = False) -> None:
        asyncio.run(self.topics.learn(topics, follow=follow))

    def unseen(self, *partitions: tuple[str, int]) -> frozenset[tuple[str, int]]:
        return asyncio.run(self.topics.unseen(partitions))


def test_a_topic_that_the_mirror_lacks_is_what_the_broker_says() -> None:
    world = World()
    world.becomes(topic("new", 1, partitions=2))
    world.learn("new", "never")
    assert (world.topics.identity("new"), world.told) == (topic_id(1), 1)
    assert [world.topics.is_gone(name) for name in ("new", "never")] == [False, True]
    assert world.looked_up == [{"new", "never"}]
    world.elected.step()
    world.learn("new")
    assert (world.topics.identity("new"), world.told, len(world.looked_up)) == (topic_id(1), 1, 1)


def test_a_topic_that_nobody_tells_of_is_not_gone() -> None:
    world = World()
    world.brokers.silent.add(ONE)
    world.learn("new")
    assert (world.topics.is_gone("new"), world.topics.identity("new")) == (False, "")
    world.brokers.silent.clear()
    world.brokers.hidden = frozenset({"new"})
    world.learn("new")
    assert (world.topics.is_gone("new"), world.told) == (False, 0)


def test_a_deleted_topic_is_gone_once_the_mirror_and_the_broker_lack_it() -> None:
    world = World()
    world.becomes(topic("old", 1), topic("other", 2))
    world.elected.step(2)
    world.learn("old", follow=True)
    assert world.topics.is_followed("old")
    world.becomes(topic("other", 2))
    world.learn("old")
    assert world.topics.identity("old") == topic_id(1), "the mirror still has it"
    world.elected.step(15)
    world.watches["old"]()
    assert not world.topics.is_followed("old"), "so the next commit asks"
    world.learn("old", follow=True)
    assert (world.topics.is_gone("old"), world.topics.last_identity("old")) == (True, topic_id(1))
    world.becomes(topic("old", 3), topic("other", 2))
    world.learn("old", follow=True)
    assert (world.topics.identity("old"), world.topics.is_followed("old")) == (topic_id(3), False)
    assert world.topics.is_another("old", topic_id(1))
    world.elected.step()
    world.watches["old"]()
    assert world.topics.is_followed("old")


def test_partitions_that_the_elected_coordinator_would_refuse_are_found() -> None:
    world = World()
    world.becomes(topic("a", 1))
    world.elected.step()
    assert world.unseen(("a", 0), ("never", 0)) == frozenset()
    world.becomes(topic("a", 1, partitions=2), topic("b", 2))
    assert world.unseen(("a", 0), ("a", 1), ("a", 2), ("b", 0)) == {("a", 1), ("b", 0)}
    assert world.told
    world.brokers.silent.add(ONE)
    assert world.unseen(("a", 1)) == {("a", 1)}, "the client asks again"
    world.brokers.silent.clear()
    world.elected.step()
    assert world.unseen(("a", 1), ("a", 2), ("b", 0)) == frozenset()


def test_what_is_unseen_is_refused_with_an_error_that_clients_retry() -> None:
    world = World()
    world.becomes(topic("new", 1))
    groups = SimpleNamespace(terms=None, manager=SimpleNamespace(topics=world.topics))
    group = ManagedGroup(groups, "g", lambda: None)  # type: ignore[arg-type]
    refused = [TopicPartition("new", 0), TopicPartition("never", 0)]
    assert asyncio.run(group._gone(refused)) == {
        refused[0]: Error.COORDINATOR_NOT_AVAILABLE,
        refused[1]: Error.UNKNOWN_TOPIC_OR_PARTITION,
    }


def history(seed: int) -> None:
    """Raises :class:`AssertionError` if a topic counts as gone that the broker beside the instance tells of."""
    world, chance, made = World(seed), Random(seed), 0
    for _ in range(150):
        truth = dict(world.brokers.truth)
        if chance.random() < 0.3:
            name = f"t{chance.randrange(4)}"
            made += 1
            if truth.pop(name, None) is None or chance.random() < 0.3:
                truth[name] = topic(name, made)
            world.brokers.becomes(truth)
        if chance.random() < 0.15:
            (world.brokers.turmoil if chance.random() < 0.6 else world.brokers.calm)()
        with suppress(BrokerError):
            world.elected.step(chance.randrange(3))
        for watch in world.watches.values():
            if chance.random() < 0.5:
                watch()
        names = [f"t{number}" for number in range(4)]
        world.learn(*names, follow=chance.random() < 0.3)
        known = set() if ONE in world.brokers.silent else world.brokers.seen_by(ONE).keys() - world.brokers.hidden
        gone = [name for name in names if world.topics.is_gone(name)]
        assert known.isdisjoint(gone), "somebody is told that a topic does not exist"
    world.brokers.calm()
    world.brokers.becomes(dict(LOG))
    world.elected.step(40)
    world.learn("t0", "t1", "t2", "t3")
    assert all(world.topics.is_gone(f"t{number}") for number in range(4)), "what is deleted is gone in the end"


def histories() -> None:
    for seed in range(6):
        history(seed)


def test_nobody_is_told_that_a_topic_does_not_exist_which_the_broker_knows() -> None:
    histories()


def test_a_mirror_that_is_believed_as_if_it_was_kafkas_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "reads_mirror", lambda _store: False)
    with pytest.raises(AssertionError, match="somebody is told"):
        histories()


def test_those_who_ask_at_the_same_time_share_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand commits for a topic that does not exist are one request for metadata."""
    asked: list[list[str]] = []

    async def ask(_name: str, _version: Any, request: Any) -> Any:
        asked.append([one.name for one in request.topics])
        await asyncio.sleep(0.01)
        form = message("MetadataResponse")
        of_topic, of_part = form.struct("MetadataResponseTopic"), form.struct("MetadataResponsePartition")
        known = of_topic(name="new", topic_id=topic_id_to_bytes(topic_id(7)), partitions=(of_part(partition_index=0),))
        unknown = of_topic(name="never", error_code=Error.UNKNOWN_TOPIC_OR_PARTITION)
        return form(topics=tuple({"new": known, "never": unknown}[one.name] for one in request.topics))

    async def storm(of: Instances) -> dict[str, TopicInfo | None]:
        await asyncio.gather(*(of.learn({"never": 0}) for _ in range(1_000)))
        assert asked == [["never"]]
        await asyncio.gather(*(of.look_up(["never"]) for _ in range(1_000)))
        assert asked == [["never"]], "what was just told is told again"
        return await of.look_up(["never", "new"])

    monkeypatch.setattr("kafka_coord.frontends.kafka.instances.time", SimpleNamespace(monotonic=lambda: 5.0))
    instances = Instances(lambda: None, ONE, dict)  # type: ignore[arg-type, return-value]
    instances.ask = ask  # type: ignore[method-assign]
    assert asyncio.run(storm(instances)) == {"never": None, "new": TopicInfo("new", frozenset({0}), topic_id(7))}
    assert instances.partitions_of("new") == 1


def test_an_error_reaches_all_who_share_the_work_and_the_next_begin_anew() -> None:
    begun: list[set[int]] = []

    async def work(wanted: Collection[int]) -> None:
        begun.append(set(wanted))
        await asyncio.sleep(0)
        if 0 in wanted:
            raise BrokerError("no answer")

    async def run() -> list[object]:
        together = Together(work)
        first = asyncio.gather(together([0]), together([1]), return_exceptions=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.gather(together([2]), together([3]), return_exceptions=True)
        return [*await first, *await second]

    found = asyncio.run(run())
    assert [isinstance(one, BrokerError) for one in found] == [True, True, False, False]
    assert begun == [{0, 1}, {2, 3}]


def test_who_names_a_new_topic_waits_until_the_mirror_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world, slept = World(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            world.elected.step()

    monkeypatch.setattr("kafka_coord.zk.brokers.time.sleep", sleep)

    def pass_time(seconds: float) -> None:
        world.elected.clock.now += seconds

    world.becomes(topic("new", 1, partitions=2))
    signals = world.elected.store.get(layout.CHANGED).stat.version
    await_new(world.elected.store, {"new": {1}, "log": None})
    assert (len(slept), world.elected.store.get(layout.CHANGED).stat.version) == (3, signals + 1)
    slept.clear()
    await_new(world.elected.store, {"new": None, "not a name": None})
    assert not slept
    begun = world.elected.clock.monotonic()
    monkeypatch.setattr("kafka_coord.zk.brokers.time.sleep", pass_time)
    await_new(world.elected.store, {"new": {7}})
    assert NEW_WITHIN_S <= world.elected.clock.monotonic() - begun < 2 * NEW_WITHIN_S
