"""Brokers that are asked for metadata: they answer late, wrongly or not at all, each with what it has heard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from kafka_coord.coordinator.mirror import Mirror, MirroredTopic
from kafka_coord.coordinator.mirroring import MetadataMirror
from kafka_coord.errors import BrokerError
from kafka_coord.model import Broker, Listener
from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer, NamedBroker
from kafka_coord.zk.root import RootFollower
from tests.simulation.scheduler import VirtualClock

BROKERS = {number: NamedBroker(f"b{number}", 9092) for number in (1, 2, 3)}
Truth = Mapping[str, AnsweredTopic]


@dataclass
class SimulatedBrokers:
    """Kafka as it is, and what each broker has heard of it, ``lag`` seconds late. ``always`` is how it began."""

    chance: Random
    clock: VirtualClock
    always: Truth = field(default_factory=dict)
    protocol: str = "PLAINTEXT"
    unheard: Mapping[int, str] = field(default_factory=dict)
    history: list[tuple[float, Truth]] = field(default_factory=list)
    lags: dict[int, float] = field(default_factory=lambda: dict.fromkeys(BROKERS, 0.0))
    forgetful: set[int] = field(default_factory=set)
    """Brokers that have lost their metadata: they know no topic."""
    silent: set[int] = field(default_factory=set)
    hidden: frozenset[str] = frozenset()
    """Topics that the instances may not describe."""
    turn: int = 0

    @property
    def truth(self) -> Truth:
        return self.history[-1][1] if self.history else self.always

    def becomes(self, truth: Truth) -> None:
        self.history.append((self.clock.now, truth))

    def turmoil(self) -> None:
        """One broker begins to lag, to know nothing or to be silent, or a topic is hidden; something else may end."""
        broker = self.chance.choice(list(BROKERS))
        for one in (self.forgetful, self.silent):
            one.discard(broker)
        kind = self.chance.randrange(6)
        if kind in {0, 4}:  # two brokers that lag by more than ten seconds could deceive any rule
            self.lags = dict.fromkeys(BROKERS, 0.0) | {broker: self.chance.choice((4, 10, 30)) * self.chance.random()}
        if kind == 1:
            self.forgetful.add(broker)
        elif kind == 2:
            self.silent.add(broker)
        names = sorted(self.truth)
        self.hidden = frozenset({self.chance.choice(names)}) if kind == 3 and names else frozenset()

    def calm(self) -> None:
        self.lags, self.hidden = dict.fromkeys(BROKERS, 0.0), frozenset()
        self.forgetful.clear()
        self.silent.clear()

    def seen_by(self, broker: int) -> Truth:
        if broker in self.forgetful:
            return {}
        until = self.clock.now - self.lags[broker]
        return next((truth for at, truth in reversed(self.history) if at <= until), self.always)

    def listing(
        self, _listener: str, _addresses: Sequence[tuple[str, int]], names: Collection[str] | None
    ) -> BrokerAnswer:
        self.turn += 1
        broker = list(BROKERS)[self.turn % 3]
        if broker in self.silent:
            raise BrokerError(f"broker {broker} does not answer")
        seen = self.seen_by(broker)
        shown = tuple(topic for name, topic in seen.items() if name not in self.hidden)
        return BrokerAnswer(broker, BROKERS, shown, is_whole=names is None)

    def by_id(self, wanted: Mapping[str, str], others: Mapping[str, str], _to: BrokerAnswer) -> list[BrokerAnswer]:
        answers = []
        for broker in BROKERS.keys() - self.silent:
            ids = {one.topic_id: name for name, one in self.seen_by(broker).items()}
            asked = {one for one in (*wanted, *others) if ids.get(one) not in self.hidden}
            known, unknown = frozenset(asked & ids.keys()), frozenset(asked - ids.keys())
            answers.append(BrokerAnswer(broker, BROKERS, known=known, unknown=unknown))
        return answers

    def described(self, answer: BrokerAnswer) -> list[Broker]:
        """Each broker has a second listener, of which only its settings tell."""
        ports = {self.protocol: 9092, "OTHER": 9093}
        return [
            Broker(number, tuple(Listener(name, self.protocol, f"{one.host}:{at}") for name, at in ports.items()))
            for number, one in answer.brokers.items()
            if number not in self.silent
        ]

    def close(self) -> None:
        return


def _hear_only_what_is_listed() -> tuple[Any, str, Any]:
    original = Mirror.hear

    def hear(self: Mirror, answer: BrokerAnswer, now: float) -> None:
        original(self, answer, now)
        for name in list(self.hidden) if answer.is_whole else ():
            del self.topics[name]
            self.touch()

    return Mirror, "hear", hear


def _take_the_newest_count() -> tuple[Any, str, Any]:
    def with_answer(self: MirroredTopic, answered: AnsweredTopic, **_: Any) -> MirroredTopic:
        return replace(self, replicas=dict(answered.replicas))

    return MirroredTopic, "with_answer", with_answer


def _begin_without_kafkas_own() -> tuple[Any, str, Any]:
    return MetadataMirror, "_read_kafkas_own", lambda _self: Mirror()


def _watches_stay_where_they_were() -> tuple[Any, str, Any]:
    def changed(self: RootFollower, _event: Any) -> None:
        self._changes += 1
        self._root, self._watchers = None, {}

    return RootFollower, "_changed", changed


POLLED_MUTATIONS: dict[str, Any] = {
    "a topic that a broker does not list is gone": _hear_only_what_is_listed,
    "a late answer takes partitions away": _take_the_newest_count,
    "a change of source forgets what Kafka's own znodes say": _begin_without_kafkas_own,
    "watches stay at Kafka's own znodes after a change of source": _watches_stay_where_they_were,
}
"""Deliberate defects of the mirror, and of who follows its root."""
