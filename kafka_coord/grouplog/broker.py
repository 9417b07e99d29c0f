"""Connects to one broker, keeps any number of requests in flight, and opens the connection again when it is needed.

Brokers close connections: idle ones after ``connections.max.idle.ms``, and authenticated ones whose lifetime
(``connections.max.reauth.ms``, KIP-368) has passed. Neither is a failure as long as no request is in flight.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafka_coord.classic_groups.errors import named
from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.authentication import PLAINTEXT, BrokerSecurity, answers_to
from kafka_coord.grouplog.errors import NotSent
from kafka_coord.grouplog.line import ANSWER_S, Line, Unwritten
from kafka_coord.renewed import Renewed
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.messages import message

_API_VERSIONS, _SASL_HANDSHAKE = 0, 1
_SASL_AUTHENTICATE = 1
"""The first version of SaslAuthenticate that tells the session's lifetime. Brokers before 2.2 support only version
0."""
_LIFETIME_USED = 0.8
"""The part of a session's lifetime after which a connection is replaced. Kafka's clients do so after 0.85 to 0.95."""
_TRIES = 2


class BrokerConnection:
    """A connection to one broker. It is opened by the first request, and again by the first request after it was
    closed. After :meth:`close`, all requests fail."""

    def __init__(self, host: str, port: int, security: Renewed[BrokerSecurity] = PLAINTEXT) -> None:
        self.host, self.port, self._security = host, port, security
        self._line: Line | None = None
        self._half_open: Line | None = None
        """The connection that is being opened, until it is authenticated."""
        self._opening = asyncio.Lock()
        self.closed = False

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent at once, on a connection that the broker is not known to have closed."""
        return self._line is not None and self._line.is_usable()

    async def ask(
        self, name: str, version: int, value: Any, timeout_s: float = ANSWER_S, *, reopens: bool = True
    ) -> Any:
        """Sends ``<name>Request`` in the given version and returns the response.

        Raises :class:`NotSent` if no byte of the request was sent. Raises :class:`BrokerError` for any other failure:
        the broker may have carried out the request. If ``reopens`` is false and the connection is not open, the request
        is not sent.
        """
        for _ in range(_TRIES):
            line = self._line
            if line is None or not line.is_usable():
                if not reopens:
                    break
                line = await self.open(timeout_s, name)
            try:
                return await line.ask(name, version, value, timeout_s)
            except Unwritten:
                continue
            except (OSError, TimeoutError, BadMessage) as error:
                line.end(str(error) or "a request has timed out")
                raise BrokerError(self._failed(name, error, timeout_s)) from error
        raise NotSent(f"{self.host}:{self.port}: {name}: the broker closed the connection")

    async def open(self, timeout_s: float = ANSWER_S, name: str = "opening the connection") -> Line:
        """Opens the connection, unless it is open. Waits until a connection that is being replaced has nothing in
        flight. Raises :class:`NotSent`. ``name`` is what the connection is needed for."""
        try:
            async with asyncio.timeout(timeout_s), self._opening:
                line = self._line
                if line is not None and line.is_usable():
                    return line
                if line is not None:
                    await line.ended.wait()
                self._line = None
                self._line = line = await self._opened()
                return line
        except (OSError, TimeoutError, BadMessage, ValueError, OverflowError) as error:
            # a broker may give an address whose host or port no resolver takes: ValueError, OverflowError
            raise NotSent(self._failed(name, error, timeout_s)) from error

    def _failed(self, name: str, error: Exception, timeout_s: float) -> str:
        reason = f"no response within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        return f"{self.host}:{self.port}: {name}: {reason}"

    async def _opened(self) -> Line:
        self._check_not_closed()
        loop, security = asyncio.get_running_loop(), self._security.newest()
        _, line = await loop.create_connection(Line, self.host, self.port, ssl=security.tls)
        self._half_open = line
        try:
            if security.mechanism is not None:
                await self._authenticate(line, security, security.mechanism)
            self._check_not_closed()
        except BaseException:
            line.end("the connection was not opened")
            raise
        finally:
            self._half_open = None
        return line

    def _check_not_closed(self) -> None:
        if self.closed:
            raise ConnectionError("the connection was closed")

    async def _authenticate(self, line: Line, security: BrokerSecurity, mechanism: str) -> None:
        supported = await line.ask("ApiVersions", _API_VERSIONS, message("ApiVersionsRequest")())
        api_key = message("SaslAuthenticateRequest").api_key
        newest = max((one.max_version for one in supported.api_keys if one.api_key == api_key), default=0)
        request = message("SaslHandshakeRequest")(mechanism=mechanism)
        response = await line.ask("SaslHandshake", _SASL_HANDSHAKE, request)
        if response.error_code:
            raise ConnectionError(f"the broker supports {', '.join(response.mechanisms)}, not {mechanism}")
        version = min(newest, _SASL_AUTHENTICATE)
        lifetime_ms = 0
        try:
            exchange = answers_to(security)
            sending = next(exchange)
            while True:
                request = message("SaslAuthenticateRequest")(auth_bytes=sending)
                response = await line.ask("SaslAuthenticate", version, request)
                _check(response)
                lifetime_ms = response.session_lifetime_ms
                sending = exchange.send(response.auth_bytes)
        except StopIteration:
            pass
        except (ValueError, KeyError) as error:
            raise ConnectionError(f"not authenticated: {error}") from None
        if lifetime_ms > 0:
            line.retire_in(lifetime_ms / 1000 * _LIFETIME_USED)

    def close(self) -> None:
        """Closes the connection for good. Requests in flight fail."""
        self.closed = True
        for line in (self._line, self._half_open):
            if line is not None:
                line.end("the connection was closed")


def _check(response: Any) -> None:
    if response.error_code:
        raise ConnectionError(f"not authenticated: {response.error_message or named(response.error_code)}")
