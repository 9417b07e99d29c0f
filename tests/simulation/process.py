"""One simulated process: a store, and the actors that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kafka_coord.consumer.connector import Connector
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.frontends.kafka.managed.classic import PROTOCOL as CLASSIC
from kafka_coord.model import TopicPartition
from tests.simulation.applications import SimulatedFetchers
from tests.simulation.classic_members import ClassicMember
from tests.simulation.kafka_front import SimulatedListener
from tests.simulation.kafka_members import KafkaMember
from tests.simulation.scheduler import Actor
from tests.simulation.sockets import SimulatedClient, SimulatedGateway
from tests.simulation.store import SimulatedStore


@dataclass(eq=False, slots=True)
class Process:
    """One process: a store and the actors that use it. ``incarnation`` and the later fields make a consumer's
    witness."""

    name: str
    store: SimulatedStore
    service: CoordinatorService | None = None
    gateway: SimulatedGateway | None = None
    listener: SimulatedListener | None = None
    connector: Connector | KafkaMember | None = None
    """The consumer's connector or Kafka member."""
    client: SimulatedClient | KafkaMember | None = None
    """The owner of the connection to an instance, if the process has no ZooKeeper session."""
    unreachable_until: float = 0.0
    """Before this time, the process opens no socket connection. The store's connection is independent of it."""
    fetchers: SimulatedFetchers | None = None
    by_pattern: bool = False
    """Whether the consumer subscribes to all topics."""
    subscribed_anew: bool = False
    closing: bool = False
    leave_began: dict[TopicPartition, int] = field(default_factory=dict)
    """Maps each partition held at the beginning of the leave to the offset up to which the application had finished."""
    actors: list[Actor] = field(default_factory=list)
    alive: bool = True
    frozen: bool = False
    ready: list[Callable[[], None]] = field(default_factory=list)
    """The possible turns of actors, as computed last."""
    ready_until: float = 0.0
    """The time at which the first of the other actors may run, unless something happens in this process before."""

    def look(self, now: float) -> None:
        """Determines the actors that may run."""
        ready, until = [], float("inf")
        for actor in self.actors:
            if not actor.sleeping or actor.asleep_until <= now or (actor.waker is not None and actor.waker()):
                ready.append(actor.turn)
            elif actor.asleep_until < until:
                until = actor.asleep_until
        self.ready, self.ready_until = ready, until

    def deliver(self) -> None:
        """Calls the watchers of the oldest notification."""
        self.ready_until = 0.0
        self.store.deliver()

    @property
    def consumer(self) -> str:
        return self.connector.identity.consumer if isinstance(self.connector, KafkaMember) else self.name

    @property
    def incarnation(self) -> int | None:
        if isinstance(self.connector, KafkaMember):
            return self.connector.incarnation if not self.connector.done else None
        registration = self.connector.registration if self.connector is not None else None
        return registration.incarnation if registration is not None else None

    def holds(self, partition: TopicPartition) -> bool:
        return self.fetchers is not None and partition in self.fetchers.holdings

    def leaving(self) -> Mapping[TopicPartition, tuple[int, int]]:
        if self.fetchers is None or self.connector is None or not self.connector.may_hand_out():
            return {}  # from now on, its registration is removed only because of its silence
        holdings = self.fetchers.holdings
        return {tp: (began, holdings[tp].consumed) for tp, began in self.leave_began.items() if tp in holdings}

    def replaces(self, member_id: str, protocol: str) -> bool:
        """Tells whether this is a static client that replaces the client with this member id and protocol. A KIP-848
        client replaces only a classic one."""
        one = self.connector
        if not isinstance(one, KafkaMember) or not one.identity.instance_id:
            return False
        return member_id != one.identity.member_id and (isinstance(one, ClassicMember) or protocol == CLASSIC)

    @property
    def starts_when_told(self) -> bool:
        return isinstance(self.connector, KafkaMember) and self.connector.starts_when_told

    def may_fetch(self, partition: TopicPartition) -> bool:
        if not self.alive or self.fetchers is None or self.connector is None:
            return False
        holding = self.fetchers.holdings.get(partition)
        return holding is not None and holding.wanted and self.connector.may_hand_out()
