"""The scenario for each client: join, share, leave, lose the coordinator, resume, meet a topic made anew, be a
static member."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import Producer

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import RequestRefused
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind
from tests.frontends.kafka.tried.contenders import Contender, environment

PARTITIONS, RECORDS = 6, 300
_numbers = itertools.count(1)
_WITHIN_S = 60.0
_AWAY_S = 3.0
_MORE_THAN_BEFORE = 6


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


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a play: each step with its duration in seconds, and the failure if a step failed."""

    steps: tuple[tuple[str, float], ...]
    failure: str = ""
    version: str = ""


class Play:
    """One client with one strategy, in its own group and topic."""

    def __init__(self, contender: Contender, strategy: str, instances: Instances) -> None:
        self._contender, self._strategy, self._instances = contender, strategy, instances
        number = next(_numbers)
        self._topic, self.group = f"tried-{number}", f"tried-{number}"
        self._members: list[Member] = []
        self._produced, self._static = 0, False
        self._steps: list[tuple[str, float]] = []

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
            last = [line for one in self._members for line in one.said[-3:]]
            failure = f"{name}: {error}; said: {' | '.join(last)[-600:]}"
        finally:
            for one in self._members:
                one.end()
        library = f"# {self._contender.name.partition(' ')[0]} "
        version = next((line for one in self._members for line in one.said if line.startswith(library)), "")
        return Seen(tuple(self._steps), failure, version.removeprefix("# "))

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
        self._move(GroupKind.CLIENT_ASSIGNED)

    def _move(self, to: GroupKind) -> None:
        """The group moves while it reads. Its members go on where they were, with the same processes."""
        self._produce()
        self._until(lambda: self._moved(to), f"the group is {to}")
        self._produce()
        self._until_read()
        if any(one.process.poll() is not None for one in self._members):
            raise NotSeen("a member has ended")

    def _moved(self, to: GroupKind) -> bool:
        try:
            self._instances.convert(self.group, to)
        except RequestRefused as error:
            self._members[0].said.append(str(error))
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
            one.committed = self._produced = 0

    def _given(self) -> set[tuple[int, int]]:
        return set(itertools.chain.from_iterable(one.records for one in self._members))

    def _be_static(self) -> None:
        """One of two static members is killed and returns immediately. It gets its partitions back, and the other keeps
        its own."""
        for one in self._members:
            if one.process.poll() is None:
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

    def _shared(self) -> bool:
        held = [one.assigned for one in self._members if one.process.poll() is None]
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
        """Waits until all records were received, and all running members have committed the records they received."""

        def done() -> bool:
            given = self._given()
            live = [one for one in self._members if one.process.poll() is None]
            told = not self._contender.tells_commits or all(one.committed == len(one.records) for one in live)
            return len(given) == self._produced and told

        self._until(done, "all records are read and committed")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not condition():
            if time.monotonic() > deadline:
                raise NotSeen(f"not within {_WITHIN_S:g} s: {what}")
            time.sleep(0.05)
