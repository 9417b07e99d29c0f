"""Writes many records to a topic, each exactly once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from kafka_coord.errors import BrokerError, NotFound, RequestRefused

OnCount = Callable[[int], None]

_REPORT_EVERY = 5_000
_FULL_WAIT_S = 0.05
_ANY_PARTITION = -1
_REFUSALS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.TOPIC_AUTHORIZATION_FAILED}
_UNKNOWN = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}
_SETTINGS = {
    "enable.idempotence": True,  # otherwise a retry could write a record twice
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 200_000,
    # the partitioner of the Java client, so that a key gets the same partition as with Kafka's own tools
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    "log_level": 0,
}


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
            **_SETTINGS,
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
        raise _failed(error.args[0], topic, handed) from error
    finally:
        producer.purge()
    if failures:
        raise _failed(failures[0], topic, handed)
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


def _failed(error: KafkaError, topic: str, handed: int) -> BrokerError | NotFound | RequestRefused:
    message = f"cannot write record {handed} or an earlier record to {topic}: {error.str()}"
    if error.code() in _UNKNOWN:
        return NotFound(f"{message}; create the topic first")
    if error.code() in _REFUSALS:
        return RequestRefused(message)
    return BrokerError(message)
