"""Input to the listener for Kafka clients: frames to decode, and streams through connection and dispatcher."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.frontends.kafka.access import BrokerAccess
from kafka_coord.frontends.kafka.clients import ClientLimits, Clients
from kafka_coord.frontends.kafka.connection import ClientConnection
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.frontends.kafka.instances import Instances
from kafka_coord.frontends.kafka.routing import LOCAL, Patches, expects_answer, is_local, patch_api_versions
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.grouplog.term import PARTITIONS
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.wire.consumer_protocol import subscribed_topics
from kafka_coord.wire.frames import RequestHeader, peek, read_header, request_frame
from kafka_coord.wire.messages import BadMessage, message
from tests.frontends.kafka.callers import Everything, NoManagedGroups, NoNativeGroups
from tests.fuzzing.mutations import Form
from tests.fuzzing.target import Target
from tests.wire.values import random_message

_KNOWN = LOCAL | {
    0: ("Produce", message("ProduceRequest").versions),
    3: ("Metadata", message("MetadataRequest").versions),
}


def _frames() -> list[bytes]:
    """One of each request in each of its versions."""
    chance = Random(7)
    found = []
    for api_key, (name, versions) in _KNOWN.items():
        form = message(f"{name}Request")
        for version in range(versions.first, versions.last + 1):
            header = RequestHeader(api_key, version, 1, "fuzz", version in form.flexible)
            found.append(request_frame(header, form, random_message(f"{name}Request", version, chance)))
    return found


FRAMES = _frames()


def _request(raw: bytes) -> object:
    api_key, version = peek(raw)
    name, versions = _KNOWN.get(api_key, ("", ()))
    if version not in versions:
        return expects_answer(raw, len(raw))
    form = message(f"{name}Request")
    header, at = read_header(raw, flexible=version in form.flexible)
    return is_local(api_key, version), expects_answer(raw, len(raw)), header, form.decode(raw, version, at)


class _Known(Instances):
    """Every topic has one partition, and this instance coordinates every group."""

    async def learn(self, topics: object) -> None:
        del topics

    def partitions_of(self, topic: str) -> int:
        return int(bool(topic))

    async def coordinator_of(self, partition: int) -> tuple[int, str, int] | None:
        return partition, "localhost", 9192


class _Caller(ClientConnection):
    def __init__(self, front: _Front) -> None:
        super().__init__(front)  # type: ignore[arg-type]
        self.access = Everything(self.ask_broker, front.broker_access)


class _Log:
    """A term that accepts every write."""

    async def append(self, records: object) -> None:
        del records

    def end(self, reason: str) -> None:
        del reason


class _Socket:
    def setsockopt(self, *option: int) -> None:
        del option


class _Transport(asyncio.Transport):
    """Accepts every write."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 7), "socket": _Socket()}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class _Front:
    """A listener without sockets. Its broker accepts every request and answers none."""

    def __init__(self) -> None:
        self.clients = Clients(ClientLimits())
        self.handshakes, self.patches = None, Patches()
        self.broker_access = BrokerAccess(GroupLimits())
        instances = _Known(lambda: BrokerConnection("localhost", 1), 1, dict)
        manager = GroupMetadataManager(instances._connect, _never, _never, _never, "fuzz", GroupLimits())
        manager.terms |= dict.fromkeys(range(PARTITIONS), _Log())  # type: ignore[arg-type]
        self.coordinator = GroupCoordinator(
            manager, instances, NoManagedGroups(), statistics=self.clients.statistics, native=NoNativeGroups()
        )

    async def connect_broker(self, protocol: asyncio.Protocol) -> None:
        protocol.connection_made(_Transport())


async def _never(*numbers: object) -> Any:
    raise AssertionError(numbers)


async def _played(raw: bytes) -> None:
    """Sends it in pieces, with a little time between them."""
    front, chance = _Front(), Random(len(raw))
    client, transport = _Caller(front), _Transport()
    defects: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: defects.append(context))
    client.connection_made(transport)
    while raw and not transport.closed:
        size = chance.choice((1, 3, 64, 1 << 16))
        client.data_received(raw[:size])
        raw = raw[size:]
        await asyncio.sleep(0)
        assert 0 <= front.clients.kept_bytes <= front.clients.limits.max_kept_bytes
    for _ in range(20):
        await asyncio.sleep(0)
    client.end_if_overdue(asyncio.get_running_loop().time())
    client.end()
    await front.coordinator.close()
    assert front.clients.kept_bytes == 0
    assert len(front.clients) == 0
    if defects:
        raise defects[0].get("exception") or AssertionError(defects[0]["message"])


class _Defects(logging.Handler):
    """Treats a logged internal error as one."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            raise record.exc_info[1]


def _stream(raw: bytes) -> object:
    logger, handler = logging.getLogger("kafka_coord.frontends.kafka.connection"), _Defects()
    logger.addHandler(handler)
    try:
        return asyncio.run(_played(raw))
    finally:
        logger.removeHandler(handler)


def _patched(raw: bytes) -> object:
    return patch_api_versions(raw, 3)


_VERSIONS = bytes.fromhex("00000001") + bytes(
    message("ApiVersionsResponse").encode(random_message("ApiVersionsResponse", 3, Random(5)), 3)
)

TARGETS = (
    Target("kafka-request", Form.BINARY, tuple(frame[4:] for frame in FRAMES), _request, (BadMessage,)),
    Target("kafka-stream", Form.BINARY, (*FRAMES[::4], b"".join(FRAMES[::9])), _stream, ()),
    Target(
        "kafka-subscription", Form.BINARY, (b"\0\0\0\0\0\1\0\1t\0\0\0\0",), lambda raw: subscribed_topics([raw]), ()
    ),
    Target("kafka-api-versions", Form.BINARY, (_VERSIONS,), _patched, (BadMessage,)),
)
