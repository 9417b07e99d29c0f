"""A connection to one broker: requests out, answers in, as many under way as the caller likes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from kafka_coord.errors import BrokerError
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame
from kafka_coord.wire.messages import Message, message

MAX_ANSWER_BYTES = 64 * 1024 * 1024
CLIENT_ID = "kafka-coord"


class BrokerConnection:
    """One TCP connection. Every failure is a :class:`BrokerError`; the connection is closed then, and stays so."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[Message, int, asyncio.Future[Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self.closed = False

    async def ask(self, name: str, version: int, value: Any, timeout_s: float = 30.0) -> Any:
        """The answer to ``<name>Request`` in this version."""
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        number = next(self._ids)
        header = RequestHeader(request.api_key or 0, version, number, CLIENT_ID)
        try:
            frame = request_frame(header, request, value)
            async with asyncio.timeout(timeout_s):
                writer = await self._connected()
                found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._waiting[number] = answer, version, found
                writer.write(frame)
                return await found
        except (OSError, TimeoutError, BadMessage) as error:
            self.close()
            reason = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise BrokerError(f"{self.host}:{self.port}: {name}: {reason}") from error
        finally:
            self._waiting.pop(number, None)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self.closed:
                raise ConnectionError("the connection was closed")
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
                self._reading = asyncio.create_task(self._read(reader))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason = "the broker closed the connection"
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                if not 4 <= length <= MAX_ANSWER_BYTES:
                    reason = f"an answer of {length} bytes"
                    break
                self._answered(await reader.readexactly(length))
        except asyncio.IncompleteReadError:
            pass
        except (OSError, BadMessage) as error:
            reason = str(error)
        finally:
            self._fail(reason)

    def _answered(self, frame: bytes) -> None:
        waiting = self._waiting.get(int.from_bytes(frame[:4], "big"))
        if waiting is None:
            return  # asked by somebody who has given up since
        answer, version, found = waiting
        if not found.done():
            found.set_result(answer.decode(frame, version, answer_start(answer, version)))

    def _fail(self, reason: str) -> None:
        self.closed = True
        for _, _, found in self._waiting.values():
            if not found.done():
                found.set_exception(ConnectionError(reason))
        if self._writer is not None:
            self._writer.close()

    def close(self) -> None:
        self._fail("the connection was closed")
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
