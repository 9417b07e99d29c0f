"""A broker whose answers are odd: one field of most answers is hostile, and some frames are broken.

Its oddness is what is tested. It speaks only what the commands ask.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.wire.batches import LogRecord, encode_batch
from kafka_coord.wire.consumer_protocol import encoded_assignment, encoded_subscription
from kafka_coord.wire.frames import API_VERSIONS, RequestHeader, answer_frame, client_software, peek, read_header
from kafka_coord.wire.messages import BadMessage, Message, Record, Struct, message, read_definition
from tests.fuzzing.mutations import Form, spoilt
from tests.fuzzing.odd_values import TEXTS, make_odd
from tests.fuzzing.tree_targets import LOGGED, log_record

GROUP = "billing"
"""A group that the broker knows."""
KNOWN = (
    "ApiVersions", "Metadata", "FindCoordinator", "ListGroups", "DescribeGroups", "OffsetFetch", "OffsetCommit",
    "OffsetDelete", "DeleteGroups", "LeaveGroup", "ListOffsets", "Fetch", "DescribeConfigs", "DescribeCluster",
    "Produce",
)  # fmt: skip
_NAMES = {message(f"{name}Request").api_key: name for name in KNOWN}
_MADE_ODD = 0.5
_BROKEN = 0.06


def _fit(record: Record, of: Struct, version: int) -> None:
    """Gives the fields that the version does not have their defaults."""
    for field in of.fields:
        if version not in field.versions:
            setattr(record, field.name, getattr(type(record)(), field.name))
        elif field.struct is not None:
            value = getattr(record, field.name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Record):
                    _fit(one, field.struct, version)


class OddBroker:
    """A broker that listens at ``port``. :meth:`becomes` chooses its answers."""

    def __init__(self) -> None:
        self.port = 0
        self.spares_librdkafka = True
        """Whether librdkafka gets only answers that it does not interpret: it is native code, in which an odd answer
        ends the process: a segmentation fault of librdkafka 2.x, not an exception."""
        self.sane = True
        """Whether it answers as a broker would."""
        self.names: tuple[str, ...] = (GROUP, "orders", "flown")
        """The groups that it lists."""
        self.log_partitions: Sequence[int] = range(PARTITIONS)
        self.log_start = 0
        """The beginning of each log, which ends at 10."""
        self.told: list[str] = []
        """Its odd answers since the last :meth:`becomes`."""
        self._calm = True
        """Whether the present answer has only sane names."""
        self._chance = Random(0)
        self._calls: dict[str, Callable[[Any, Message], Any]] = {
            "ApiVersions": self._api_versions,
            "Metadata": self._metadata,
            "FindCoordinator": self._coordinator,
            "ListGroups": self._groups,
            "DescribeGroups": self._described,
            "OffsetFetch": self._offsets,
            "OffsetCommit": self._per_partition,
            "OffsetDelete": self._per_partition,
            "DeleteGroups": self._deleted,
            "LeaveGroup": self._left,
            "ListOffsets": self._log_offsets,
            "Fetch": self._fetched,
            "DescribeConfigs": self._configs,
            "Produce": self._produced,
        }

    def becomes(self, chance: Random, *, sane: bool = False) -> None:
        """From now on, ``chance`` decides what is odd."""
        self._chance, self.sane, self.told = chance, sane, []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection until its client, an odd answer or the end of the test ends it."""
        is_native = False
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(length)
                is_native = is_native or (peek(frame)[0] == API_VERSIONS and bool(client_software(frame)))
                answer, goes_on = self.answer(frame, is_native=is_native and self.spares_librdkafka)
                writer.write(answer)
                await writer.drain()
                if not goes_on:
                    break
        writer.close()

    def answer(self, frame: bytes, *, is_native: bool = False) -> tuple[bytes, bool]:
        """Returns the bytes to send, and whether the connection goes on after them."""
        key, version = peek(frame)
        name = _NAMES.get(key)
        if name is None or version not in message(f"{name}Request").versions:
            if key != API_VERSIONS:
                return b"", False
            name, version = "ApiVersions", 0  # with UNSUPPORTED_VERSION, as a broker would
            header = RequestHeader(key, 0, int.from_bytes(frame[4:8], "big"))
            return answer_frame(header, message("ApiVersionsResponse"), self._api_versions(None, 35)), True
        form = message(f"{name}Request")
        header, at = read_header(frame, flexible=version in form.flexible)
        request, response = form.decode(frame, version, at), message(f"{name}Response")
        self._calm = self.sane or is_native
        for _ in range(100):
            answer = self._calls[name](request, response) if name in self._calls else response()
            _fit(answer, read_definition(response.name).struct, version)
            if is_native:
                self._spoil_log_offsets(name, answer)
            elif not self.sane:
                self._spoil(name, answer)
            with suppress(BadMessage, TypeError, AttributeError, ValueError, OverflowError):
                made = answer_frame(header, response, answer)
                return (made, True) if is_native else self._framed(made, name)
        return b"", False

    def _spoil(self, name: str, answer: Any) -> None:
        if self._chance.random() < _MADE_ODD:
            for _ in range(self._chance.choice((1, 1, 1, 2, 5))):
                make_odd(answer, self._chance)
            self.told.append(f"{name}: {str(answer)[:2_000]}")

    def _spoil_log_offsets(self, name: str, answer: Any) -> None:
        """Makes odd what librdkafka passes on without using it."""
        if name == "ListOffsets" and not self.sane:
            for one in (part for topic in answer.topics for part in topic.partitions):
                if self._chance.random() < _MADE_ODD:
                    one.offset = self._chance.choice((-1, 0, 3, 2**63 - 1, -(2**63), one.offset))
                    one.error_code = self._chance.choice((0, 0, 0, 1, 3, 29, 119, 30_000, -1))
            self.told.append(f"{name}: {str(answer)[:2_000]}")

    def _framed(self, made: bytes, name: str) -> tuple[bytes, bool]:
        if self.sane or self._chance.random() >= _BROKEN:
            return made, True
        cut = self._chance.randrange(len(made))
        broken = self._chance.choice((
            (made[:cut], False),
            (b"\xff\xff\xff\xff" + made[4:], True),
            (b"\x7f\xff\xff\xff" + made[4:], False),
            ((len(made) - 4 - min(5, len(made) - 8)).to_bytes(4, "big") + made[4:], False),
            (made + made, True),
            (made[:8] + self._chance.randbytes(len(made) - 8), True),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        ))  # fmt: skip
        self.told.append(f"{name}: {broken[0][:200]!r}")
        return broken

    # --- what a broker would answer ----------------------------------------------------------------------------------

    def _name(self, sane: str) -> str:
        return sane if self._calm or self._chance.random() < 0.8 else self._chance.choice(TEXTS)

    def _api_versions(self, request: Any, code: int | Message) -> Any:
        del request
        form = message("ApiVersionsResponse")
        one = form.struct("ApiVersion")
        known = tuple(
            one(api_key=key, min_version=versions.first, max_version=versions.last)
            for key, name in _NAMES.items()
            if (versions := message(f"{name}Request").versions) and key is not None
        )
        return form(api_keys=known, error_code=code if isinstance(code, int) else 0)

    def _metadata(self, request: Any, form: Message) -> Any:
        partition, topic = form.struct("MetadataResponsePartition"), form.struct("MetadataResponseTopic")
        known = {"flights": range(2), TOPIC: self.log_partitions}
        asked = [one.name for one in request.topics] if request.topics is not None else list(known)
        topics = tuple(
            topic(
                name=self._name(name),
                error_code=0 if name in known else 3,
                partitions=tuple(
                    partition(partition_index=number, leader_id=1, leader_epoch=0, replica_nodes=(1,), isr_nodes=(1,))
                    for number in known.get(name, ())
                ),
            )
            for name in asked
            if name is not None
        )
        broker = form.struct("MetadataResponseBroker")(node_id=1, host="127.0.0.1", port=self.port)
        return form(brokers=(broker,), cluster_id="odd", controller_id=1, topics=topics)

    def _coordinator(self, request: Any, form: Message) -> Any:
        one = form.struct("Coordinator")
        many = tuple(one(key=key, node_id=1, host="127.0.0.1", port=self.port) for key in request.coordinator_keys)
        return form(node_id=1, host="127.0.0.1", port=self.port, coordinators=many)

    def _groups(self, request: Any, form: Message) -> Any:
        del request
        one, names = form.struct("ListedGroup"), map(self._name, self.names)
        return form(
            groups=tuple(
                one(group_id=name, protocol_type="consumer", group_state="Stable", group_type="classic")
                for name in names
            )
        )

    def _described(self, request: Any, form: Message) -> Any:
        one, who = form.struct("DescribedGroup"), form.struct("DescribedGroupMember")
        topic, is_empty = self._name("flights"), self._chance.random() < 0.5
        rest = {
            "client_id": self._name("c"),
            "client_host": self._name("/127.0.0.1"),
            "member_metadata": encoded_subscription(topic),
            "member_assignment": encoded_assignment([(topic, 0), (topic, 1)]),
        }
        return form(
            groups=tuple(
                one(
                    group_id=self._name(name),
                    group_state="Empty" if is_empty else "Stable",
                    protocol_type="consumer",
                    protocol_data="range",
                    members=()
                    if is_empty
                    else (who(member_id="m1", **rest), who(member_id="m2", group_instance_id="i2", **rest)),
                )
                for name in request.groups
            )
        )

    def _offsets(self, request: Any, form: Message) -> Any:
        def topics(end: str) -> tuple[Any, ...]:
            partition = form.struct(f"OffsetFetchResponsePartition{end}")
            parts = (
                partition(partition_index=0, committed_offset=5, metadata=""),
                partition(partition_index=1, committed_offset=7, metadata=""),
            )
            return (form.struct(f"OffsetFetchResponseTopic{end}")(name=self._name("flights"), partitions=parts),)

        one = form.struct("OffsetFetchResponseGroup")
        groups = tuple(one(group_id=asked.group_id, topics=topics("s")) for asked in request.groups or ())
        return form(topics=topics(""), groups=groups)

    def _per_partition(self, request: Any, form: Message) -> Any:
        kind = form.name.removesuffix("Response")
        topic, part = form.struct(f"{kind}ResponseTopic"), form.struct(f"{kind}ResponsePartition")
        return form(
            topics=tuple(
                topic(name=one.name, partitions=tuple(part(partition_index=p.partition_index) for p in one.partitions))
                for one in request.topics
            )
        )

    def _deleted(self, request: Any, form: Message) -> Any:
        one = form.struct("DeletableGroupResult")
        return form(results=tuple(one(group_id=name) for name in request.groups_names))

    def _left(self, request: Any, form: Message) -> Any:
        one = form.struct("MemberResponse")
        return form(members=tuple(one(member_id=who.member_id) for who in request.members))

    def _log_offsets(self, request: Any, form: Message) -> Any:
        topic, part = form.struct("ListOffsetsTopicResponse"), form.struct("ListOffsetsPartitionResponse")
        return form(
            topics=tuple(
                topic(
                    name=one.name,
                    partitions=tuple(
                        part(
                            partition_index=p.partition_index,
                            offset=self.log_start if p.timestamp == -2 else 10,
                            timestamp=1,
                        )
                        for p in one.partitions
                    ),
                )
                for one in request.topics
            )
        )

    def _fetched(self, request: Any, form: Message) -> Any:
        topic, part = form.struct("FetchableTopicResponse"), form.struct("PartitionData")
        return form(
            responses=tuple(
                topic(
                    topic=one.topic,
                    partitions=tuple(
                        part(partition_index=p.partition, high_watermark=10, records=self._records(p.fetch_offset))
                        for p in one.partitions
                    ),
                )
                for one in request.topics
            )
        )

    def _produced(self, request: Any, form: Message) -> Any:
        topic, part = form.struct("TopicProduceResponse"), form.struct("PartitionProduceResponse")
        return form(
            responses=tuple(
                topic(name=one.name, partition_responses=tuple(part(index=p.index) for p in one.partition_data))
                for one in request.topic_data
            )
        )

    def _records(self, at: int) -> bytes:
        """One record, so that whoever waits for the next one need not wait."""
        record = LogRecord(None, b"a record")
        if not self._calm and self._chance.random() < 0.8:
            record = log_record(spoilt(self._chance, LOGGED, Form.BINARY)[:10_000])
        batch = encode_batch([record], now_ms=1_700_000_000_000)
        return at.to_bytes(8, "big") + batch[8:]  # the checksum does not cover the offset

    def _configs(self, request: Any, form: Message) -> Any:
        result, config = form.struct("DescribeConfigsResult"), form.struct("DescribeConfigsResourceResult")
        return form(
            results=tuple(
                result(
                    resource_type=one.resource_type,
                    resource_name=one.resource_name,
                    configs=tuple(config(name=name, value=self._name("2")) for name in one.configuration_keys or ()),
                )
                for one in request.resources
            )
        )


@contextmanager
def running() -> Iterator[OddBroker]:
    """Runs a broker in a thread of its own."""
    broker, loop, ready = OddBroker(), asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        broker.port = server.sockets[0].getsockname()[1]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()

    task = loop.create_task(serve())
    thread = threading.Thread(target=lambda: _run(loop, task), name="odd-broker", daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield broker
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
    loop.close()


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # what they have closed is closed in the next pass of the loop
