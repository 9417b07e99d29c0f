"""A world whose metadata comes from polls that fail, lie and lag: what the mirror does in it, and planted faults."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from kafka_coord.coordinator import mirror as rules
from kafka_coord.coordinator.mirror import Mirror, MirroredTopic
from kafka_coord.errors import BrokerError
from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer
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


def run(seed: int, steps: int = 250) -> None:
    """Raises :class:`AssertionError` if a topic that exists goes, if an id returns, if a count falls, or if the mirror
    is not right in the end."""
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
        with suppress(BrokerError):
            elected.step()
        mirror = elected.mirror._mirror
        if mirror is None:
            continue
        counts = {one.topic_id: len(one.replicas) for one in mirror.topics.values()}
        existing = {one.topic_id for one in world.truth.values()}
        assert not existing & (was.keys() - counts.keys()), "a topic that exists is gone"
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


def _forgets_what_a_listing_leaves_out(self: Mirror, answer: BrokerAnswer, now: float) -> None:
    HEAR(self, answer, now)
    for name in list(self.hidden) if answer.is_whole else ():
        del self.topics[name]


def _takes_the_newest_count(self: MirroredTopic, answered: AnsweredTopic, **_: Any) -> MirroredTopic:
    return MirroredTopic(self.topic_id, dict(answered.replicas), self.czxid)


HEAR = Mirror.hear
FAULTS = {
    "a topic that is not listed goes": lambda patch: patch.setattr(Mirror, "hear", _forgets_what_a_listing_leaves_out),
    "a count may fall": lambda patch: patch.setattr(MirroredTopic, "with_answer", _takes_the_newest_count),
    "one answer is enough": lambda patch: (
        patch.setattr(rules, "GONE_AFTER_S", 0.0),
        patch.setattr(rules, "min", lambda *_: 1, raising=False),
    ),
    "ids are not remembered": lambda patch: patch.setattr(rules, "MOST_RETIRED", 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    for seed in SEEDS:
        try:
            run(seed)
        except AssertionError:
            return
    pytest.fail("no seed finds the fault")
