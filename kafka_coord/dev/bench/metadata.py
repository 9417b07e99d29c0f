"""Measures what the mirror of a cluster's metadata costs, how soon a new partition is seen, and a change of source.

Broker and topics are made up: a child process answers requests for metadata as a broker does, so that 100,000
partitions need no disk. ZooKeeper and the instance are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.coordinator.execute import in_parts
from kafka_coord.dev.bench.children import Child
from kafka_coord.dev.bench.failover.groups import ManyGroups
from kafka_coord.dev.bench.failover.instances import Instance
from kafka_coord.dev.bench.group import zookeeper
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Setup, Spread, Table
from kafka_coord.dev.bench.usage import cpu_meter
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.zookeeper import ZooKeeperSettings
from kafka_coord.model import topic_id_from_bytes, topic_id_to_bytes
from kafka_coord.spark.session import find_java
from kafka_coord.wire.frames import API_VERSIONS, RequestHeader, answer_frame, peek, read_header
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.root import Source, read_cluster_record, tell_changed
from kafka_coord.zk.store import Create, Store

_METADATA, _VERSION, _UNKNOWN_ID = 3, 12, 100
_WITHIN_S = 120.0
_SESSION_MS = 20_000


@dataclass(frozen=True, slots=True)
class MetadataOptions(BenchOptions):
    """The mirror's cost is measured with ``topics`` of ``partitions`` each, over ``seconds`` for each row. A new
    partition is made ``repeat`` times. ``groups`` groups exist while the source changes."""

    topics: int = 10_000
    partitions: int = 10
    seconds: float = 60.0
    groups: int = 1_000
    repeat: int = 10


SMOKE = MetadataOptions(topics=20, partitions=2, seconds=1.0, groups=3, repeat=1, judged=False)


def run_metadata_bench(options: MetadataOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    with _testbed(directory / "groups", 100, 10, options.groups, on_progress) as testbed:
        changed = testbed.change()
        on_progress(f"{options.groups:,} groups: {changed['changed_ms']:,.0f} ms, {changed['rewritten']} rewritten")
        polled = [testbed.grow(is_told=False) for _ in range(options.repeat)]
        told = [testbed.grow(is_told=True) for _ in range(options.repeat)]
    seen = [
        {"how": how, **Spread.some(found).to_json()} for how, found in (("by asking", polled), ("by a request", told))
    ]
    on_progress(f"a new partition is started after {seen[0]['median']:.0f} ms, or {seen[1]['median']:.0f} ms")
    with _testbed(directory / "topics", options.topics, options.partitions, 1, on_progress) as testbed:
        costs = [testbed.cost("Kafka's own znodes", options.seconds)]
        testbed.change()
        costs.append(testbed.cost("the mirror", options.seconds))
        costs.append(testbed.cost("the mirror, a new partition every 5 s", options.seconds, grows_every_s=5.0))
        for one in costs:
            on_progress(f"{one['metadata']}: {one['cpu_percent']:.1f} % of a core")
    tables = [Table("change of source", [changed]), Table("new partition", seen), Table("cost", costs)]
    extra = costs[1]["cpu_percent"] - costs[0]["cpu_percent"]
    bars = [
        Bar.at_most("change of source", 2_000, changed["changed_ms"], " ms"),
        Bar.at_most("targets and ledgers rewritten", 0, changed["rewritten"]),
        Bar.at_most("new partition, by a request through an instance (worst)", 200, max(told), " ms"),
        Bar.at_most("new partition, by asking (worst)", 1_500, max(polled), " ms"),
        Bar.at_most("the mirror, as a share of one core", 5.0, round(extra, 2), " %"),
    ]
    return BenchReport.of("metadata", setup, options, tables, bars)


class _Testbed:
    """An instance beside a broker that is made up."""

    def __init__(self, store: Store, instance: Instance, broker: Child, many: ManyGroups, one: ManyGroups) -> None:
        self._store, self._instance, self._broker, self._many, self._one = store, instance, broker, many, one

    def change(self) -> dict[str, Any]:
        """Makes the metadata come from the brokers."""
        written = self._many.written()
        began = time.monotonic()
        self._store.create(layout.MIGRATION)

        def is_changed() -> bool:
            record = read_cluster_record(self._store)
            return record is not None and record.source is Source.BROKERS

        awaited(is_changed, _WITHIN_S, "the change of source")
        changed_ms = round((time.monotonic() - began) * 1000)
        time.sleep(3.0)  # whatever a group does because of it
        now = self._many.written()
        rewritten = sum(now.get(path) != zxid for path, zxid in written.items())
        return {"groups": len(self._many.names), "changed_ms": changed_ms, "rewritten": rewritten}

    def grow(self, *, is_told: bool) -> float:
        """Adds a partition. Returns after how many ms a member is told to start it. With ``is_told``, like an instance
        through which the request has passed."""
        commands = layout.channel(self._one.names[0], "c000")
        time.sleep(1.0)
        began = time.monotonic()
        self._order()
        if is_told:
            tell_changed(self._store)
        awaited(lambda: self._store.children(commands), _WITHIN_S, "the new partition", every_s=0.002)
        took = (time.monotonic() - began) * 1000
        self._one.acknowledge_all(_WITHIN_S, lambda _: None)
        return took

    def cost(self, metadata: str, seconds: float, grows_every_s: float | None = None) -> dict[str, Any]:
        """Returns the instance's CPU time. Adds partitions meanwhile, if ``grows_every_s`` is given."""
        used = cpu_meter(self._instance.process.pid)
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            if grows_every_s is not None:
                self._order()
            time.sleep(min(left, grows_every_s or left))
        percent = 100 * used() / (time.monotonic() - began)
        return {"metadata": metadata, "seconds": seconds, "cpu_percent": round(percent, 2)}

    def _order(self) -> None:
        """Makes the broker add a partition to the first topic."""
        self._broker.orders.write(b"grow\n")
        self._broker.orders.flush()
        self._broker.line(30.0)


@contextmanager
def _testbed(directory: Path, topics: int, partitions: int, groups: int, on_progress: OnProgress) -> Iterator[_Testbed]:
    directory.mkdir(parents=True)
    port = free_port()
    broker = Child("metadata", json.dumps([port, topics, partitions]), directory / "broker.log")
    broker.line(60.0)
    on_progress(f"starting ZooKeeper for {topics:,} topics and {groups:,} groups")
    settings = ZooKeeperSettings(tick_ms=500, heap_mb=1_024)
    with contextlib.closing(broker), zookeeper(directory, settings, session_timeout_ms=60_000) as (server, store):
        endpoint = {"endpoints": [f"PLAINTEXT://{LOOPBACK}:{port}"], "listener_security_protocol_map": {}}
        store.create(layout.broker(1), json.dumps(endpoint).encode())
        values = {_name(number): topic_value(partitions, topic_id=_topic_id(number)) for number in range(topics)}
        for ops in in_parts([Create(layout.broker_topic(name), value) for name, value in values.items()]):
            store.multi(ops)
        many, one = ManyGroups(store, _name(1), groups, 1), ManyGroups(store, _name(0), 1, 1, prefix="grows")
        for some in (many, one):
            some.register(on_progress)
        instance = Instance(directory, 1, server.connect_string, _SESSION_MS)
        instance.start(store)
        try:
            for some in (many, one):
                some.acknowledge_all(_WITHIN_S, on_progress)
            time.sleep(3.0)
            yield _Testbed(store, instance, broker, many, one)
        finally:
            instance.process.stop()


def _name(number: int) -> str:
    return f"topic-{number:05}"


def _topic_id(number: int) -> str:
    return topic_id_from_bytes((number + 1).to_bytes(16, "big"))


# --- the broker -------------------------------------------------------------------------------------------------------


class _Broker:
    """Answers requests for metadata, about topics of one broker."""

    def __init__(self, port: int, topics: int, partitions: int) -> None:
        self._port, self._counts = port, [partitions] * topics
        self._listing = b""

    def grow(self) -> None:
        self._counts[0] += 1
        self._listing = b""

    def _topics(self, numbers: Sequence[int]) -> tuple[Any, ...]:
        form = message("MetadataResponse")
        part, topic = form.struct("MetadataResponsePartition"), form.struct("MetadataResponseTopic")
        parts = [
            part(partition_index=one, leader_id=1, leader_epoch=0, replica_nodes=(1,), isr_nodes=(1,))
            for one in range(max(self._counts))
        ]
        return tuple(
            topic(
                name=_name(number),
                topic_id=topic_id_to_bytes(_topic_id(number)),
                partitions=tuple(parts[: self._counts[number]]),
            )
            for number in numbers
        )

    def answer(self, frame: bytes) -> bytes:
        key, version = peek(frame)
        if key == API_VERSIONS:
            form = message("ApiVersionsResponse")
            entry = form.struct("ApiVersion")
            told = tuple(entry(api_key=one, max_version=last) for one, last in ((_METADATA, _VERSION), (key, 0)))
            return answer_frame(RequestHeader(key, 0, int.from_bytes(frame[4:8], "big")), form, form(api_keys=told))
        header, at = read_header(frame, flexible=True)
        asked = message("MetadataRequest").decode(frame, version, at).topics
        if asked is None and self._listing:
            return self._listing[:4] + frame[4:8] + self._listing[8:]  # with the correlation id of this request
        numbers = range(len(self._counts))
        wanted = {one.name for one in asked or ()}
        found = self._topics([one for one in numbers if asked is None or _name(one) in wanted])
        form = message("MetadataResponse")
        brokers = (form.struct("MetadataResponseBroker")(node_id=1, host=LOOPBACK, port=self._port),)
        made = answer_frame(header, form, form(brokers=brokers, topics=found, cluster_id="bench", controller_id=1))
        if asked is None:
            self._listing = made
        return made

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.write(self.answer(frame))
                await writer.drain()
        writer.close()


async def _serve(port: int, topics: int, partitions: int) -> None:
    """Serves until standard input ends. Each line there adds a partition."""
    broker = _Broker(port, topics, partitions)
    server = await asyncio.start_server(broker.serve, LOOPBACK, port)
    print(flush=True)  # noqa: T201  tells that it listens
    while await asyncio.to_thread(sys.stdin.readline):
        broker.grow()
        print(flush=True)  # noqa: T201  tells that it has grown
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(*json.loads(sys.argv[1])))
