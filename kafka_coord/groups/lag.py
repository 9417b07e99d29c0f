"""Reads offsets from the brokers: the start and end of each partition, and the offset at a given time."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_coord.errors import BrokerError, SettingsError
from kafka_coord.kafka.authentication import files_of
from kafka_coord.model import PartitionSet, TopicPartition, Unreadable
from kafka_coord.model.lag import LogRange
from kafka_coord.model.sequences import parts
from kafka_coord.renewed import Renewed
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Brokers, read_brokers
from kafka_coord.zk.store import Store

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


log = logging.getLogger(__name__)

CHUNK = 5_000
"""The maximum number of partitions in a request. librdkafka keeps an entry for each of them in memory."""

NO_SUCH_RECORD = -1
"""Stands for the offset of a record that does not exist."""

DEFAULT_TIMEOUT_S = 5.0
_LEADERLESS = "the partition has no live leader"


class BrokerOffsets(NamedTuple):
    """The known offsets. ``note`` says why the rest are unknown, or is ``""``."""

    offsets: Mapping[TopicPartition, int]
    note: str = ""


class BrokerRanges(NamedTuple):
    """The known logs. ``note`` says why the rest are unknown, or is ``""``."""

    ranges: Mapping[TopicPartition, LogRange]
    note: str = ""


@dataclass(slots=True)
class _ListedOffsets:
    """The response about the requested partitions: the offsets, the partitions whose leader is unavailable, and other
    problems."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    leaderless: list[TopicPartition] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


def _log_left_out(broker: Unreadable) -> None:
    log.warning("skipped a broker path=%s reason=%s", broker.path, broker.reason)


def bootstrap_servers(
    store: Store, properties: Mapping[str, str], on_left_out: Callable[[Unreadable], None] = _log_left_out
) -> str:
    """Returns ``bootstrap.servers`` if it is set, and otherwise the addresses of the live brokers. Calls
    ``on_left_out`` for each broker with an unusable registration. Raises :class:`BrokerError` if no broker is live, or
    if no live broker has a listener with the configured security protocol.
    """
    from kafka_coord.consumer.brokers import choose

    given = properties.get("bootstrap.servers") or properties.get("metadata.broker.list")
    if given:
        return given
    found = read_brokers(store) or Brokers()
    for one in found.unreadable:
        on_left_out(one)
    addresses, problem = choose(found.live, properties.get("security.protocol", "PLAINTEXT").upper(), None)
    if addresses:
        return ",".join(addresses)
    bad = "".join(f" ({one.path} cannot be read: {one.reason})" for one in found.unreadable[:1])
    raise BrokerError((problem or f"no live broker is registered below {layout.BROKER_IDS}") + bad)


class OffsetReader:
    """Queries the brokers for offsets, in batches. ``properties`` are librdkafka settings, such as those for security.
    Each query takes at most about ``timeout_s``; :meth:`ranges` needs two, and :meth:`at_time` may. Close the reader
    after use.

    A result leaves out unknown offsets and says why they are unknown. While brokers are down, commands therefore show
    an unknown lag instead of failing. With ``read_committed``, a partition ends before the first record of an open
    transaction, as it does for a consumer with that isolation level.
    """

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str],
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        read_committed: bool = False,
    ) -> None:
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import AdminClient, OffsetSpec

        self._spec = OffsetSpec
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        self._timeout_s = timeout_s
        self._errors: list[str] = []
        config: dict[str, Any] = {
            "client.id": "kafka-coord",
            "log_level": 0,
            "socket.connection.setup.timeout.ms": 3_000,
            "metadata.max.age.ms": 100,  # a topic recreated within this time corrupts librdkafka's memory (ADR 11)
        }
        config |= {**properties, "bootstrap.servers": bootstrap}
        config["error_cb"] = lambda error: self._errors.append(error.str())
        try:
            self._admin: AdminClient | None = AdminClient(config)
        except Exception as error:
            raise BrokerError(f"librdkafka rejected the broker settings: {error}") from error
        self._bootstrap = bootstrap

    def close(self) -> None:
        self._admin = None

    def latest(self, partitions: PartitionSet) -> BrokerOffsets:
        """Returns the end offsets: the high watermarks, or the last stable offsets with ``read_committed``."""
        return self._ask(partitions, self._spec.latest)

    def earliest(self, partitions: PartitionSet) -> BrokerOffsets:
        """Returns the log start offsets."""
        return self._ask(partitions, self._spec.earliest)

    def refused(self, topics: Iterable[str], earlier: Mapping[str, str]) -> dict[str, str]:
        """Returns the topics that the client is not allowed to describe or to read, each with the reason. If the
        brokers do not answer about a topic, it stays as in ``earlier``. A broker before 2.3 does not tell whether the
        client may read."""
        from confluent_kafka import KafkaError, TopicCollection
        from confluent_kafka.admin import AclOperation

        admin, refused = self._admin, {}
        if admin is None:
            return dict(earlier)
        asked = admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=self._timeout_s
        )
        concurrent.futures.wait(asked.values(), timeout=self._timeout_s + 1)
        for topic, future in asked.items():
            failure = future.exception() if future.done() else None
            if failure is not None and _code(failure) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                refused[topic] = _reason(failure)
            elif failure is not None or not future.done():
                if topic in earlier and (failure is None or _code(failure) != KafkaError.UNKNOWN_TOPIC_OR_PART):
                    refused[topic] = earlier[topic]
            else:
                rights = future.result().authorized_operations
                if rights is not None and AclOperation.READ not in rights:
                    refused[topic] = "not authorized to READ the topic"
        return refused

    def ranges(self, partitions: PartitionSet) -> BrokerRanges:
        """Returns the start and end offsets of the logs. Reads the starts first, because both only move forward."""
        starts = self.earliest(partitions)
        ends = self.latest(PartitionSet.of(starts.offsets))
        found = {tp: LogRange(starts.offsets[tp], end) for tp, end in ends.offsets.items()}
        return BrokerRanges(found, starts.note or ends.note)

    def at_time(self, partitions: PartitionSet, timestamp_ms: int) -> BrokerOffsets:
        """Returns the offset of the first record whose timestamp is ``timestamp_ms`` or later. If there is no such
        record, returns :data:`NO_SUCH_RECORD`."""
        found = self._ask(partitions, lambda: self._spec.for_timestamp(timestamp_ms))
        return BrokerOffsets(
            {tp: offset if offset >= 0 else NO_SUCH_RECORD for tp, offset in found.offsets.items()}, found.note
        )

    def _ask(self, partitions: PartitionSet, spec: Callable[[], Any]) -> BrokerOffsets:
        from confluent_kafka import KafkaException

        admin = self._admin
        if admin is None or not partitions:
            return BrokerOffsets({})
        deadline = time.monotonic() + self._timeout_s
        offsets: dict[TopicPartition, int] = {}
        trouble: list[str] = []
        asked = partitions
        for last in (False, True):
            try:
                led, unled = self._with_leader(admin, asked)
            except KafkaException as error:
                note = f"lag is unknown: no broker at {self._bootstrap} answered: {self._why(error)}"
                return BrokerOffsets(offsets, note)
            trouble += unled
            found = self._list(admin, led, spec, deadline)
            offsets |= found.offsets
            trouble += found.trouble
            if last or not found.leaderless or time.monotonic() >= deadline:
                trouble += [_LEADERLESS] * len(found.leaderless)
                break
            asked = PartitionSet.of(found.leaderless)
        return BrokerOffsets(offsets, _sentence(trouble, len(partitions)))

    def _list(
        self, admin: AdminClient, partitions: Sequence[TopicPartition], spec: Callable[[], Any], deadline: float
    ) -> _ListedOffsets:
        from confluent_kafka import KafkaError
        from confluent_kafka import TopicPartition as Wanted

        listed = _ListedOffsets()
        for chunk in parts(partitions, CHUNK):
            left_s = max(0.5, deadline - time.monotonic())
            futures = admin.list_offsets(
                {Wanted(t, p): spec() for t, p in chunk}, isolation_level=self._isolation, request_timeout=left_s
            )
            done, late = concurrent.futures.wait(futures.values(), timeout=left_s + 1)
            listed.trouble += ["no response in time"] * len(late)
            for wanted, future in futures.items():
                if future not in done:
                    continue
                partition, failure = TopicPartition(wanted.topic, wanted.partition), future.exception()
                if failure is None:
                    listed.offsets[partition] = future.result().offset
                elif _code(failure) == KafkaError.LEADER_NOT_AVAILABLE:
                    listed.leaderless.append(partition)
                else:
                    listed.trouble.append(_reason(failure))
        return listed

    def _with_leader(self, admin: AdminClient, partitions: PartitionSet) -> tuple[list[TopicPartition], list[str]]:
        """Returns the partitions that have a leader, and one problem for each of the others. librdkafka fails a whole
        batch if any of its partitions has no leader, so the caller leaves those out. If a partition loses its leader
        after this check, the caller retries.
        """
        metadata = admin.list_topics(timeout=self._timeout_s)
        led: list[TopicPartition] = []
        trouble: list[str] = []
        for tp in partitions:
            topic = metadata.topics.get(tp.topic)
            partition = topic.partitions.get(tp.partition) if topic is not None else None
            if partition is None:
                trouble.append("the brokers do not know the partition")
            elif partition.leader < 0 or partition.leader not in metadata.brokers:
                trouble.append(_LEADERLESS)
            else:
                led.append(tp)
        return led, trouble

    def _why(self, error: Exception) -> str:
        return self._errors[-1] if self._errors else _reason(error)


def _code(error: BaseException) -> int | None:
    kafka_error = error.args[0] if error.args else error
    return int(kafka_error.code()) if hasattr(kafka_error, "code") else None


def _reason(error: BaseException) -> str:
    kafka_error = error.args[0] if error.args else error
    return str(kafka_error.str()) if hasattr(kafka_error, "str") else str(error)


def _sentence(trouble: list[str], asked: int) -> str:
    if not trouble:
        return ""
    reasons = ", ".join(dict.fromkeys(trouble))
    return f"the offsets of {len(trouble)} of {asked} partitions are unknown: {reasons}"


class BrokerLog:
    """An :class:`OffsetReader` that connects on first use, so that a command that does not read offsets works without a
    broker. ``latest``, ``earliest``, ``ranges`` and ``at_time`` raise :class:`BrokerError` if no usable broker is
    registered.
    """

    def __init__(
        self,
        store: Store,
        properties: Mapping[str, str],
        on_left_out: Callable[[Unreadable], None] = _log_left_out,
        *,
        read_committed: bool = False,
    ) -> None:
        self._store = store
        self._properties = properties
        self._on_left_out = on_left_out
        self._read_committed = read_committed
        self._reader: Renewed[OffsetReader] | None = None
        """A reader is made again when certificates or passwords are renewed."""

    def latest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._connected().latest(partitions)

    def earliest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._connected().earliest(partitions)

    def at_time(self, partitions: PartitionSet, timestamp_ms: int) -> BrokerOffsets:
        return self._connected().at_time(partitions, timestamp_ms)

    def ranges(self, partitions: PartitionSet) -> BrokerRanges:
        return self._connected().ranges(partitions)

    def known_ranges(self, partitions: PartitionSet) -> BrokerRanges:
        """Like :meth:`ranges`, but puts the text of a :class:`BrokerError` into the note instead of raising it."""
        if not partitions:
            return BrokerRanges({})
        try:
            return self.ranges(partitions)
        except BrokerError as error:
            return BrokerRanges({}, f"lag is unknown: {error}")

    def ends(self, partitions: PartitionSet) -> Mapping[TopicPartition, int]:
        """Like :meth:`latest`, without the note. If no end is known, connects anew next time, because the brokers may
        have other addresses by then."""
        found = self.latest(partitions).offsets
        if not found:
            self.close()
        return found

    def _connected(self) -> OffsetReader:
        if self._reader is None:
            try:
                self._reader = Renewed("credentials for reading offsets", files_of(self._properties), self._open)
            except SettingsError as error:
                raise BrokerError(str(error)) from error
        return self._reader.newest()

    def _open(self) -> OffsetReader:
        try:
            bootstrap = bootstrap_servers(self._store, self._properties, self._on_left_out)
            return OffsetReader(bootstrap, self._properties, read_committed=self._read_committed)
        except BrokerError as error:
            raise SettingsError(str(error)) from error

    def close(self) -> None:
        if self._reader is not None:
            self._reader.newest().close()
        self._reader = None


FRESH_S = 4.0


class LogRangeCache:
    """Requests the starts and ends of logs from the brokers and caches them. ``properties`` are librdkafka settings.
    Thread-safe. :meth:`read` can be used as a ``LogRanges``."""

    def __init__(self, store: Store, properties: Mapping[str, str]) -> None:
        self._log = BrokerLog(store, properties)
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, tuple[float, LogRange]] = {}
        self._failed: tuple[float, str] = (0.0, "")

    def read(self, partitions: PartitionSet) -> tuple[Mapping[TopicPartition, LogRange], str]:
        """Returns the known logs, and why the rest are unknown. The offsets are at most :data:`FRESH_S` seconds
        old, unless a request has failed within the last :data:`FRESH_S` seconds."""
        now = time.monotonic()
        with self._lock:
            stale = PartitionSet.of(tp for tp in partitions if self._read_at(tp) <= now - FRESH_S)
            note = ""
            if stale and now < self._failed[0]:
                note = self._failed[1]
            elif stale:
                note = self._ask(stale, now)
            return {tp: self._known[tp][1] for tp in partitions if tp in self._known}, note

    def known(self, partitions: PartitionSet) -> tuple[Mapping[TopicPartition, LogRange], str]:
        """Like :meth:`read`, but does not query the brokers, so the offsets may be older."""
        known, (until, note) = dict(self._known), self._failed
        found = {tp: known[tp][1] for tp in partitions if tp in known}
        return found, note if time.monotonic() < until and len(found) < len(partitions) else ""

    def close(self) -> None:
        with self._lock:
            self._log.close()

    def _read_at(self, tp: TopicPartition) -> float:
        return self._known[tp][0] if tp in self._known else -FRESH_S

    def _ask(self, partitions: PartitionSet, now: float) -> str:
        found, note = self._log.known_ranges(partitions)
        for tp in partitions:  # a lag computed from an old end offset would be wrong
            self._known.pop(tp, None)
        self._known |= {tp: (now, log) for tp, log in found.items()}
        if note:
            self._failed = (time.monotonic() + FRESH_S, note)
        return note
