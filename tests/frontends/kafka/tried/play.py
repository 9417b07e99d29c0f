"""The scenario for each client: join, share, leave, lose the coordinator, resume, meet a topic made anew, be a
static member."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import Producer

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import RequestRefused
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind
from tests.frontends.kafka.tried.contenders import Contender, environment
from tests.waiting import beside

PARTITIONS, RECORDS = 6, 300
KIP_848 = "kip-848"
_numbers = itertools.count(1)
_WITHIN_S = 60.0
_AWAY_S = 3.0
_MORE_THAN_BEFORE = 6
_FLOW_EVERY_S, _FLOW_AROUND_S = 0.05, 3.0


class Instances(Protocol):
    """The part of the instances and their brokers that a play needs."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def brokers(self) -> str: ...
    def coordinator(self, partition: int) -> int: ...
    def stop(self, broker_id: int) -> None: ...
    def start(self, broker_id: int) -> object: ...
    def convert(self, group: str, to: GroupKind) -> None: ...


class NotSeen(Exception):
    """The event that a step waits for did not happen."""


@dataclass(eq=False)
class Member:
    """A member's process, and its output so far."""

    process: subprocess.Popen[str]
    listening: threading.Thread = field(init=False)
    assigned: frozenset[int] = frozenset()
    assignments: int = 0
    records: list[tuple[int, int]] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)
    """When each of the records was received."""
    committed: int = 0
    """How many records the member had received when its last commit was acknowledged."""
    said: list[str] = field(default_factory=list)

    def listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._hear(line.strip())

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "assigned":
            self.assigned = frozenset(int(one) for one in rest.split(",") if one)
            self.assignments += 1
        elif word == "record":
            partition, _, offset = rest.partition(" ")
            self.heard.append(time.monotonic())
            self.records.append((int(partition), int(offset)))
        elif word == "committed":
            self.committed = len(self.records)
        else:
            self.said.append(line)

    def end(self) -> None:
        """Kills the member if it still runs."""
        assert self.process.stdin is not None
        self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.listening.join(10)

    def leave(self) -> None:
        """Closes the member's input, so that it leaves. Raises :class:`NotSeen` if it still runs after 30 s."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            raise NotSeen("it does not leave when it is asked to") from None


def longest_pause(times: Mapping[int, Iterable[float]], began: float, ended: float) -> float:
    """The longest time in seconds without a record of some partition, between these two times."""
    each = ([began, *sorted(at for at in of_one if began <= at <= ended), ended] for of_one in times.values())
    return max(b - a for one in each for a, b in itertools.pairwise(one))


@dataclass(frozen=True, slots=True)
class Moved:
    """What the members met when their group became ``to``: how long the move took, until all members were back; the
    longest time without a record of a partition; the commits that failed; and what the library logged."""

    to: GroupKind
    took_s: float
    pause_s: float
    failed_commits: int
    logged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a play: each step with its duration in seconds, and the failure if a step failed."""

    steps: tuple[tuple[str, float], ...]
    failure: str = ""
    version: str = ""
    moves: tuple[Moved, ...] = ()


class Play:
    """One client with one strategy, in its own group and topic."""

    def __init__(self, contender: Contender, strategy: str, instances: Instances) -> None:
        self._contender, self._strategy, self._instances = contender, strategy, instances
        number = next(_numbers)
        self._topic, self.group = f"tried-{number}", f"tried-{number}"
        self._members: list[Member] = []
        self._produced, self._static = 0, False
        self._steps: list[tuple[str, float]] = []
        self._moves: list[Moved] = []
        self._refusals: list[str] = []

    def run(self, without: Container[str] = ()) -> Seen:
        """Runs the steps except those named in ``without``, such as ``lose coordinator`` and ``be static``."""
        membership = self._join, self._share, self._leave, self._lose_coordinator, self._resume
        return self._carry_out((*membership, self._meet_new_topic, self._be_static), without)

    def read_on(self) -> Seen:
        """A member reads on while its topic is deleted and made anew."""
        return self._carry_out((self._join, self._read_on))

    def move(self, *, static: bool = False) -> Seen:
        """The group of two members is given back to the brokers and taken over again."""
        self._static = static
        return self._carry_out((self._join, self._share, self._give_back, self._take_over))

    def convert(self) -> Seen:
        """The group of two members becomes managed, and client-assigned again."""
        return self._carry_out((self._join, self._share, self._make_managed, self._make_client_assigned))

    def begin(self) -> None:
        """Two members read. Call :meth:`end` at the end. Like the next two, raises :class:`NotSeen`."""
        TopicAdmin(self._instances.brokers).create(self._topic, PARTITIONS, replication=1)
        self._join()
        self._share()

    def go_on(self) -> None:
        """The members read further records."""
        self._produce()
        self._until_read()
        self._require_running()

    def point_at(self, instances: Instances) -> None:
        """Other members with other ``bootstrap.servers`` go on where these were."""
        for one in self._running():
            one.leave()
        self._instances = instances
        self._join()
        self._share()

    def end(self) -> None:
        for one in self._members:
            one.end()

    def _carry_out(self, steps: Sequence[Callable[[], None]], without: Container[str] = ()) -> Seen:
        TopicAdmin(self._instances.brokers).create(self._topic, PARTITIONS, replication=1)
        failure = ""
        try:
            for step in steps:
                name = step.__name__.strip("_").replace("_", " ")
                if name not in without and (step != self._be_static or self._contender.static):
                    began = time.monotonic()
                    step()
                    self._steps.append((name, time.monotonic() - began))
        except NotSeen as error:
            last = [*self._refusals[-3:], *(line for one in self._members for line in one.said[-3:])]
            failure = f"{name}: {error}; said: {' | '.join(last)[-600:]}"
        finally:
            self.end()
        library = f"# {self._contender.name.partition(' ')[0]} "
        version = next((line for one in self._members for line in one.said if line.startswith(library)), "")
        return Seen(tuple(self._steps), failure, version.removeprefix("# "), tuple(self._moves))

    # --- the steps ---------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """The first member gets all partitions, and commits."""
        self._produce()
        first = self._start("a", "s1" if self._static else "")
        self._until(lambda: len(first.assigned) == PARTITIONS, "one member has all partitions")
        self._until_read()

    def _share(self) -> None:
        """A second member joins. Each gets some partitions, and together they have all."""
        second = self._start("b", "s2" if self._static else "")
        self._until(self._shared, "two members share the partitions")
        self._produce()
        self._until_read()
        if not second.records:
            raise NotSeen("the second member was given nothing")

    def _give_back(self) -> None:
        self._move(GroupKind.NATIVE)

    def _take_over(self) -> None:
        self._move(GroupKind.MANAGED if self._strategy == KIP_848 else GroupKind.CLIENT_ASSIGNED)

    def _make_managed(self) -> None:
        self._move(GroupKind.MANAGED)

    def _make_client_assigned(self) -> None:
        self._move(GroupKind.CLIENT_ASSIGNED)

    def _move(self, to: GroupKind) -> None:
        """The group moves while it reads. Its members go on where they were, with the same processes."""
        with self._flowing():
            time.sleep(_FLOW_AROUND_S)
            said = [len(one.said) for one in self._members]
            began = time.monotonic()
            self._until(lambda: self._moved(to), f"the group is {to}")
            took_s = time.monotonic() - began
            time.sleep(_FLOW_AROUND_S)
            ended = time.monotonic()
        self._until_read()
        self._require_running()
        lines = [line for one, then in zip(self._members, said, strict=True) for line in one.said[then:]]
        failed = sum(line.startswith("#") for line in lines)
        logged = tuple(line for line in lines if not line.startswith("#"))
        self._moves.append(Moved(to, took_s, self._longest_pause(began, ended), failed, logged))

    def _longest_pause(self, began: float, ended: float) -> float:
        times: dict[int, list[float]] = {partition: [] for partition in range(PARTITIONS)}
        for one in self._members:
            for (partition, _), at in zip(list(one.records), list(one.heard), strict=False):
                times[partition].append(at)
        return longest_pause(times, began, ended)

    @contextmanager
    def _flowing(self) -> Iterator[None]:
        """Writes a record to each partition again and again."""
        producer = Producer({"bootstrap.servers": self._instances.brokers, "log_level": 0, "linger.ms": 1})

        def produce(ends: threading.Event) -> None:
            while not ends.wait(_FLOW_EVERY_S):
                for partition in range(PARTITIONS):
                    producer.produce(self._topic, b"", partition=partition)
                    self._produced += 1
                producer.poll(0)

        try:
            with beside(produce):
                yield
        finally:
            if producer.flush(60):
                raise NotSeen("the records could not be written")

    def _moved(self, to: GroupKind) -> bool:
        try:
            self._instances.convert(self.group, to)
        except RequestRefused as error:
            if "again" not in str(error):  # only then it helps to try again
                raise NotSeen(str(error)) from error
            self._refusals.append(str(error))
            return False
        return True

    def _leave(self) -> None:
        first, second = self._members
        second.leave()
        self._until(lambda: len(first.assigned) == PARTITIONS, "the member that stays has all partitions")
        self._produce()
        self._until_read()

    def _lose_coordinator(self) -> None:
        """The coordinating instance stops for a while. The member continues where it was."""
        partition = partition_of(self.group)
        coordinator = self._instances.coordinator(partition)
        self._instances.stop(coordinator)
        time.sleep(_AWAY_S)
        self._instances.start(coordinator)
        self._produce()
        self._until_read()

    def _resume(self) -> None:
        """The member leaves. The next one begins exactly at the group's committed offsets."""
        (first, *_) = self._members
        before = set(itertools.chain.from_iterable(one.records for one in self._members))
        first.leave()
        self._produce()
        after = self._start("c")
        self._until_read()
        if again := before & set(after.records):
            raise NotSeen(f"{len(again)} records were given again after a clean leave")

    def _meet_new_topic(self) -> None:
        """While nobody reads it, the topic is deleted and made anew, with more records than the committed offsets. The
        next member reads all of them and commits."""
        self._members[-1].leave()
        self._make_anew()
        for _ in range(_MORE_THAN_BEFORE):
            self._produce()
        self._start("d")
        self._until_read()

    def _read_on(self) -> None:
        """The topic is deleted and made anew under a member that has committed, with more records than the committed
        offsets. It reads all of them and commits."""
        self._make_anew()
        for _ in range(_MORE_THAN_BEFORE):
            self._produce()
        self._until_read()

    def _make_anew(self) -> None:
        topics = TopicAdmin(self._instances.brokers)
        topics.delete(self._topic)
        topics.create(self._topic, PARTITIONS, replication=1)
        for one in self._members:
            one.records.clear()
            one.heard.clear()
            one.committed = self._produced = 0

    def _given(self) -> set[tuple[int, int]]:
        return set(itertools.chain.from_iterable(one.records for one in self._members))

    def _be_static(self) -> None:
        """One of two static members is killed and returns immediately. It gets its partitions back, and the other keeps
        its own."""
        for one in self._running():
            one.leave()
        stays, killed = self._start("s1", "s1"), self._start("s2", "s2")
        self._until(self._shared, "two static members share the partitions")
        had, told = killed.assigned, stays.assignments
        killed.process.kill()
        killed.process.wait()
        back = self._start("s2", "s2")
        self._until(lambda: back.assigned == had, f"the static member that was killed has {sorted(had)} again")
        if stays.assignments != told:
            raise NotSeen("the other static member was assigned anew")

    # --- what they need ----------------------------------------------------------------------------------------------

    def _running(self) -> list[Member]:
        return [one for one in self._members if one.process.poll() is None]

    def _require_running(self) -> None:
        if len(self._running()) < 2:
            raise NotSeen("a member has ended")

    def _shared(self) -> bool:
        held = [one.assigned for one in self._running()]
        return len(held) == 2 and all(held) and sum(map(len, held)) == PARTITIONS == len(frozenset.union(*held))

    def _start(self, name: str, instance: str = "") -> Member:
        program = self._contender.program()
        arguments = [self._instances.bootstrap, self._topic, self.group, name]
        arguments += [self._strategy, instance] if instance else [self._strategy]
        process = subprocess.Popen(
            [*program.command, *arguments],
            env=environment(program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        member = Member(process)
        member.listening = threading.Thread(target=member.listen, name=f"tried-{name}", daemon=True)
        member.listening.start()
        self._members.append(member)
        return member

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._instances.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce(self._topic, str(number), partition=number % PARTITIONS)
        if producer.flush(60):
            raise NotSeen("the records could not be written")
        self._produced += RECORDS

    def _until_read(self) -> None:
        """Waits until all records were received and committed, maybe by the member that got the partition after one
        whose commit failed."""

        def done() -> bool:
            given = self._given()
            if len(given) < self._produced or not self._contender.tells_commits:
                return len(given) == self._produced
            return given == set(itertools.chain.from_iterable(one.records[: one.committed] for one in self._members))

        self._until(done, "all records are read and committed")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not condition():
            if time.monotonic() > deadline:
                raise NotSeen(f"not within {_WITHIN_S:g} s: {what}")
            time.sleep(0.05)
