"""Tests of records whose keys and values are read by functions of the application."""

from __future__ import annotations

import asyncio
import json
import pickle
import struct
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from crc32c import crc32c

from kafka_coord.cli.consume import make_formatter
from kafka_coord.consumer.record import Deserializers, Record
from kafka_coord.errors import MalformedValue
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.spark.fetching import to_arrow
from kafka_coord.wire.batches import LogRecord, encode_batch
from kafka_coord.wire.messages import message as form_of
from tests.waiting import eventually


def message(value: bytes | None, key: bytes | None = b"k") -> Any:
    fields = {"topic": "flights", "partition": 0, "offset": 7, "key": key, "value": value}
    fields |= {"timestamp": (0, 0), "headers": None}
    return SimpleNamespace(**{name: partial(fields.get, name) for name in fields})


def test_each_deserializer_runs_once_and_only_when_it_is_needed() -> None:
    calls: list[bytes] = []

    def read(data: bytes) -> Any:
        calls.append(data)
        return json.loads(data)

    record = Deserializers(value=read).record()(message(b'{"n": 1}'))
    assert calls == []
    assert (record.value, record.value, record.key) == ({"n": 1}, {"n": 1}, b"k")
    assert calls == [b'{"n": 1}']
    assert Deserializers(key=bytes.decode, value=read).record()(message(None, None)).value is None
    copied = pickle.loads(pickle.dumps(record))  # noqa: S301 - pickled by this test
    assert (copied, copied.value, copied.raw_value) == (record, {"n": 1}, b'{"n": 1}')
    assert type(Deserializers().record()(message(b"1"))) is Record


def test_an_unreadable_value_raises_an_error_that_names_its_record_when_it_is_used() -> None:
    record = Deserializers(value=json.loads).record()(message(b"{"))
    for _ in range(2):
        with pytest.raises(ValueError, match="Expecting property name") as failure:
            _ = record.value
    assert failure.value.__notes__ == ["This was the value of Record(flights-0@7 key=b'k' value=b'{')."]
    assert record.raw_value == b"{"


def with_a_header(record: LogRecord, name: bytes) -> bytes:
    """A batch with one record that has one header."""
    plain = encode_batch([record], now_ms=1_000)
    head, body = plain[21:61], plain[61:]  # after the checksum, and after the number of records
    body = body[1:-1] + bytes((2, 2 * len(name))) + name + bytes((2,)) + b"x"
    covered = head + bytes((2 * len(body),)) + body
    start = struct.pack(">qiib", 0, 9 + len(covered), -1, 2)
    return start + struct.pack(">I", crc32c(covered)) + covered


@pytest.fixture
def badly_named() -> Iterator[Any]:
    """A message with a header whose name is not UTF-8, from librdkafka's own mock cluster."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    producer.produce("flights", b"first", partition=0)
    assert producer.flush(30) == 0
    (broker,) = producer.list_topics(timeout=30).brokers.values()

    async def produce() -> None:
        request = form_of("ProduceRequest")
        batch = with_a_header(LogRecord(b"k", b"v"), b"\xff")
        partition = request.struct("PartitionProduceData")(index=0, records=batch)
        topic = request.struct("TopicProduceData")(name="flights", partition_data=(partition,))
        connection = BrokerConnection(broker.host, broker.port)
        await connection.ask("Produce", 7, request(acks=1, timeout_ms=5_000, topic_data=(topic,)))
        connection.close()

    asyncio.run(produce())
    consumer = Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("flights", 0, 1)])
    try:
        yield eventually(lambda: (one := consumer.poll(0.2)) and not one.error() and one)
    finally:
        consumer.close()


def test_headers_that_cannot_be_read_are_named_with_their_record_and_harm_no_other_field(badly_named: Any) -> None:
    """The binding raises a bare SystemError."""
    record = Record(badly_named)
    copied = pickle.loads(pickle.dumps(record))  # noqa: S301 - pickled by this test
    for one in (record, record, copied):
        assert one.raw_value == b"v"
        with pytest.raises(MalformedValue, match=r"flights-0 at 1: .* not UTF-8"):
            _ = one.headers
    assert make_formatter("{value} {headers}")(record) == "v unreadable"
    assert json.loads(make_formatter("json")(record))["headers"] is None


def test_a_spark_task_names_the_record_whose_headers_it_cannot_read(badly_named: Any) -> None:
    """Also once the interpreter has found its fast way to call: that once ended the process."""
    for _ in range(100):
        to_arrow([message(b"v")], headers=True)
    with pytest.raises(MalformedValue, match=r"flights-0 at 1: .*includeHeaders=false"):
        to_arrow([badly_named], headers=True)
    assert to_arrow([badly_named], headers=False).num_rows == 1
