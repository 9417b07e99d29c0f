"""A connection to a broker that is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.broker import BrokerConnection
from kafka_coord.grouplog.errors import NotSent
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
