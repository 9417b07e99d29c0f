"""Runs many socket consumers in one process, on one event loop. Each has a real link and connector, and its own
connection. The fetchers only read a clock, and always have offsets to commit.

``python -m kafka_coord.dev.bench.sockets.crowd PLACE`` registers all consumers, prints their state as a line of JSON
every quarter of a second, and ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from kafka_coord.channel.frames import AnsweredRequest, BadFrame, Decoder, Frame, Rpc, encode
from kafka_coord.channel.link import LASTED_S, SocketLink
from kafka_coord.channel.messages import ClusterMetadata, Coordinator, MessageType
from kafka_coord.channel.operations import Offsets
from kafka_coord.channel.search import SILENCE, Ask, CoordinatorSearch, Wait, longest_wait
from kafka_coord.consumer.connector import Connector
from kafka_coord.dev.bench.group import plain_member
from kafka_coord.dev.bench.rebalance.member import ModelFetchers
from kafka_coord.errors import MalformedValue
from kafka_coord.model import StartPoint, TopicPartition
from kafka_coord.settings import host_and_port
from kafka_coord.zk import SystemClock
from kafka_coord.zk.store import SessionState

_SAY_S = 0.25
_BATCH, _BATCH_S = 300, 3.0
"""The simulated reading: every ``_BATCH_S`` seconds, a batch of this many records counts as read in each partition."""
_READ_BYTES = 1 << 16
_AT_ONCE = 200
"""The maximum number of connections that a crowd opens at a time."""


@dataclass(frozen=True, slots=True)
class CrowdPlace:
    """The servers and consumers of a crowd: ``count`` consumers, numbered from ``first`` on, spread over ``groups``."""

    hosts: tuple[str, ...]
    topic: str
    session_timeout_ms: int
    groups: int
    first: int
    count: int

    def names(self) -> list[tuple[str, str]]:
        numbers = range(self.first, self.first + self.count)
        return [(f"g{number % self.groups:03}", f"c{number:05}") for number in numbers]


@dataclass(slots=True)
class CrowdState:
    """The state of a crowd. ``connected`` counts the reachable members, and ``held`` the partitions that are read.
    ``lost`` counts the lost memberships so far, and ``stopped`` the partitions that were given up.
    """

    at_ns: int = 0
    connected: int = 0
    members: int = 0
    held: int = 0
    lost: int = 0
    stopped: int = 0


class _Reading(ModelFetchers):
    """Reads partitions at an even pace."""

    def __init__(self, state: CrowdState) -> None:
        self._state = state
        self._held: dict[TopicPartition, tuple[int, float]] = {}

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        now = time.monotonic()
        for partition, start in starts.items():
            if partition not in self._held:
                self._held[partition] = max(0, start.offset), now
                self._state.held += 1

    def held_partitions(self) -> Iterable[TopicPartition]:
        return list(self._held)

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        offsets = self.uncommitted(partitions)
        for partition in offsets:
            del self._held[partition]
        self._state.held -= len(offsets)
        self._state.stopped += len(offsets)
        return offsets

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        now = time.monotonic()
        wanted = self._held if partitions is None else [one for one in partitions if one in self._held]
        return {one: self._held[one][0] + int((now - self._held[one][1]) / _BATCH_S) * _BATCH for one in wanted}

    def admissible(self, offsets: Offsets) -> Offsets:
        return {one: offset for one, offset in offsets.items() if one in self._held}

    def abandon(self) -> Iterable[TopicPartition]:
        gone = list(self._held)
        self._state.held -= len(gone)
        self._held.clear()
        return gone


class _Consumer:
    def __init__(self, place: CrowdPlace, group: str, name: str, state: CrowdState, gate: asyncio.Semaphore) -> None:
        self._search = CoordinatorSearch(place.hosts, random.uniform)
        self._gate = gate
        self._silence_s = place.session_timeout_ms / 1000 * SILENCE
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.TimerHandle | None = None
        self._due_at = float("inf")
        self.link = SocketLink(
            group,
            name,
            SystemClock(),
            session_timeout_ms=place.session_timeout_ms,
            resume_key=f"{group} {name}",
            auto_commit=True,
            wake=self._wake,
        )
        self.connector = Connector(
            self.link,
            self.link,
            _Reading(state),
            registration_value=partial(plain_member(group, place.topic, name).registration_value, self.link),
            wake=self._wake,
            auto_commit_interval_s=place.session_timeout_ms / 3000,
        )

    # --- the connector, on the loop ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._step_at(0.0)

    def _step_at(self, when: float) -> None:
        if when >= self._due_at:
            return
        if self._due is not None:
            self._due.cancel()
        self._due_at = when
        self._due = self._loop.call_at(when, self._step)

    def _step(self) -> None:
        self._due, self._due_at = None, float("inf")
        due = self.connector.step()
        if due is not None:
            self._step_at(max(due, self._loop.time()))

    # --- the connection ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self._step()
        while True:
            step = self._search.next(self._lease_left_s())
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
                continue
            host = step.host if isinstance(step, Ask) else step.endpoint
            try:
                async with asyncio.timeout(step.within_s):
                    if isinstance(step, Ask):
                        self._search.take_answer(host, await self._ask(step))
                        continue
                    connection = await self._open(host)
            except (OSError, TimeoutError, BadFrame, MalformedValue) as error:
                self._search.failed(host, error)
            else:
                await self._serve(*connection, step.coordinator)

    async def _ask(self, step: Ask) -> ClusterMetadata:
        reader, writer = await self._open(step.host)
        try:
            rpc, decoder = Rpc(), Decoder()
            writer.write(encode(rpc.ask(MessageType.CLUSTER_METADATA, step.question.to_json())[1]))
            frames: list[Frame] = []
            while not frames:
                data = await reader.read(_READ_BYTES)
                if not data:
                    raise OSError("closed the connection before it answered")
                frames = list(decoder.feed(data))
        finally:
            writer.close()
        event = rpc.take(frames[0])
        if not isinstance(event, AnsweredRequest):
            raise OSError(f"answered with {frames[0]}")
        return ClusterMetadata.from_json(event.frame)

    async def _open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = host_and_port(address)
        async with self._gate:
            return await asyncio.open_connection(host, port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Coordinator) -> None:
        """Serves one connection to the coordinator until it is lost."""
        began = self._loop.time()
        self._search.connected()
        silent, why = False, ""
        try:
            await self._read_until_lost(reader, writer)
        except TimeoutError:
            silent, why = True, "the coordinator is silent"
        except (OSError, BadFrame) as error:
            why = str(error)
        finally:
            writer.close()
        self.link.lost()
        self._search.ended(to, why, silent=silent, lasted=self._loop.time() - began > LASTED_S)

    async def _read_until_lost(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder()
        silence_s = self._silence_s * random.uniform(1.0, 1.1)  # noqa: S311
        resume_by = self._loop.time() + longest_wait(silence_s, self._lease_left_s())

        def send(frame: Frame) -> None:
            if writer.is_closing():
                raise OSError("the connection is closed")
            writer.write(encode(frame))

        self.link.connected(send, writer.close)
        while True:
            resuming = self.link.state is SessionState.SUSPENDED
            async with asyncio.timeout_at(resume_by if resuming else self._loop.time() + silence_s):
                data = await reader.read(_READ_BYTES)
            if not data:
                raise OSError("the coordinator closed the connection")
            for frame in decoder.feed(data):
                self.link.received(frame)

    def _lease_left_s(self) -> float:
        return self.link.lease_deadline() - self.link.clock.monotonic()


async def _say(consumers: list[_Consumer], state: CrowdState) -> None:
    while True:
        state.at_ns = time.monotonic_ns()
        state.connected = sum(
            one.link.state is SessionState.CONNECTED and one.connector.registration is not None for one in consumers
        )
        state.members = sum(one.connector.registration is not None for one in consumers)
        state.lost = sum(one.connector.counters.losses for one in consumers)
        sys.stdout.write(json.dumps(asdict(state)) + "\n")
        sys.stdout.flush()
        await asyncio.sleep(_SAY_S)


async def _crowd(place: CrowdPlace) -> None:
    loop, state, gate = asyncio.get_running_loop(), CrowdState(), asyncio.Semaphore(_AT_ONCE)
    consumers = [_Consumer(place, group, name, state, gate) for group, name in place.names()]
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)  # nobody writes to the pipe, so this means that it was closed
    tasks = [loop.create_task(one.run()) for one in consumers]
    tasks.append(loop.create_task(_say(consumers, state)))
    until = loop.create_task(ended.wait())
    await asyncio.wait([until, *tasks], return_when=asyncio.FIRST_COMPLETED)
    until.cancel()
    for task in tasks:
        if task.done():
            task.result()  # a task ends only because of a bug
        task.cancel()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C and ends its crowds
    logging.basicConfig(level=logging.CRITICAL)
    value = json.loads(sys.argv[1])
    asyncio.run(_crowd(CrowdPlace(**value | {"hosts": tuple(value["hosts"])})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
