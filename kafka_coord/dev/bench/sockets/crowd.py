"""Many socket consumers in one process: the real link and connector of each over a connection of its own, on one event
loop; their fetchers read nothing but their clock, and always have something to commit.

``python -m kafka_coord.dev.bench.sockets.crowd PLACE`` registers them all, says every quarter of a second how they are,
a line of JSON each, and ends when nobody listens to its standard input any more.
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
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from kafka_coord.channel.client import CONNECT_S, SILENCE
from kafka_coord.channel.frames import BadFrame, Decoder, Frame, encode
from kafka_coord.channel.link import SocketLink
from kafka_coord.channel.messages import ClusterMetadata, MessageType, MetadataQuestion
from kafka_coord.channel.operations import Offsets
from kafka_coord.channel.rpc import Answered, Conversation
from kafka_coord.consumer.connector import Connector
from kafka_coord.dev.bench.group import plain_member
from kafka_coord.errors import MalformedValue
from kafka_coord.model import StartPoint, TopicPartition
from kafka_coord.zk.clock import SystemClock
from kafka_coord.zk.store import SessionState

_SAY_S = 0.25
_BATCH, _BATCH_S = 300, 3.0
"""How many records of a partition are said to have been read every so often: in batches, as applications do."""
_READ_BYTES = 1 << 16
_AT_ONCE = 200
"""How many connections of a crowd are being made at a time."""


@dataclass(frozen=True, slots=True)
class CrowdPlace:
    """Where a crowd belongs, and which of all consumers it is: ``count`` of them from number ``first`` on, spread over
    ``groups``."""

    hosts: tuple[str, ...]
    topic: str
    session_timeout_ms: int
    groups: int
    first: int
    count: int

    def names(self) -> list[tuple[str, str]]:
        """The group and the name of each."""
        numbers = range(self.first, self.first + self.count)
        return [(f"g{number % self.groups:03}", f"c{number:05}") for number in numbers]


@dataclass(slots=True)
class CrowdState:
    """How a crowd is. ``connected`` members may be talked to, ``held`` partitions are being read; ``lost`` counts the
    memberships lost so far, ``stopped`` the partitions given up."""

    at_ns: int = 0
    connected: int = 0
    members: int = 0
    held: int = 0
    lost: int = 0
    stopped: int = 0


class _Reading:
    """Implements :class:`kafka_coord.consumer.fetching.Fetchers` for partitions that are read at an even pace."""

    def __init__(self, state: CrowdState) -> None:
        self._state = state
        self._held: dict[TopicPartition, tuple[int, float]] = {}

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        now = time.monotonic()
        for partition, start in starts.items():
            if partition not in self._held:
                self._held[partition] = max(0, start.offset), now
                self._state.held += 1

    def resolved(self) -> bool:
        return True

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        del partitions

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        del partitions

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        del partitions
        return False

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

    def stored(self, offsets: Offsets) -> None:
        del offsets

    def abandon(self) -> Iterable[TopicPartition]:
        gone = list(self._held)
        self._state.held -= len(gone)
        self._held.clear()
        return gone

    def orphans_in_hand(self) -> bool:
        return False


class _Consumer:
    """One of the crowd."""

    def __init__(self, place: CrowdPlace, group: str, name: str, state: CrowdState, gate: asyncio.Semaphore) -> None:
        self._hosts = list(place.hosts)
        random.shuffle(self._hosts)
        self._question = MetadataQuestion()
        self._gate = gate
        self._silence_s = place.session_timeout_ms / 1000 * SILENCE
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.TimerHandle | None = None
        self._due_at = float("inf")
        self._writer: asyncio.StreamWriter | None = None
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
            try:
                connection = await self._connect()
                if connection is None:
                    await asyncio.sleep(random.uniform(0.05, 0.3))  # noqa: S311
                    continue
                self._question = MetadataQuestion()
                why = await self._read_until_lost(*connection)
            except (OSError, TimeoutError, BadFrame, MalformedValue, asyncio.IncompleteReadError) as error:
                why = str(error)
                await asyncio.sleep(random.uniform(0.05, 0.3))  # noqa: S311
            self.link.lost(why)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """As the real client: one host after the other, whoever was asked comes last the next time."""
        for host in list(self._hosts):
            self._hosts.remove(host)
            self._hosts.append(host)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(2 * CONNECT_S + self._question.wait_ms / 1000):
                    endpoint = await self._ask_who_coordinates(host)
                    if endpoint is not None:
                        return await self._open(endpoint)
        return None

    async def _ask_who_coordinates(self, host: str) -> str | None:
        reader, writer = await self._open(host)
        try:
            conversation, decoder = Conversation(), Decoder()
            writer.write(encode(conversation.ask(MessageType.CLUSTER_METADATA, self._question.to_json())[1]))
            frames: list[Frame] = []
            while not frames:
                data = await reader.read(_READ_BYTES)
                if not data:
                    return None
                frames = list(decoder.feed(data))
        finally:
            writer.close()
        event = conversation.take(frames[0])
        found = ClusterMetadata.from_json(event.frame).coordinator if isinstance(event, Answered) else None
        self._question = MetadataQuestion.waiting(found)
        return found.endpoint if found is not None else None

    async def _open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = address.rpartition(":")
        async with self._gate:
            return await asyncio.open_connection(host, int(port))

    async def _read_until_lost(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        decoder = Decoder()

        def send(frame: Frame) -> None:
            if writer.is_closing():
                raise OSError("the connection is closed")
            writer.write(encode(frame))

        self.link.connected(send, writer.close)
        try:
            while True:
                async with asyncio.timeout(self._silence_s * random.uniform(1.0, 1.1)):  # noqa: S311
                    data = await reader.read(_READ_BYTES)
                if not data:
                    return "the coordinator closed the connection"
                for frame in decoder.feed(data):
                    self.link.received(frame)
        finally:
            writer.close()


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
    loop.add_reader(sys.stdin.fileno(), ended.set)  # nothing is ever written to it: it is closed
    tasks = [loop.create_task(one.run()) for one in consumers]
    tasks.append(loop.create_task(_say(consumers, state)))
    until = loop.create_task(ended.wait())
    await asyncio.wait([until, *tasks], return_when=asyncio.FIRST_COMPLETED)
    until.cancel()
    for task in tasks:
        if task.done():
            task.result()  # it never ends but by a defect
        task.cancel()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which ends its crowds
    logging.basicConfig(level=logging.CRITICAL)
    value = json.loads(sys.argv[1])
    asyncio.run(_crowd(CrowdPlace(**value | {"hosts": tuple(value["hosts"])})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
