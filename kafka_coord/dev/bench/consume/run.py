"""Runs the consumer benchmark: one broker, a topic of flights, and each way of reading in turn."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from kafka_coord.dev.bench.children import Child
from kafka_coord.dev.bench.consume.reading import Read, ReadMode, Task
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Drawing, Setup, Spread, Table
from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.flights import read_flights
from kafka_coord.dev.cluster.jars import KAFKA_VERSION
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import BrokerError, KafkaCoordError, Timeout
from kafka_coord.kafka.librdkafka import produce
from kafka_coord.spark.session import find_java

_WITHIN_S = 300.0
_LEAST_SHARE = {
    ReadMode.BATCH: 0.90,
    ReadMode.MESSAGES: 0.90,
    ReadMode.ITERATION: 0.60,
    ReadMode.ASYNC_BATCH: 0.45,
}
"""The required records per second, as a share of the bare client's with its default settings."""
_LATENCY_WAYS = (ReadMode.BARE, ReadMode.BARE_SET, ReadMode.BATCH)

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ConsumeOptions(BenchOptions):
    """The benchmark reads ``records`` records ``repeat`` times in each way, after ``warm_up`` rounds that do not count.
    To measure the latency, it then writes ``records_per_s`` records a second for ``seconds``.
    """

    records: int = 1_000_000
    partitions: int = 12
    repeat: int = 5
    warm_up: int = 1
    records_per_s: int = 1_000
    seconds: float = 20.0


SMOKE = ConsumeOptions(records=5_000, partitions=3, repeat=1, warm_up=0, records_per_s=200, seconds=0.5, judged=False)


def run_consume_bench(options: ConsumeOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``, with one broker. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(kafka=KAFKA_VERSION, java=find_java().version)
    with DevCluster(directory / "cluster", brokers=1, coordinators=True, on_progress=on_progress) as cluster:
        testbed = _ConsumeTestbed(cluster.zookeeper, cluster.bootstrap_servers, directory / "reader.log", options)
        on_progress(f"writing {options.records:,} flights")
        topic = testbed.filled_topic()
        reads = []
        for number in range(-options.warm_up, options.repeat):
            for way in tuple(ReadMode) if number % 2 == 0 else tuple(reversed(ReadMode)):
                found = testbed.read(way, topic)
                which = f"{number + 1}." if number >= 0 else "warming up:"
                on_progress(
                    f"{which} {way}: {found.records_per_s:,.0f} records/s, "
                    f"{found.cpu_s_per_million:.2f} s of CPU per million records"
                )
                if number >= 0:
                    reads.append(found)
        topic = testbed.new_topic()
        latencies = []
        for way in _LATENCY_WAYS:
            latencies.append(testbed.latency(way, topic))
            on_progress(
                f"{way}: {Spread.some(latencies[-1].latency_ms).median:.1f} ms from the producer to the application"
            )
    return BenchReport.of("consume", setup, options, [throughput(reads), latency(latencies)], bars(reads))


class _ConsumeTestbed:
    def __init__(self, zookeeper: str, bootstrap: str, log: Path, options: ConsumeOptions) -> None:
        self._zookeeper, self._bootstrap, self._log, self._options = zookeeper, bootstrap, log, options

    def new_topic(self) -> str:
        name = f"bench-{next(_numbers)}"
        TopicAdmin(self._bootstrap).create(name, self._options.partitions)
        return name

    def filled_topic(self) -> str:
        """Writes the records, spread evenly over the partitions, in large batches like those of a busy producer."""
        name = self.new_topic()
        flights = itertools.cycle([flight.value for flight in read_flights(20_000)])
        produce(
            self._bootstrap,
            name,
            ((None, value) for value in itertools.islice(flights, self._options.records)),
            properties={"sticky.partitioning.linger.ms": 0, "partitioner": "random"},
        )
        return name

    def read(self, way: ReadMode, topic: str) -> Read:
        with self._reader(way, topic, self._options.records) as reader:
            return _answer(reader)

    def latency(self, way: ReadMode, topic: str) -> Read:
        """Writes records one by one at an even pace, while the reader waits for them."""
        count = max(1, int(self._options.records_per_s * self._options.seconds))
        with self._reader(way, topic, count, latency=True) as reader:
            if _line(reader) != "ready":
                raise BrokerError(f"a reader ended before it read a record; see {self._log}")
            feeding = threading.Thread(target=self._feed, args=(topic, count), name="bench-feeding", daemon=True)
            feeding.start()
            try:
                return _answer(reader)
            finally:
                feeding.join()

    def _feed(self, topic: str, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0, "log_level": 0})
        partitions = itertools.cycle(range(self._options.partitions))
        due = time.monotonic()
        for _ in range(count):
            producer.produce(topic, value=f"{time.monotonic_ns():020d}".encode(), partition=next(partitions))
            producer.poll(0)
            due += 1 / self._options.records_per_s
            time.sleep(max(0.0, due - time.monotonic()))
        producer.flush(30)

    @contextmanager
    def _reader(self, way: ReadMode, topic: str, records: int, *, latency: bool = False) -> Iterator[Child]:
        group, partitions = f"bench-{next(_numbers)}", self._options.partitions
        task = Task(way, self._zookeeper, self._bootstrap, group, topic, partitions, records, latency)
        reader = Child("consume.reading", task.encoded(), self._log)
        try:
            yield reader
        finally:
            reader.process.terminate()  # it waits for its records, not for orders
            reader.close()


def _line(reader: Child) -> str:
    answer = reader.line(_WITHIN_S)
    if answer is None:
        raise Timeout(f"a reader did not finish within {_WITHIN_S:.0f} s; see {reader.log}")
    return answer.decode().strip()


def _answer(reader: Child) -> Read:
    line = _line(reader)
    try:
        found = json.loads(line)
    except ValueError:
        raise KafkaCoordError(f"a reader ended without a result; see {reader.log}") from None
    if "problem" in found:
        raise BrokerError(found["problem"])
    return Read(**found | {"way": ReadMode(found["way"])})


# --- results ---------------------------------------------------------------------------------------------------------


def throughput(reads: Sequence[Read]) -> Table:
    rows = []
    bare, bare_set = (
        Spread.of([one.records_per_s for one in reads if one.way is way]) for way in (ReadMode.BARE, ReadMode.BARE_SET)
    )
    for way in ReadMode:
        found = [one for one in reads if one.way is way]
        if not found:
            continue
        rates = Spread.some([one.records_per_s for one in found])
        rows.append(
            {
                "way": str(way),
                "n": rates.n,
                "records_per_s": round(rates.median),
                "least_records_per_s": round(rates.least),
                "most_records_per_s": round(rates.most),
                "share_of_bare": round(rates.median / bare.median, 3) if bare else None,
                "share_of_bare_set": round(rates.median / bare_set.median, 3) if bare_set else None,
                "cpu_s_per_million": round(Spread.some([one.cpu_s_per_million for one in found]).median, 2),
            }
        )
    return Table("throughput", rows, [Drawing(("way",), "records_per_s", "most_records_per_s")])


def latency(reads: Sequence[Read]) -> Table:
    """Returns the table of latencies from the producer to the application."""
    rows = []
    for one in reads:
        spread = Spread.some(one.latency_ms)
        rows.append(
            {
                "way": str(one.way),
                "records": spread.n,
                "median_ms": round(spread.median, 2),
                "p99_ms": round(spread.p99, 2),
                "max_ms": round(spread.most, 2),
            }
        )
    return Table("latency", rows, [Drawing(("way",), "median_ms", "p99_ms")])


def bars(reads: Sequence[Read]) -> list[Bar]:
    found = {row["way"]: row["share_of_bare"] for row in throughput(reads).rows}
    return [
        Bar(
            f"{way}, as a share of the bare client's records/s",
            f"at least {least:.0%}",
            "not measured" if found.get(way) is None else f"{found[way]:.0%}",
            None if found.get(way) is None else found[way] >= least,
        )
        for way, least in _LEAST_SHARE.items()
    ]
