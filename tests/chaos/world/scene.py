"""What a scene needs: topics, numbered records, members in processes of their own, and their journals."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import KafkaCoordError
from kafka_coord.grouplog.term import TOPIC as GROUPS_LOG
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.offsets import read_committed
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.zk import layout
from tests.chaos.journal import (
    WORLD,
    ConsumerJournal,
    Handed,
    Kind,
    Observed,
    Owed,
    Position,
    Started,
    Waited,
    read_consumer,
)
from tests.chaos.parts import Part
from tests.chaos.testbed import Actor, ChaosTestbed

if TYPE_CHECKING:
    from tests.chaos.faults import Faults

READ_S = 100.0
"""How long members may take to read everything, also amid other faults, in seconds."""
_LEFT_S = 30.0
_FLUSH_S = 60.0
_LAG_S = 15.0
_POLL_S = 0.2


class Abandoned(Exception):
    """The scene cannot be carried out, because the servers do not do what its own clients ask for."""


@dataclass(slots=True)
class Found:
    """What the scene has observed so far."""

    own: set[str] = field(default_factory=set)
    owed: list[Owed] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    waited: list[Waited] = field(default_factory=list)
    commits: int = 0
    failed: list[str] = field(default_factory=list)
    answered: str = ""
    terms: int | None = None

    def observed(self, abandoned: str = "") -> Observed:
        return Observed(
            tuple(sorted(self.own)),
            tuple(self.owed),
            tuple(self.positions),
            tuple(self.waited),
            self.commits,
            tuple(self.failed),
            self.answered,
            self.terms,
            abandoned,
        )


class Scene:
    """One occurrence of an event, in a ``with`` block, which ends its members and deletes its topics. ``pick`` (0 to 1)
    chooses among the variants of the event. ``name`` is that of its group and its topics' prefix."""

    def __init__(self, testbed: ChaosTestbed, faults: Faults, kind: Kind, number: int, pick: float) -> None:
        self.testbed, self.faults, self.pick = testbed, faults, pick
        self.name = f"{kind}-{number}"
        self.found = Found()
        self.topics = TopicAdmin(testbed.bootstrap, timeout_s=30.0)
        self._directory = testbed.directory / WORLD
        self._producer = self._new_producer()
        self._numbers: Counter[TopicPartition] = Counter()
        self._members: list[Actor] = []
        self._made: set[str] = set()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in tuple(self._members):
            self.leave(actor)
        for topic in self._made:
            with contextlib.suppress(KafkaCoordError, KafkaException):
                self.topics.delete(topic)

    def _new_producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.testbed.bootstrap, "acks": "all", "log_level": 0})

    # --- topics and records ------------------------------------------------------------------------------------------

    def topic(self, suffix: str = "a", partitions: int = 1, replication: int = 3) -> str:
        """Creates a topic, and returns its name."""
        name = f"{WORLD}-{self.name}-{suffix}"
        self.topics.create(name, partitions, replication=replication)
        self._made.add(name)
        return name

    def make_anew(self, topic: str, partitions: int) -> None:
        """Deletes the topic and creates it again. From then on, another producer writes: librdkafka keeps a topic's
        leader epochs by its name, and ignores leaders with lower epochs, which a new topic has."""
        self.topics.delete(topic)
        self.topics.create(topic, partitions, replication=3)
        self._producer = self._new_producer()

    def adopt(self, topic: str) -> str:
        """Has a topic deleted at the end that the scene created itself."""
        self._made.add(topic)
        return topic

    def produce(self, topic: str, count: int, partitions: Sequence[int] = (0,), *, owed: bool = True) -> None:
        """Writes ``count`` records to each partition, and waits until they are acknowledged. The scene's group must
        receive those that are ``owed``. Raises :class:`Abandoned`."""
        wanted = [(TopicPartition(topic, p), number) for p in partitions for number in self._take(topic, p, count)]
        self.send(self._producer, wanted)
        if owed:
            for p in partitions:
                end = self._numbers[TopicPartition(topic, p)]
                self.owe(topic, p, end - count, end)

    def numbers(self, topic: str, partition: int, count: int) -> list[tuple[TopicPartition, int]]:
        """Returns the next records of a partition, for :meth:`send`."""
        return [(TopicPartition(topic, partition), number) for number in self._take(topic, partition, count)]

    def send(self, producer: Producer, records: Sequence[tuple[TopicPartition, int]]) -> None:
        """Writes these records with the producer. Raises :class:`Abandoned` if one is not acknowledged."""
        failed: list[str] = []
        for topic in {partition.topic for partition, _ in records}:
            # The producer knows its topics by name, and refuses partitions that it does not know yet.
            most = max(partition.partition for partition, _ in records if partition.topic == topic)
            self.require(lambda topic=topic, most=most: self._knows(producer, topic, most), f"a producer knows {topic}")  # type: ignore[misc]
        for (topic, partition), number in records:
            producer.produce(
                topic,
                str(number).encode(),
                partition=partition,
                on_delivery=lambda error, _: failed.append(error.str()) if error is not None else None,
            )
        if left := producer.flush(_FLUSH_S):
            raise Abandoned(f"{left} records were not acknowledged within {_FLUSH_S:g} s")
        if failed:
            raise Abandoned(f"{len(failed)} records were not acknowledged: {failed[0]}")

    @staticmethod
    def _knows(producer: Producer, topic: str, partition: int) -> bool:
        try:
            found = producer.list_topics(topic, timeout=5.0).topics[topic]
        except KafkaException:
            return False
        return found.error is None and partition in found.partitions

    def owe(self, topic: str, partition: int, first: int, end: int) -> None:
        self.found.owed.append(Owed(self.name, topic, partition, first, end))

    def _take(self, topic: str, partition: int, count: int) -> range:
        at = TopicPartition(topic, partition)
        self._numbers[at] += count
        return range(self._numbers[at] - count, self._numbers[at])

    # --- members -----------------------------------------------------------------------------------------------------

    def join(self, part: Part) -> Actor:
        """Starts a member in a process of its own, and returns when its process works."""
        actor = self.testbed.add_consumer(part, role=WORLD, directory=self._directory)
        self._members.append(actor)
        actor.start()
        return actor

    def leave(self, actor: Actor) -> None:
        """Stops the member cleanly. A member that does not end is killed."""
        self._members.remove(actor)
        actor.process.terminate()
        deadline = time.monotonic() + _LEFT_S
        while actor.process.running and time.monotonic() < deadline:
            time.sleep(0.05)
        actor.process.kill()
        self.testbed.remove(actor)

    def journals(self) -> Iterator[ConsumerJournal]:
        """Yields the journals of the scene's members up to now."""
        for path in sorted((self._directory / "consumers").glob(f"{self.name}-*.jsonl")):
            if (journal := read_consumer(path)) is not None:
                yield journal

    def opened_at(self, actor: Actor) -> float:
        """Returns when the member's process began to work. Raises :class:`Abandoned` if it does not."""

        def opened() -> list[float]:
            return [one.lines[0].t for one in self.journals() if one.pid == actor.process.pid]

        self.require(lambda: bool(opened()), f"{actor.target} works")  # its file may still be empty
        return opened()[0]

    def started(self, *partitions: TopicPartition) -> bool:
        """Tells whether members have started these partitions."""
        seen = {tp for one in self.journals() for line in one.lines if isinstance(line, Started) for tp in line.offsets}
        return set(partitions) <= seen

    def read(self) -> set[tuple[str, int, int]]:
        """Returns the records that the group has received, as (topic, partition, number)."""
        return {(*run.partition, run.number + at) for _, run in self._runs() for at in range(run.size)}

    def first_read(self, topic: str, since: float, pid: int | None = None) -> float | None:
        """Returns when the first record of that topic was received after ``since``, optionally by one process."""
        times = [t for t, run in self._runs(pid) if run.partition.topic == topic and t >= since]
        return min(times, default=None)

    def _runs(self, pid: int | None = None) -> Iterator[tuple[float, Any]]:
        for journal in self.journals():
            if pid in {None, journal.pid}:
                for line in journal.lines:
                    if isinstance(line, Handed):
                        for run in line.runs:
                            yield line.t, run

    # --- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until the condition holds. Tells whether it does."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def require(self, until: Callable[[], bool], what: str, timeout_s: float = READ_S) -> None:
        """Raises :class:`Abandoned` if the condition does not hold in time."""
        if not self.wait(until, timeout_s):
            raise Abandoned(f"not within {timeout_s:g} s: {what}")

    def wait_until_read(self) -> bool:
        """Waits until the group has received all that it is owed. The judge decides what it means if it has not."""
        wanted = {(one.topic, one.partition, number) for one in self.found.owed for number in range(one.first, one.end)}
        return self.wait(lambda: wanted <= self.read(), READ_S)

    def read_something(self, topic: str) -> None:
        """Writes records until the group receives one, so that its position in the topic is known. Raises
        :class:`Abandoned`."""

        def one_more() -> bool:
            self.produce(topic, 1, owed=False)
            time.sleep(0.3)
            return self.first_read(topic, 0.0) is not None

        self.require(one_more, f"a record of {topic} was received")

    # --- what servers say --------------------------------------------------------------------------------------------

    def note_positions(self, topic: str) -> None:
        """Records the positions of the group in ZooKeeper as soon as nothing is lag, or else after some seconds."""
        self.wait(lambda: all(one.committed == one.end for one in self._positions(topic)), _LAG_S)
        self.found.positions += self._positions(topic)

    def _positions(self, topic: str) -> list[Position]:
        store = self.testbed.store
        committed = read_committed(store, self.name, read_cluster(store).topics).offsets
        partitions = [TopicPartition(topic, p) for p in range(self.topics.partition_count(topic))]
        reader = OffsetReader(self.testbed.bootstrap, {})
        try:
            ends = reader.latest(PartitionSet.of(partitions)).offsets
        finally:
            reader.close()
        return [Position(self.name, *tp, committed.get(tp), ends[tp]) for tp in partitions if tp in ends]

    def watermarks(self, topic: str) -> tuple[int, int]:
        """Returns the first and the end offset of the topic's first partition. Raises :class:`BrokerError`."""
        partition = TopicPartition(topic, 0)
        reader = OffsetReader(self.testbed.bootstrap, {})
        try:
            wanted = PartitionSet.of([partition])
            return reader.earliest(wanted).offsets[partition], reader.latest(wanted).offsets[partition]
        finally:
            reader.close()

    def terms(self) -> int:
        """Returns how many terms of the groups log have begun so far."""
        store = self.testbed.store
        partitions = store.children(f"{layout.broker_topic(GROUPS_LOG)}/partitions")
        found = store.exists_many([layout.log_partition(int(number)) for number in partitions])
        return sum(stat.version for stat in found if stat is not None)

    def waited(self, what: str, seconds: float | None) -> None:
        self.found.waited.append(Waited(what, seconds))
