"""A world whose metadata comes from polls that fail, lie and lag: what the mirror does in it, and planted faults."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from kafka_coord.coordinator import mirror as rules
from kafka_coord.coordinator.mirror import Mirror, MirroredTopic
from kafka_coord.coordinator.mirroring import way_back_op
from kafka_coord.errors import BrokerError
from kafka_coord.model import json_fields as fields
from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer
from kafka_coord.zk import layout
from kafka_coord.zk.root import Source
from kafka_coord.zk.store import Create, GetChildren, SetData
from tests.coordinator.electing import Elected
from tests.coordinator.mirrored import topic_id
from tests.simulation.brokers import SimulatedBrokers, Truth
from tests.simulation.scheduler import VirtualClock

SEEDS = range(30)
ALWAYS: Truth = {"log": AnsweredTopic("log", topic_id(10_000), {0: (1, 2)})}


@dataclass
class World(SimulatedBrokers):
    """Brokers of a cluster whose topics change."""

    made: int = 0

    def change(self) -> None:
        truth, name = dict(self.truth), f"t{self.chance.randrange(5)}"
        if name not in truth:
            self.made += 1
            truth[name] = AnsweredTopic(name, topic_id(self.made), {0: (1, 2)})
        elif self.chance.random() < 0.5:
            del truth[name]
        else:
            before = truth[name]
            truth[name] = AnsweredTopic(name, before.topic_id, {**before.replicas, len(before.replicas): (2, 3)})
        self.becomes(truth)


def kraft_controller(elected: Elected[World], *, is_active: bool) -> None:
    if elected.store.exists(layout.CONTROLLER) is not None:
        elected.store.delete(layout.CONTROLLER)
    if is_active:
        elected.store.create(layout.CONTROLLER, b'{"version":2,"kraftControllerEpoch":3}')


def write_kafkas_own(elected: Elected[World]) -> None:
    """Kafka's own znodes say what is true."""
    store, truth = elected.store, elected.answers.truth
    store.ensure_path(layout.BROKER_TOPICS)
    parent = layout.kafkas_own(layout.BROKER_TOPICS)
    listed = store.read_many([GetChildren(parent)])[0]
    for name in listed if isinstance(listed, tuple) else ():
        told = fields.load_object(store.get(f"{parent}/{name}").data, "")
        if name not in truth or told["topic_id"] != truth[name].topic_id:
            store.delete(f"{layout.BROKER_TOPICS}/{name}")
    for name, one in truth.items():
        value = fields.dump(
            {"version": 3, "topic_id": one.topic_id, "partitions": {str(at): [1, 2] for at in one.replicas}}
        )
        path = f"{layout.BROKER_TOPICS}/{name}"
        is_there = store.exists(layout.kafkas_own(path)) is not None
        store.multi([SetData(path, value) if is_there else Create(path, value)])


def read(elected: Elected[World]) -> dict[str, int]:
    """What everybody reads: how many partitions each topic has, by its id."""
    found = [elected.decoded(name) for name in elected.store.children(layout.BROKER_TOPICS)]
    return {one.identity: len(one.partitions) for one in found}


def run(seed: int, steps: int = 250, *, rolls_back: bool = False) -> None:
    """Raises :class:`AssertionError` if a topic that exists goes, if an id returns, if a count falls, or if the mirror
    is not right in the end. With ``rolls_back``, operators lead everybody back to Kafka's own znodes, and KRaft
    controllers are active again later."""
    world = World(Random(seed), VirtualClock(), ALWAYS)
    elected = Elected(world)
    world.clock = elected.clock
    left: set[str] = set()
    was: dict[str, int] = {}
    for number in range(steps):
        is_calm = number > steps - 60
        if not is_calm and world.chance.random() < 0.15:
            world.change()
        if not is_calm and world.chance.random() < 0.1:
            world.turmoil()
        if is_calm:
            world.calm()
        if world.chance.random() < 0.03:
            elected.begin()  # another instance is elected
        if rolls_back and not is_calm and number % 40 == 20:
            kraft_controller(elected, is_active=False)
            write_kafkas_own(elected)
            elected.store.multi([way_back_op(elected.store, "an operator")])
        if rolls_back and number % 40 == 39:
            kraft_controller(elected, is_active=True)
        was_mirrored = elected.source() is Source.BROKERS
        if rolls_back and not was_mirrored:
            write_kafkas_own(elected)
        with suppress(BrokerError):
            elected.step()
        if elected.store.exists(layout.MIRRORED_TOPICS) is None:
            continue
        counts = read(elected)
        existing = {one.topic_id for one in world.truth.values()}
        assert not existing & (was.keys() - counts.keys()), "a topic that exists is gone"
        if was_mirrored:
            left |= was.keys() - counts.keys()
        assert not left & counts.keys(), "an id has returned"
        assert all(counts.get(one, many) >= many for one, many in was.items()), "a count has fallen"
        was = counts
    mirror = elected.mirror._mirror
    assert mirror is not None
    final = {name: len(one.replicas) for name, one in world.truth.items() if one.topic_id not in left}
    assert {name: len(one.replicas) for name, one in mirror.topics.items()} == final, "the mirror is not right"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mirror_is_right_whatever_brokers_answer_meanwhile(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_no_topic_goes_or_returns_when_migrations_are_rolled_back(seed: int) -> None:
    run(seed, rolls_back=True)


def _begins_with_the_last_mirror(self: Mirror, topics: Mapping[str, MirroredTopic]) -> None:
    BEGIN(self, {**topics, **self.topics})


def _forgets_what_a_listing_leaves_out(self: Mirror, answer: BrokerAnswer, now: float) -> None:
    HEAR(self, answer, now)
    for name in list(self.hidden) if answer.is_whole else ():
        del self.topics[name]


def _takes_the_newest_count(self: MirroredTopic, answered: AnsweredTopic, **_: Any) -> MirroredTopic:
    return MirroredTopic(self.topic_id, dict(answered.replicas), self.czxid)


BEGIN, HEAR = Mirror.begin, Mirror.hear
FAULTS = {
    "a topic that is not listed goes": lambda patch: patch.setattr(Mirror, "hear", _forgets_what_a_listing_leaves_out),
    "a count may fall": lambda patch: patch.setattr(MirroredTopic, "with_answer", _takes_the_newest_count),
    "one answer is enough": lambda patch: (
        patch.setattr(rules, "GONE_AFTER_S", 0.0),
        patch.setattr(rules, "min", lambda *_: 1, raising=False),
    ),
    "a second migration begins with the mirror of the first": lambda patch: patch.setattr(
        Mirror, "begin", _begins_with_the_last_mirror
    ),
    "ids are not remembered": lambda patch: patch.setattr(rules, "MOST_RETIRED", 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    for seed in SEEDS:
        try:
            run(seed, rolls_back="second migration" in fault)
        except AssertionError:
            return
    pytest.fail("no seed finds the fault")
