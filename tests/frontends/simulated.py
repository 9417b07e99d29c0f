"""A gateway on a simulated ZooKeeper whose replies a test can lose, and consumers whose frames the test sends.

No threads run: :meth:`SimulatedHouse.turn` is one turn of the gateway, and only the test advances the clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from kafka_coord.channel.frames import AnsweredRequest, Asked, Event, Frame, RefusedRequest, Rpc, encode
from kafka_coord.errors import NoAuth, NoNode
from kafka_coord.frontends.socket.access import GatewayOptions
from kafka_coord.frontends.socket.gateway import Gateway, LeadershipView
from kafka_coord.model import Command, PartitionSet, StartFetcher, StartPoint, StopFetcher, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.assignment import NODE_PREFIX
from kafka_coord.zk import layout
from kafka_coord.zk.election import Leadership, ZkElection
from kafka_coord.zk.store import Read, ReadResult, SessionState
from tests.frontends.machine import invariants  # noqa: F401  every term checks them
from tests.simulation.scheduler import VirtualClock
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import SimulatedStore

TOPIC = "flights"


class Peer:
    """A connection whose other end is the test."""

    certificate = None

    def __init__(self, address: str = "127.0.0.1:1") -> None:
        self.address = address
        self.sent: list[Frame] = []
        self.closed = False

    def send(self, frame: Frame) -> None:
        encode(frame)
        self.sent.append(frame)

    def rest(self, seconds: float) -> None:
        del seconds

    def close(self) -> None:
        self.closed = True


class HeldLeadership(LeadershipView):
    """A leadership view whose answer the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Leadership | None = None

    def leadership(self) -> Leadership | None:
        return self.held

    def leads(self) -> bool:
        return self.held is not None


class Surroundings:
    """Faults of a store's requests. If ``loses`` returns true for a request, its reply is lost with the connection.
    ``takes`` is called before each request takes effect."""

    def __init__(self) -> None:
        self.loses: Callable[[str], bool] = lambda _doing: False
        self.takes: Callable[[str], None] = lambda _doing: None

    def before_effect(self, _store: SimulatedStore, doing: str) -> None:
        self.takes(doing)

    def before_reply(self, store: SimulatedStore, doing: str) -> None:
        if self.loses(doing):
            store.disconnect()

    def between_reads(self, _store: SimulatedStore) -> None:
        return


class ForbiddingStore(SimulatedStore):
    """Refuses reads of the path ``forbidden``."""

    forbidden = ""

    def read_many(self, reads: Sequence[Read]) -> tuple[ReadResult, ...]:
        if any(read.path == self.forbidden for read in reads):
            raise NoAuth("may not be read", self.forbidden)
        return super().read_many(reads)


class SimulatedHouse:
    """The gateway of an elected instance. ``other`` is another client's store, whose requests always succeed."""

    def __init__(self, options: GatewayOptions | None = None) -> None:
        self.clock = VirtualClock()
        self.zookeeper = SimulatedZooKeeper()
        self.around = Surroundings()
        self.store = self._open(self.around)
        self.other = self._open(Surroundings())
        for path in layout.PERSISTENT_ROOTS:
            self.other.ensure_path(path)
        self.leadership_view = HeldLeadership()
        self.election = ZkElection(self.store, 1, {"channel": "127.0.0.1:1"}, lambda: None)
        self.leadership_view.held = self.election.elect()
        nonces = map(str, itertools.count())
        self.gateway = Gateway(self.store, 1, self.leadership_view, lambda: None, options, nonce=nonces.__next__)

    def _open(self, around: Surroundings) -> ForbiddingStore:
        store = ForbiddingStore(self.zookeeper, self.clock, around, 10_000)
        store.connect(self.zookeeper.replicas[0])
        return store

    def reconnect(self) -> None:
        """Restores the connection of the gateway's store, if it is cut."""
        if self.store.session.state is not SessionState.CONNECTED:
            self.store.connect(self.zookeeper.replicas[0])

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.reconnect()
            while self.store.has_notification():
                self.store.deliver()
            self.gateway.step()

    def elect_anew(self) -> None:
        """Makes the instance step down and be elected again, so that it knows its members only from ZooKeeper."""
        self.leadership_view.held = None
        self.turn()
        self.election.resign()
        self.leadership_view.held = self.election.elect()
        assert self.leadership_view.held is not None
        self.turn()

    def forbid(self, path: str) -> None:
        """Forbids the gateway to read this znode."""
        self.store.forbidden = path

    def allow(self) -> None:
        """Allows all reads again."""
        self.store.forbidden = ""

    def consumer(self, name: str = "s1", group: str = "delays") -> SimulatedConsumer:
        return SimulatedConsumer(self, name, group)

    def offset(self, partition: int, group: str = "delays") -> int | None:
        try:
            return int(self.other.get(layout.offset(group, TOPIC, partition)).data)
        except NoNode:
            return None

    def commit_as_another(self, partition: int, offset: int, group: str = "delays") -> None:
        """Overwrites a partition's stored offset, as a commit by the next owner would."""
        path = layout.offset(group, TOPIC, partition)
        self.other.ensure_path(path)
        self.other.set(path, str(offset).encode())


class SimulatedConsumer:
    """A consumer that sends exactly what the test says."""

    def __init__(self, house: SimulatedHouse, name: str, group: str) -> None:
        self.house, self.name, self.group = house, name, group
        self.incarnation = 0
        self.connect()

    def connect(self) -> None:
        """Starts over on a new connection."""
        self.peer = Peer(f"{self.name}:1")
        self.rpc = Rpc()
        self.connection = self.house.gateway.accepted(self.peer)
        self._unread: list[Event] = []

    def say(self, request: str, **fields_: Any) -> int:
        number, frame = self.rpc.ask(request, fields_)
        self.house.gateway.received(self.connection, {"v": 1, **frame})
        return number

    def say_register(self, **more: Any) -> int:
        wanted = {"subscription": {TOPIC: 1}, "session_timeout_ms": 10_000, "client": "by hand", "resume_key": "k"}
        return self.say("register", group=self.group, consumer_id=self.name, **(wanted | more))

    def register(self, **more: Any) -> SimulatedConsumer:
        number = self.say_register(**more)
        self.house.turn()
        answer = self.answer_to(number)
        assert isinstance(answer, AnsweredRequest), answer
        self.incarnation = answer.frame["incarnation"]
        return self

    def hear(self) -> list[Event]:
        """All frames that the test has not read yet."""
        frames, self.peer.sent = self.peer.sent, []
        self._unread += [self.rpc.take({"v": 1, **frame}) for frame in frames]
        return self._unread

    def answer_to(self, number: int) -> AnsweredRequest | RefusedRequest | None:
        return self._first(lambda event: not isinstance(event, Asked) and event.id in (number, 0))  # type: ignore[return-value]

    def asked(self, wanted: str) -> Asked | None:
        return self._first(lambda event: isinstance(event, Asked) and event.type == wanted)  # type: ignore[return-value]

    def _first(self, is_wanted: Callable[[Event], bool]) -> Event | None:
        found = next((event for event in self.hear() if is_wanted(event)), None)
        if found is not None:
            self._unread.remove(found)
        return found

    def answer(self, asked: Asked, offsets: dict[int, int] | None = None) -> None:
        written = {TOPIC: {str(partition): offset for partition, offset in (offsets or {}).items()}}
        frame = self.rpc.answer(asked.id, {"offsets": written})
        self.house.gateway.received(self.connection, {"v": 1, **frame})

    def say_commit(self, offsets: dict[int, int]) -> int:
        return self.say("commit", offsets={TOPIC: {str(partition): offset for partition, offset in offsets.items()}})

    def told_to(self, command: Command) -> Asked:
        """Writes a command into the consumer's channel, as a coordinator would. Waits until the gateway sends it."""
        path = layout.command(self.group, self.name, NODE_PREFIX[command.type])
        self.house.other.create(path, fields.dump(command.to_json()), sequence=True)
        for _ in range(10):
            self.house.turn()
            asked = self.asked(str(command.type))
            if asked is not None:
                return asked
        raise AssertionError("the command never came")

    def told_to_start(self, starts: dict[int, int]) -> Asked:
        points = {TopicPartition(TOPIC, partition): StartPoint(offset) for partition, offset in starts.items()}
        for partition, offset in starts.items():
            path = layout.offset(self.group, TOPIC, partition)
            self.house.other.ensure_path(path.rpartition("/")[0])
            if offset >= 0 and self.house.offset(partition, self.group) is None:
                self.house.other.create(path, str(offset).encode())
        return self.told_to(StartFetcher(1, 1, self.incarnation, points, "by hand"))

    def told_to_stop(self, *partitions: int) -> Asked:
        stopped = PartitionSet.of(TopicPartition(TOPIC, partition) for partition in partitions)
        return self.told_to(StopFetcher(1, 1, self.incarnation, stopped, "by hand"))

    def owning(self, starts: dict[int, int]) -> SimulatedConsumer:
        """Makes the consumer start these partitions at the given offsets."""
        self.answer(self.told_to_start(starts))
        self.house.turn()
        return self

    def commands(self) -> tuple[str, ...]:
        """The names of the commands in the consumer's channel."""
        return self.house.other.children(layout.channel(self.group, self.name))
