"""Brokers that are asked for metadata: they answer late, wrongly or not at all, each with what it has heard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from kafka_coord.errors import BrokerError
from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer, NamedBroker
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
        kind = self.chance.randrange(5)
        if kind == 0:  # two brokers that lag by more than ten seconds could deceive any rule
            self.lags = dict.fromkeys(BROKERS, 0.0) | {broker: self.chance.uniform(0, 30)}
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

    def close(self) -> None:
        return
