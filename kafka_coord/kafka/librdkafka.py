"""Asks the brokers through librdkafka: for an application's consumer, which has a client of librdkafka anyway, and
where a site secures its brokers in a way that this project's own connection does not know (GSSAPI, OAUTHBEARER). Also
reads and writes applications' records."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
)
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, OffsetSpec

from kafka_coord.errors import BrokerError, NotFound, RequestRefused, SettingsError
from kafka_coord.kafka.authentication import renewed_from
from kafka_coord.model import TopicPartition
from kafka_coord.model.offsets import EARLIEST, LATEST, LEADERLESS, UNKNOWN_PARTITION, ListedOffsets
from kafka_coord.model.sequences import parts

rdkafka_log = logging.getLogger("kafka_coord.librdkafka")

GROUP_PREFIX = "kafka-coord."
"""The prefix of the groups that librdkafka's consumers name. librdkafka requires a ``group.id`` even if a consumer only
assigns partitions to itself, and looks up that group's coordinator (issue 3261); no setting prevents it. No one joins
these groups or commits to them, so no one needs a right to them: whoever may not describe the group reads all the same,
and the error that librdkafka reports is ignored."""
_ASK_S = 5.0
_MOST_IN_A_REQUEST = 5_000
"""librdkafka keeps an entry in memory for each partition of a request."""
_NEVER_A_PROPERTY = "kafka_coord.nothing"
_UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,  # no requested partition has a leader
    }
)

OnCount = Callable[[int], None]

_REPORT_EVERY = 5_000
_FULL_WAIT_S = 0.05
_ANY_PARTITION = -1
_RECORD_REFUSALS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.TOPIC_AUTHORIZATION_FAILED}
_NO_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}
_PRODUCER_SETTINGS = {
    "enable.idempotence": True,  # otherwise a retry could write a record twice
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 200_000,
    # the partitioner of the Java client, so that a key gets the same partition as with Kafka's own tools
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    "log_level": 0,
}


def why_refused(properties: Mapping[str, Any]) -> str:
    """Returns why librdkafka does not accept one of the properties, or "". Creates no client: the last property is
    always refused. Raises TypeError, ValueError or AttributeError for a property that takes a function."""
    try:
        Consumer({"group.id": "", **properties, _NEVER_A_PROPERTY: ""})
    except KafkaException as error:
        why = str(error.args[0].str())
        return "" if f'"{_NEVER_A_PROPERTY}"' in why else why
    return ""


def admin_client(settings: Mapping[str, Any]) -> AdminClient:
    """Returns a client that asks about topics and offsets. Metadata must expire soon: if a topic is recreated before
    its metadata expires, librdkafka corrupts its own memory (ADR 11)."""
    return AdminClient({**settings, "metadata.max.age.ms": 100}, logger=rdkafka_log)


class LogOffsets:
    """Requests offsets through an admin client (:attr:`admin`), which is ``None`` until a broker is known. With
    ``uncommitted``, records of open transactions also count."""

    def __init__(self, *, uncommitted: bool) -> None:
        self.admin: AdminClient | None = None
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED

    def ask_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
        """Requests the end offsets and returns futures without waiting for the responses. Raises :class:`BrokerError`
        while no broker is known."""
        return self.ask(dict.fromkeys(partitions, OffsetSpec.latest()), _ASK_S)

    def ask_rights(self, topics: Iterable[str], timeout_s: float = _ASK_S) -> dict[str, Future[Any]]:
        """Requests descriptions of topics, which say what the client may do with them. Returns futures, and nothing
        while no broker is known. librdkafka asks the controller: in KRaft mode, that is any broker which the last
        metadata has named. As long as that is away, librdkafka tries to connect thousands of times a second. So the
        metadata is requested first."""
        admin, told = self.admin, {topic: Future[Any]() for topic in topics}
        if admin is None or not told:
            return {}

        def ask() -> None:
            try:
                admin.list_topics(next(iter(told)), timeout=timeout_s)
                asked = admin.describe_topics(
                    TopicCollection(list(told)), include_authorized_operations=True, request_timeout=timeout_s
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, who waits for an answer must get one
                if not isinstance(error, KafkaException):
                    error = KafkaException(KafkaError(KafkaError._FAIL, repr(error)))
                for future in told.values():
                    future.set_exception(error)
                return
            for topic, future in asked.items():
                future.add_done_callback(partial(_pass_on, told[topic]))

        threading.Thread(target=ask, name="kafka-coord-rights", daemon=True).start()
        return told

    def beginnings(self, partitions: Iterable[TopicPartition], timeout_s: float = _ASK_S) -> dict[TopicPartition, int]:
        """Returns the first offset in each log. Raises :class:`BrokerError` and :class:`NotFound`, like the methods
        below."""
        return self._answers(dict.fromkeys(partitions, OffsetSpec.earliest()), timeout_s)

    def ends(self, partitions: Iterable[TopicPartition], timeout_s: float = _ASK_S) -> dict[TopicPartition, int]:
        """Returns the offset of the next record in each log."""
        return self._answers(dict.fromkeys(partitions, OffsetSpec.latest()), timeout_s)

    def at_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float = _ASK_S
    ) -> dict[TopicPartition, int | None]:
        """Returns the offset of each partition's first record at or after the given time, or ``None`` if there is no
        such record."""
        wanted = {partition: OffsetSpec.for_timestamp(time_ms) for partition, time_ms in times_ms.items()}
        found = self._answers(wanted, timeout_s)
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    def _answers(self, wanted: Mapping[TopicPartition, OffsetSpec], timeout_s: float) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        offsets = {}
        for partition, future in self.ask(wanted, timeout_s).items():
            try:
                offsets[partition] = int(future.result().offset)
            except KafkaException as error:
                kind = NotFound if error.args[0].code() in _UNKNOWN else BrokerError
                raise kind(f"cannot get an offset of {partition}: {error.args[0].str()}") from error
        return offsets

    def ask(self, wanted: Mapping[TopicPartition, OffsetSpec], timeout_s: float) -> dict[TopicPartition, Future[Any]]:
        """Requests offsets and returns futures. Raises :class:`BrokerError` while no broker is known."""
        admin = self.admin
        if admin is None:
            raise BrokerError("cannot request offsets: no broker is known yet")
        asked = admin.list_offsets(
            {Assigned(*partition): spec for partition, spec in wanted.items()},
            isolation_level=self._isolation,
            request_timeout=timeout_s,
        )
        return {TopicPartition(one.topic, one.partition): _told(future) for one, future in asked.items()}


def _told(asked: Future[Any]) -> Future[Any]:
    """Returns a future that fails where librdkafka returns, without an error, an offset that no broker has told. It
    does so while a leader goes away."""
    told: Future[Any] = Future()

    def pass_on(done: Future[Any]) -> None:
        if done.exception() is None and done.result().offset == OFFSET_INVALID:
            told.set_exception(_untold())
        else:
            _pass_on(told, done)

    asked.add_done_callback(pass_on)
    return told


def _pass_on(told: Future[Any], done: Future[Any]) -> None:
    failure = done.exception()
    if failure is not None:
        told.set_exception(failure)
    else:
        told.set_result(done.result())


def _untold() -> KafkaException:
    why = "no broker has told an offset"
    return KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, why, retriable=True))


@dataclass(slots=True)
class _Answers:
    """The response about the requested partitions: the offsets, the partitions whose leader is unavailable, and other
    problems."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    leaderless: list[TopicPartition] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


class LibrdkafkaClient:
    """A :class:`~kafka_coord.kafka.client.KafkaClient` that asks through librdkafka. Its client is made again when
    certificates or passwords are renewed. Raises :class:`BrokerError` for properties that librdkafka refuses."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        self._bootstrap = bootstrap
        self._errors: list[str] = []

        def made() -> AdminClient:
            config: dict[str, Any] = {
                "client.id": "kafka-coord",
                "log_level": 0,
                "socket.connection.setup.timeout.ms": 3_000,
                **properties,
                "bootstrap.servers": bootstrap,
                "error_cb": lambda error: self._errors.append(error.str()),
            }
            try:
                return admin_client(config)
            except Exception as error:
                raise SettingsError(f"librdkafka rejected the broker settings: {error}") from error

        try:
            self._admin = renewed_from(properties, made)
        except SettingsError as error:
            raise BrokerError(str(error)) from error

    def close(self) -> None:
        """librdkafka's client ends with its last reference."""

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool, timeout_s: float
    ) -> ListedOffsets:
        deadline = time.monotonic() + timeout_s
        listed = ListedOffsets()
        logs = LogOffsets(uncommitted=not read_committed)
        logs.admin = self._admin.newest()
        asked: Sequence[TopicPartition] = list(partitions)
        for last in (False, True):
            led, unled = self._with_leader(logs.admin, asked, timeout_s)
            listed.trouble += unled
            found = _list(logs, led, timestamp, deadline)
            listed.offsets |= found.offsets
            listed.trouble += found.trouble
            if last or not found.leaderless or time.monotonic() >= deadline:
                listed.trouble += [LEADERLESS] * len(found.leaderless)
                break
            asked = found.leaderless
        return listed

    def _with_leader(
        self, admin: AdminClient, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> tuple[list[TopicPartition], list[str]]:
        """Returns the partitions that have a leader, and one problem for each of the others. librdkafka fails a whole
        batch if any of its partitions has no leader, so the caller leaves those out. If a partition loses its leader
        after this check, the caller retries."""
        metadata = self._topics(admin, timeout_s)
        led: list[TopicPartition] = []
        trouble: list[str] = []
        for tp in partitions:
            topic = metadata.topics.get(tp.topic)
            partition = topic.partitions.get(tp.partition) if topic is not None else None
            if partition is None:
                trouble.append(UNKNOWN_PARTITION)
            elif partition.leader < 0 or partition.leader not in metadata.brokers:
                trouble.append(LEADERLESS)
            else:
                led.append(tp)
        return led, trouble

    def _topics(self, admin: AdminClient, timeout_s: float) -> Any:
        """Requests all topics, because a request for one could make the brokers create it."""
        try:
            return admin.list_topics(timeout=timeout_s)
        except KafkaException as error:
            why = self._errors[-1] if self._errors else _reason(error)
            raise BrokerError(f"no broker at {self._bootstrap} answered: {why}") from error

    def refused(self, topics: Iterable[str], timeout_s: float) -> dict[str, str | None]:
        logs = LogOffsets(uncommitted=True)
        logs.admin = self._admin.newest()
        asked = logs.ask_rights(topics, timeout_s)
        concurrent.futures.wait(asked.values(), timeout=timeout_s + 1)
        refused: dict[str, str | None] = {}
        for topic, future in asked.items():
            failure = future.exception() if future.done() else None
            if failure is not None and _code(failure) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                refused[topic] = _reason(failure)
            elif failure is not None or not future.done():
                if failure is None or _code(failure) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    refused[topic] = None
            else:
                rights = future.result().authorized_operations
                if rights is not None and AclOperation.READ not in rights:
                    refused[topic] = "not authorized to READ the topic"
        return refused

    def led_partitions(self, topic: str, timeout_s: float) -> int:
        described = self._topics(self._admin.newest(), timeout_s).topics.get(topic)
        if described is None or described.error is not None:
            return 0
        return sum(partition.leader >= 0 for partition in described.partitions.values())

    def create_topic(self, topic: str, partitions: int, replication: int, timeout_s: float) -> bool:
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=replication)
        admin = self._admin.newest()
        try:
            admin.create_topics([wanted], operation_timeout=timeout_s)[topic].result(timeout_s + 5)
        except KafkaException as error:
            if _code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise RequestRefused(f"cannot create topic {topic}: {_reason(error)}") from None
        return True


def _list(logs: LogOffsets, partitions: Sequence[TopicPartition], timestamp: int, deadline: float) -> _Answers:
    special = {EARLIEST: OffsetSpec.earliest, LATEST: OffsetSpec.latest}.get(timestamp)
    listed = _Answers()
    for chunk in parts(partitions, _MOST_IN_A_REQUEST):
        left_s = max(0.5, deadline - time.monotonic())
        specs = {tp: special() if special else OffsetSpec.for_timestamp(timestamp) for tp in chunk}
        futures = logs.ask(specs, left_s)
        done, late = concurrent.futures.wait(futures.values(), timeout=left_s + 1)
        listed.trouble += ["no response in time"] * len(late)
        for partition, future in futures.items():
            if future not in done:
                continue
            failure = future.exception()
            if failure is None:
                listed.offsets[partition] = future.result().offset
            elif _code(failure) == KafkaError.LEADER_NOT_AVAILABLE:
                listed.leaderless.append(partition)
            else:
                listed.trouble.append(_reason(failure))
    return listed


def log_bounds(client: Consumer, partition: Assigned, timeout_s: float) -> tuple[int, int]:
    """Returns the log's first offset and its end. Raises :class:`KafkaException`, a retriable one if no broker has told
    them."""
    found = client.get_watermark_offsets(partition, timeout=timeout_s)
    if found is None or OFFSET_INVALID in found:
        raise _untold()
    low, high = found
    return int(low), int(high)


def first_records(
    bootstrap: str, properties: Mapping[str, str], wanted: Mapping[TopicPartition, int], within_s: float
) -> dict[TopicPartition, tuple[int, bool, int | None] | None]:
    """Reads each partition from the given offset on, as a consumer with ``read_committed``, until the first record or
    the end. Returns its offset, whether it is a record, and its timestamp (ms since 1970; ``None`` if it has none);
    ``None`` for a partition that this client may not read. Leaves out partitions of which it learned nothing in time.
    Raises :class:`BrokerError` for refused properties."""
    settings: dict[str, Any] = {
        "client.id": "kafka-coord",
        "log_level": 0,
        "group.id": f"{GROUP_PREFIX}lag",
        **properties,
        "bootstrap.servers": bootstrap,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
        "max.partition.fetch.bytes": 65_536,  # a broker sends one whole batch, however large
        "fetch.max.bytes": 4_194_304,
        "queued.min.messages": 1,
    }
    try:
        client = Consumer(settings)
    except (KafkaException, ValueError) as error:
        raise BrokerError(f"librdkafka rejected the broker settings: {error}") from error
    try:
        client.assign([Assigned(tp.topic, tp.partition, at) for tp, at in wanted.items()])
        return _first_of_each(client, wanted, within_s)
    finally:
        threading.Thread(target=_close, args=(client,), name="kafka-coord-lag-close", daemon=True).start()


def _close(client: Consumer) -> None:
    """Closes a client. Call this on a separate thread, because librdkafka may take a second to close it."""
    client.close()


def _first_of_each(
    client: Consumer, wanted: Mapping[TopicPartition, int], within_s: float
) -> dict[TopicPartition, tuple[int, bool, int | None] | None]:
    """Waits for the first record, the end, or a refusal of each partition."""
    found: dict[TopicPartition, tuple[int, bool, int | None] | None] = {}
    deadline = time.monotonic() + within_s
    while len(found) < len(wanted) and (left_s := deadline - time.monotonic()) > 0:
        message = client.poll(min(left_s, 0.5))
        if message is None or message.topic() is None:
            continue
        tp, error = TopicPartition(message.topic(), message.partition()), message.error()
        if tp not in wanted or tp in found:
            continue
        if error is None:
            kind, timestamp_ms = message.timestamp()
            found[tp] = message.offset(), True, timestamp_ms if kind != TIMESTAMP_NOT_AVAILABLE else None
        elif error.code() == KafkaError._PARTITION_EOF:
            found[tp] = message.offset(), False, None
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            found[tp] = None
        else:
            continue
        client.incremental_unassign([Assigned(tp.topic, tp.partition)])
    return found


def produce(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    partitions: Sequence[int] = (),
    on_count: OnCount | None = None,
    properties: Mapping[str, Any] | None = None,
    timeout_s: float = 60.0,
) -> int:
    """Writes all ``records`` (key, value), waits until the brokers have acknowledged all of them, and returns how many
    there were. If ``partitions`` is given, each record goes to one of them, by the hash of its key. ``on_count`` is
    called from time to time with the number of records queued in librdkafka so far. ``properties`` are librdkafka
    settings.

    Raises :class:`~kafka_coord.errors.NotFound` if the topic does not exist, and
    :class:`~kafka_coord.errors.RequestRefused` for a record that Kafka refuses. Raises
    :class:`~kafka_coord.errors.BrokerError` if the brokers do not acknowledge all records within ``timeout_s`` seconds
    after the last one was queued; how many were written is then unknown.
    """
    failures: list[KafkaError] = []
    producer = Producer(
        {
            **_PRODUCER_SETTINGS,
            "message.timeout.ms": round(timeout_s * 1000),
            **(properties or {}),
            "bootstrap.servers": bootstrap_servers,
            "on_delivery": lambda error, _message: failures.append(error),
        }
    )
    handed = 0
    try:
        for handed, (key, value) in enumerate(records, 1):
            partition = partitions[zlib.crc32(key or b"") % len(partitions)] if partitions else _ANY_PARTITION
            _hand_over(producer, topic, key, value, partition)
            if handed % _REPORT_EVERY == 0:
                producer.poll(0)
                if failures:
                    break
                if on_count is not None:
                    on_count(handed)
        left = producer.flush(0 if failures else timeout_s)
    except KafkaException as error:
        raise _not_written(error.args[0], topic, handed) from error
    finally:
        producer.purge()
    if failures:
        raise _not_written(failures[0], topic, handed)
    if left:
        raise BrokerError(f"{left} of {handed} records for {topic} were not acknowledged within {timeout_s:.0f} s")
    if on_count is not None:
        on_count(handed)
    return handed


def _hand_over(producer: Producer, topic: str, key: bytes | None, value: bytes | None, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, key=key, value=value, partition=partition)
        except BufferError:
            producer.poll(_FULL_WAIT_S)  # the loop ends because undeliverable records time out and leave the queue
        else:
            return


def _not_written(error: KafkaError, topic: str, handed: int) -> BrokerError | NotFound | RequestRefused:
    message = f"cannot write record {handed} or an earlier record to {topic}: {error.str()}"
    if error.code() in _NO_TOPIC:
        return NotFound(f"{message}; create the topic first")
    if error.code() in _RECORD_REFUSALS:
        return RequestRefused(message)
    return BrokerError(message)


def _code(error: BaseException) -> int | None:
    kafka_error = error.args[0] if error.args else error
    return int(kafka_error.code()) if hasattr(kafka_error, "code") else None


def _reason(error: BaseException) -> str:
    kafka_error = error.args[0] if error.args else error
    return str(kafka_error.str()) if hasattr(kafka_error, "str") else str(error)


def is_about_no_group(error: KafkaError) -> bool:
    """Returns whether the error only says that the user has no right to such a group."""
    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)
