"""Watches the cluster while the demo runs, as an operator would."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from msgspec import structs

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.demo.journal import now_ms
from kafka_coord.dev.demo.timeline import Reign, Sample
from kafka_coord.errors import KafkaCoordError, MalformedValue, NoNode, NotFound, StoreUnavailable, Timeout
from kafka_coord.groups.group import GroupDescription, LogRanges
from kafka_coord.groups.managed import describe_group
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import CoordinatorInfo, Decision, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 0.05
_SAMPLE_S = 0.4
_AWAY_S = 30.0
"""How long ZooKeeper may be unreachable: three session timeouts of this client."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The latest view of the group. ``group`` is None before the group exists."""

    at_ms: int
    coordinator: CoordinatorInfo | None = None
    group: GroupDescription | None = None
    sample: Sample | None = None

    @property
    def committed(self) -> int:
        """The number of committed records in all partitions."""
        return sum(self.sample.committed.values()) if self.sample else 0


@dataclass(frozen=True, slots=True)
class GroupNow:
    """The group at one moment. It is ``stable`` if every member owns its target. ``coordinator`` is the broker id of
    the instance that coordinates the group. ``pending`` is the number of outstanding commands. ``words`` is the group's
    state as text.
    """

    stable: bool
    words: str
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    coordinator: int | None = None
    pending: int = 0


class Watcher:
    """A thread that reads ZooKeeper and the brokers, keeps samples, and calls ``on_view`` with every view. While
    ZooKeeper or a broker does not answer, it takes no samples, but raises no error either.
    """

    def __init__(
        self, store: Store, bootstrap_servers: str, group: str, topic: str, on_view: Callable[[GroupView], None]
    ) -> None:
        self._store = store
        self._offsets = OffsetReader(bootstrap_servers, {})
        self._group = group
        self._topic = topic
        self._on_view = on_view
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._reigns: list[Reign] = []
        self._view = GroupView(now_ms())
        self._crash: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._offsets.close()

    @property
    def view(self) -> GroupView:
        with self._lock:
            return self._view

    @property
    def samples(self) -> tuple[Sample, ...]:
        with self._lock:
            return tuple(self._samples)

    def reigns(self, killed: Mapping[int, int], until_ms: int) -> tuple[Reign, ...]:
        """Returns the terms of the coordinators. ``killed`` maps an epoch to the time when its coordinator was killed,
        because the znode of a killed coordinator remains for a session timeout.
        """
        with self._lock:
            seen = list(self._reigns)
        return tuple(
            replace(
                reign, to_ms=min(killed.get(reign.epoch, reign.to_ms if at + 1 < len(seen) else until_ms), until_ms)
            )
            for at, reign in enumerate(seen)
        )

    def elected_ms(self, epoch: int) -> int | None:
        """Returns when the coordinator of an epoch was elected, or None if the watcher never saw it."""
        with self._lock:
            return next((reign.from_ms for reign in self._reigns if reign.epoch == epoch), None)

    def wait_for(self, condition: Callable[[GroupView], bool], what: str, timeout_s: float) -> GroupView:
        """Waits for a view that meets the condition, and returns it. Raises :class:`~kafka_coord.errors.Timeout`."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._crash is not None:
                raise self._crash
            view = self.view
            if condition(view):
                return view
            if time.monotonic() >= deadline:
                raise Timeout(f"timed out after {timeout_s:.0f} s waiting for {what}")
            time.sleep(_POLL_S)

    def describe(self, *, lag: bool = True) -> GroupDescription:
        """Reads the group, waiting while ZooKeeper is unavailable. Without ``lag``, does not ask the brokers. Raises
        :class:`~kafka_coord.errors.NotFound` and ``StoreError``.
        """
        log_ranges = self._offsets.ranges if lag else None
        return self._patiently(lambda: self._read(log_ranges))

    def now(self) -> GroupNow:
        """Reads the group without end offsets. A group that does not exist yet is not stable."""
        try:
            found = self.describe(lag=False)
        except NotFound as error:
            return GroupNow(stable=False, words=str(error))
        rows = {row.tp: row for row in found.offsets}
        return GroupNow(
            stable=found.state is GroupState.STABLE,
            words=f"{found.state} ({found.reason})",
            owners={partition: row.owner for partition, row in rows.items() if row.owner},
            committed={partition: row.committed_offset or 0 for partition, row in rows.items()},
            members=frozenset(member.consumer for member in found.members if member.registered),
            coordinator=found.coordinator,
            pending=found.pending,
        )

    def history(self) -> tuple[Decision, ...]:
        """Returns the last decisions about the group, oldest first."""
        path = layout.history(self._group)
        try:
            node = self._patiently(lambda: self._store.get(path))
        except NoNode:
            return ()
        return Trail.from_json(fields.load(node.data, path), path).decisions

    def _patiently(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + _AWAY_S
        while True:
            try:
                return ask()
            except StoreUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)

    def _read(self, log_ranges: LogRanges | None) -> GroupDescription:
        return named_by_client_id(self._described(log_ranges))

    def _described(self, log_ranges: LogRanges | None) -> GroupDescription:
        return describe_group(self._store, self._group, log_ranges)

    def _run(self) -> None:
        sampled = 0.0
        while not self._closing.wait(_POLL_S):
            try:
                self._look_at_coordinator()
                if time.monotonic() - sampled >= _SAMPLE_S:
                    sampled = time.monotonic()
                    self._take_sample()
                    self._on_view(self.view)
            except NotFound:
                self._on_view(self.view)
            except KafkaCoordError:  # no answer at the moment; the next view follows soon
                continue
            except Exception as error:  # a bug; the waiting callers must learn of it, or they would wait forever
                log.exception("stopped watching")
                self._crash = error
                return

    def _look_at_coordinator(self) -> None:
        try:
            node = self._store.get(layout.COORDINATOR)
            info = CoordinatorInfo.from_bytes(node.data, layout.COORDINATOR)
        except (NoNode, MalformedValue):
            info = None
        at_ms = now_ms()
        with self._lock:
            self._view = replace(self._view, at_ms=at_ms, coordinator=info)
            if info is None:
                return
            if not self._reigns or self._reigns[-1].epoch != info.epoch:
                self._reigns.append(Reign(info.broker_id, info.epoch, node.stat.ctime_ms, at_ms))
            else:
                self._reigns[-1] = replace(self._reigns[-1], to_ms=at_ms)

    def _take_sample(self) -> None:
        asked_ms = now_ms()
        found = self._read(self._offsets.ranges)
        rows = [row for row in found.offsets if row.topic == self._topic]
        sample = Sample(
            at_ms=now_ms(),
            committed={row.tp: row.committed_offset or 0 for row in rows},
            ends={row.tp: row.end_offset for row in rows if row.end_offset is not None},
            owners={row.tp: row.owner for row in rows if row.owner},
            pending={member.consumer: len(member.pending) for member in found.members if member.pending},
            asked_ms=asked_ms,
        )
        with self._lock:
            self._view = replace(self._view, at_ms=sample.at_ms, group=found, sample=sample)
            if not found.lag_note:
                self._samples.append(sample)


def named_by_client_id(found: GroupDescription) -> GroupDescription:
    """Returns the description with stock Kafka clients named by their ``client.id``."""
    names = {one.consumer: one.client or one.consumer for one in found.members if one.channel == "kafka"}
    return replace(
        found,
        members=tuple(
            structs.replace(member, consumer=names.get(member.consumer, member.consumer)) for member in found.members
        ),
        offsets=tuple(
            structs.replace(row, owner=row.owner and names.get(row.owner, row.owner)) for row in found.offsets
        ),
    )
