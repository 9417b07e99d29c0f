"""Tests that a defect in one part of the listener, or at one connection, does not end the others."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_coord.frontends.kafka import listener
from kafka_coord.frontends.kafka.clients import Clients, with_length
from kafka_coord.frontends.kafka.connection import ClientConnection
from kafka_coord.frontends.kafka.native import Kinds, NativeGroups, PassedOn
from kafka_coord.frontends.kafka.routing import PRODUCE, expects_answer
from kafka_coord.model import GroupKind
from kafka_coord.wire.frames import RequestHeader, request_frame
from kafka_coord.wire.messages import message
from tests.fuzzing.kafka_targets import _Front, _Transport


def test_endless_work_begins_again_after_an_unexpected_error(monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(listener, "BEGINS_AGAIN_S", 0.0)
    began = []

    async def work() -> None:
        began.append(len(began))
        if len(began) == 3:
            await asyncio.Event().wait()
        raise ZeroDivisionError

    async def play() -> None:
        task = asyncio.create_task(listener.kept_running(work))
        while len(began) < 3:
            await asyncio.sleep(0)
        task.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


class Connection:
    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken, self.checked, self.ended = is_broken, 0, ""

    def end_if_overdue(self, _now: float) -> None:
        self.checked += 1
        if self.is_broken:
            raise ZeroDivisionError

    def end(self, reason: str, *, at_once: bool) -> None:
        self.ended = reason if at_once else ""


def test_a_connection_that_cannot_be_checked_is_closed_and_the_others_are_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connections = Connection(), Connection(is_broken=True), Connection()
    clients = Clients.__new__(Clients)
    clients._open = set(connections)  # type: ignore[arg-type]
    clients._flush_log = lambda: None  # type: ignore[method-assign]
    clients.end_overdue(0.0)
    assert [(one.checked, one.ended) for one in connections] == [(1, ""), (1, "an internal error"), (1, "")]
    assert "this is a bug" in caplog.text


def test_a_connection_that_arrives_while_the_listener_closes_is_closed_too() -> None:
    async def play() -> None:
        front, transport, later = _Front(), _Transport(), _Transport()
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, ClientConnection(front).connection_made, transport)  # type: ignore[arg-type]
        await front.clients.close()
        assert transport.closed
        ClientConnection(front).connection_made(later)  # type: ignore[arg-type]
        assert later.closed
        assert not len(front.clients)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "asked"), [("Metadata", 2), ("OffsetFetch", 2), ("DeleteGroups", 1), ("JoinGroup", 1)]
)
def test_what_the_broker_may_have_carried_out_is_not_asked_again(name: str, asked: int) -> None:
    """A second DeleteGroups would be told that there is no such group, and a second JoinGroup would add a member."""
    heard: list[str] = []

    async def broker() -> Any:
        client._broker = SimpleNamespace(ask=ask)
        return client._broker

    async def ask(question: str, _version: int, _value: object) -> str:
        heard.append(question)
        if len(heard) == 1:
            client._broker = None  # as when the broker closes the connection
            raise ConnectionError("closed")
        return "answer"

    client: Any = SimpleNamespace(_broker=None, _ended=False, _reached_broker=broker)
    question = ClientConnection.ask_broker(client, name, 0, None)
    if asked == 1:
        with pytest.raises(ConnectionError, match="closed"):
            asyncio.run(question)
    else:
        assert asyncio.run(question) == "answer"
    assert heard == [name] * asked


def test_what_was_seen_of_a_native_group_goes_with_its_record() -> None:
    """Otherwise, the next group of that name could never be taken over: the former used transactions."""

    async def play() -> None:
        kinds = Kinds()
        native = NativeGroups(None, kinds)  # type: ignore[arg-type]
        for name in ("deleted", "kept"):
            await kinds.record_first(name, GroupKind.NATIVE)
            native._transactional[name] = None
        await kinds.forget("deleted")
        assert list(native._transactional) == ["kept"]

    asyncio.run(play())


@pytest.mark.timeout(20)
def test_a_group_that_comes_while_another_is_just_recorded_is_recorded_next() -> None:
    """Otherwise, it awaits again and again what is done, and the instance answers nobody any more."""

    async def play() -> None:
        kinds = Kinds()

        async def second() -> GroupKind:
            await asyncio.sleep(0)  # until the first has begun to record
            return await kinds.record_first("flights-7", GroupKind.MANAGED)  # in the same partition

        both = await asyncio.gather(kinds.record_first("flights", GroupKind.NATIVE), second())
        assert both == [GroupKind.NATIVE, GroupKind.MANAGED]

    asyncio.run(play())


def test_no_answer_is_awaited_to_a_produce_without_acks_in_any_version() -> None:
    """Otherwise, each later response on the connection would be taken for that of the request before."""
    form = message("ProduceRequest")
    for version in form.versions:
        for acks in (0, 1, -1):
            frame = request_frame(RequestHeader(PRODUCE, version, 7, "c"), form, form(acks=acks))[4:]
            assert expects_answer(frame, len(frame)) is (acks != 0), version
    assert form.versions.last == 13, "as brokers of Kafka 4.3 know them"


class Wire(_Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)


def test_a_passed_on_request_is_answered_as_changed_before_the_next_one_is_taken() -> None:
    """Like a broker, an instance takes no other request of a client while one waits for its answer."""
    to_broker, to_client = Wire(), Wire()
    looked = asyncio.Event()

    class Front(_Front):
        async def connect_broker(self, protocol: asyncio.Protocol) -> None:
            protocol.connection_made(to_broker)
            self.end = protocol

    async def changed(frame: bytes) -> bytes:
        await looked.wait()
        return frame + b"!"

    async def passed_on(_frame: bytes, _client: object) -> PassedOn:
        return PassedOn(in_flight, ("g",), changed)

    async def settled() -> None:
        for _ in range(9):
            await asyncio.sleep(0)

    async def play() -> None:
        front = Front()
        front.coordinator.answer = passed_on  # type: ignore[method-assign]
        client = ClientConnection(front)  # type: ignore[arg-type]
        client.connection_made(to_client)
        in_flight["g"] = 1
        sync, metadata = frame(14, 3), frame(3, 9)
        client.data_received(sync + metadata)
        await settled()
        assert to_broker.written == sync
        front.end.data_received(with_length(b"synced"))
        await settled()
        assert (to_client.written, to_broker.written, in_flight["g"]) == (b"", sync, 1)
        looked.set()
        await settled()
        assert (to_client.written, to_broker.written) == (with_length(b"synced!"), sync + metadata)
        assert not in_flight["g"]
        front.end.data_received(with_length(b"all topics"))
        assert to_client.written == with_length(b"synced!") + with_length(b"all topics")
        await front.coordinator.close()

    in_flight = Counter[str]()
    asyncio.run(play())


@pytest.mark.timeout(20)
def test_questions_that_are_asked_at_once_reach_the_broker_on_one_connection() -> None:
    """Otherwise, only the answers on the last of them would be taken: a FindCoordinator for many groups is never
    answered if it is the first request on its connection."""
    reached: list[asyncio.Protocol] = []

    class Front(_Front):
        async def connect_broker(self, protocol: asyncio.Protocol) -> None:
            await asyncio.sleep(0)
            protocol.connection_made(Wire())
            reached.append(protocol)

    async def asks(_frame: bytes, client: Any) -> bytes:
        questions = (client.ask_broker("ApiVersions", 0, message("ApiVersionsRequest")()) for _ in range(3))
        found = await asyncio.gather(*questions)
        return with_length(b"%d answers" % len(found))

    async def play() -> None:
        front, to_client = Front(), Wire()
        front.coordinator.answer = asks  # type: ignore[method-assign]
        client = ClientConnection(front)  # type: ignore[arg-type]
        client.connection_made(to_client)
        client.data_received(frame(10, 4))
        told = message("ApiVersionsResponse")
        while not to_client.written:
            await asyncio.sleep(0)
            for one in reached:
                one.data_received(with_length(bytes(4) + told.encode(told(), 0)))
        assert (len(reached), to_client.written) == (1, with_length(b"3 answers"))
        await front.coordinator.close()

    asyncio.run(play())


def frame(api_key: int, version: int) -> bytes:
    return with_length(api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(8))
