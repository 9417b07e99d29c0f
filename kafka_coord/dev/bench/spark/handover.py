"""Measures how fast a reading query acknowledges a stop-fetcher when another member joins."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_coord.consumer.consumer import Consumer
from kafka_coord.dev.bench.spark.testbed import OURS, MicroBatch, Running, SparkTestbed
from kafka_coord.errors import NoNode, StoreError, Timeout
from kafka_coord.zk import layout
from kafka_coord.zk.session import connect
from kafka_coord.zk.store import Store, WatchEvent

QUERY = "query"
_WITHIN_S = 90.0
_POLL_S = 0.5
_SETTLING_S = 2.0


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop-fetcher. ``ms`` is the time from its znode's ctime to its observed deletion, both by this machine's clock.
    ``micro_batch_ms`` is the duration of the micro-batch that was running when the command was created, or None.
    """

    ms: float
    micro_batch_ms: int | None


@dataclass(frozen=True, slots=True)
class Handovers:
    """``trigger_ms`` is the query's trigger interval, or 0 if micro-batches run back to back."""

    trigger_ms: int
    partitions: int
    rows_per_s: float
    stops: Sequence[Stop]
    batches: Sequence[MicroBatch]


def hand_over(testbed: SparkTestbed, partitions: int, *, trigger_ms: int, rows_per_s: int, joins: int) -> Handovers:
    """Runs a query that reads new records, while a consumer joins its group and leaves, ``joins`` times."""
    topic = testbed.new_topic(partitions)
    trigger = {"processingTime": f"{trigger_ms} milliseconds"}
    with (
        testbed.query(OURS, topic, trigger=trigger, startingOffsets="earliest", consumerId=QUERY) as running,
        testbed.feeding(topic, max(1, rows_per_s // 20), every_s=0.05) as feeding,
        contextlib.closing(connect(testbed.zookeeper)) as store,
    ):
        running.await_rows(rows_per_s, _WITHIN_S)
        with _Commands(store, running.group) as commands:
            began, written = time.monotonic(), feeding.written
            found = [
                (ctime, gone)
                for _ in range(joins)
                for ctime, gone in _join_and_leave(testbed, running, topic, commands)
            ]
            written_per_s = (feeding.written - written) / (time.monotonic() - began)
        time.sleep(_SETTLING_S)  # Spark reports a micro-batch only when it has ended
        batches = running.batches()
    stops = [Stop((gone - ctime) * 1000, _at_work(batches, ctime)) for ctime, gone in found]
    return Handovers(trigger_ms, partitions, written_per_s, stops, [batch for batch in batches if batch.rows])


def _join_and_leave(
    testbed: SparkTestbed, running: Running, topic: str, commands: _Commands
) -> Iterator[tuple[float, float]]:
    with Consumer(
        zookeeper=testbed.zookeeper, group=running.group, topics=[topic], auto_offset_reset="earliest"
    ) as consumer:
        deadline = time.monotonic() + _WITHIN_S
        found: list[tuple[float, float]] = []
        while not found:
            consumer.consume(1_000, timeout_s=0.1)
            running.batches()
            found = commands.stops()
            if not found and time.monotonic() >= deadline:
                raise Timeout(f"the query acknowledged no stop-fetcher within {_WITHIN_S:.0f} s after a member joined")
        consumer.consume(1_000, timeout_s=0.5)
    time.sleep(_SETTLING_S)
    yield from found


def _at_work(batches: Sequence[MicroBatch], at: float) -> int | None:
    return next((one.ms for one in batches if one.rows and one.began <= at <= one.began + one.ms / 1000), None)


class _Commands:
    """Watches the query's commands appear and disappear, on a thread."""

    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        self._group = group
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._found: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bench-commands", daemon=True)

    def stops(self) -> list[tuple[float, float]]:
        """Returns the creation and deletion times (seconds since 1970) of each stop-fetcher since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._found.get_nowait())
        return found

    def _run(self) -> None:
        there: dict[str, float | None] = {}
        while not self._ended.is_set():
            self._changed.clear()
            with contextlib.suppress(StoreError):
                self._check(there)
            self._changed.wait(_POLL_S)

    def _check(self, there: dict[str, float | None]) -> None:
        try:
            names = self._store.children(layout.channel(self._group, QUERY), self._wake)
        except NoNode:
            names = ()
        now = time.time()
        for gone in there.keys() - set(names):
            if (made := there.pop(gone)) is not None:
                self._found.put((made, now))
        for new in set(names) - there.keys():
            with contextlib.suppress(NoNode):
                node = self._store.get(layout.command(self._group, QUERY, new))
                there[new] = node.stat.ctime_ms / 1000 if _is_stop(node.data) else None

    def _wake(self, _event: WatchEvent) -> None:
        self._changed.set()

    def __enter__(self) -> _Commands:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._changed.set()
        self._thread.join()


def _is_stop(data: bytes) -> bool:
    value: Mapping[str, Any] = json.loads(data)
    return value.get("type") == "stop-fetcher"
