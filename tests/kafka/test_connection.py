"""A connection to a broker that is silent."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kafka_coord.errors import BrokerError
from kafka_coord.kafka.connection import BrokerConnection, NotSent
from kafka_coord.wire.messages import message

API_VERSIONS = message("ApiVersionsRequest")()


class Silent(asyncio.Protocol):
    """A server that accepts connections and never answers."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()


@asynccontextmanager
async def silent_broker() -> AsyncIterator[BrokerConnection]:
    gone = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(lambda: Silent(gone), "127.0.0.1", 0)
    connection = BrokerConnection(*server.sockets[0].getsockname())
    try:
        yield connection
    finally:
        connection.close()
        await gone.wait()
        server.close()
        await server.wait_closed()


def test_a_late_answer_ends_the_connection_and_its_other_requests() -> None:
    async def play() -> None:
        async with silent_broker() as connection:
            patient = asyncio.create_task(connection.ask("ApiVersions", 0, API_VERSIONS, timeout_s=600))
            with pytest.raises(BrokerError, match=r"ApiVersions: no response within 0\.05 s"):
                await connection.ask("ApiVersions", 0, API_VERSIONS, timeout_s=0.05)
            with pytest.raises(BrokerError, match="a request has timed out") as outcome:
                await patient
            assert not isinstance(outcome.value, NotSent)

    asyncio.run(play())


def test_each_request_has_its_own_deadline() -> None:
    async def play() -> None:
        async with silent_broker() as connection:
            given_up = asyncio.create_task(connection.ask("ApiVersions", 0, API_VERSIONS, timeout_s=0.05))
            second = asyncio.create_task(connection.ask("ApiVersions", 0, API_VERSIONS, timeout_s=0.1))
            await asyncio.sleep(0)
            given_up.cancel()  # its timer continues for the other request
            with pytest.raises(BrokerError, match=r"no response within 0\.1 s"):
                await second

    asyncio.run(play())


class Answering(asyncio.Protocol):
    """A server that answers ApiVersions, and may hang up instead."""

    def __init__(self, server: AnsweringBroker) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.append(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._server.hangs_up:
            self._transport.abort()
            return
        answer = data[8:12] + bytes(6)  # the correlation id, no error, no APIs
        self._transport.write(len(answer).to_bytes(4, "big") + answer)


class AnsweringBroker:
    def __init__(self) -> None:
        self.connections: list[asyncio.Transport] = []
        self.hangs_up = False


@asynccontextmanager
async def answering_broker() -> AsyncIterator[tuple[AnsweringBroker, BrokerConnection]]:
    broker = AnsweringBroker()
    server = await asyncio.get_running_loop().create_server(lambda: Answering(broker), "127.0.0.1", 0)
    connection = BrokerConnection(*server.sockets[0].getsockname())
    try:
        yield broker, connection
    finally:
        connection.close()
        while broker.connections:
            await asyncio.sleep(0.01)
        server.close()
        await server.wait_closed()


def test_a_connection_that_the_broker_closed_is_opened_again_when_it_is_needed() -> None:
    async def play() -> None:
        async with answering_broker() as (broker, connection):
            assert not connection.is_open
            await connection.ask("ApiVersions", 0, API_VERSIONS)
            assert connection.is_open
            broker.connections[0].close()
            while connection.is_open:
                await asyncio.sleep(0.01)
            with pytest.raises(NotSent):
                await connection.ask("ApiVersions", 0, API_VERSIONS, reopens=False)
            await connection.ask("ApiVersions", 0, API_VERSIONS)
            assert connection.is_open

    asyncio.run(play())


def test_a_close_is_noticed_even_if_the_event_loop_has_not_come_to_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_coord.kafka.connection._LOOKS_AFTER_S", 0.0)

    async def play() -> None:
        async with answering_broker() as (broker, connection):
            await connection.ask("ApiVersions", 0, API_VERSIONS)
            server_side = broker.connections[0].get_extra_info("socket")
            with socket.socket(fileno=os.dup(server_side.fileno())) as same:
                same.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + 5
            while connection.is_open:  # without a turn for the event loop
                assert time.monotonic() < deadline

    asyncio.run(play())


def test_a_connection_that_closes_after_a_byte_was_written_is_not_reported_as_not_sent() -> None:
    async def play() -> None:
        async with answering_broker() as (broker, connection):
            broker.hangs_up = True
            with pytest.raises(BrokerError) as outcome:
                await connection.ask("ApiVersions", 0, API_VERSIONS)
            assert not isinstance(outcome.value, NotSent)

    asyncio.run(play())


def test_a_connection_is_replaced_when_it_has_been_idle_for_almost_as_long_as_brokers_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafka_coord.kafka.connection._MOST_IDLE_S", 0.05)

    async def play() -> None:
        async with answering_broker() as (_, connection):
            await connection.ask("ApiVersions", 0, API_VERSIONS)
            await asyncio.sleep(0.1)
            assert not connection.is_open
            await connection.ask("ApiVersions", 0, API_VERSIONS)

    asyncio.run(play())


def test_a_broker_that_cannot_be_reached_has_received_nothing() -> None:
    async def play() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            connection = BrokerConnection(*taken.getsockname())
            with pytest.raises(NotSent):
                await connection.ask("ApiVersions", 0, API_VERSIONS)

    asyncio.run(play())


def test_a_connection_near_the_end_of_its_lifetime_takes_no_request_and_ends_when_nothing_is_in_flight() -> None:
    async def play() -> None:
        async with silent_broker() as connection:
            line = await connection.open()
            asked = asyncio.create_task(connection.ask("ApiVersions", 0, API_VERSIONS, timeout_s=0.2))
            await asyncio.sleep(0)
            line.retire_in(0.0)
            await asyncio.sleep(0.05)
            assert not connection.is_open
            assert not line.ended.is_set()
            with pytest.raises(BrokerError, match="no response"):
                await asked
            assert line.ended.is_set()
            assert await connection.open() is not line

    asyncio.run(play())
