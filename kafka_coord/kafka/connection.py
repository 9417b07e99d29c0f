"""Connects to one broker, keeps any number of requests in flight, and opens the connection again when it is needed; and
the errors of a broker's responses.

Brokers close connections: idle ones after ``connections.max.idle.ms``, and authenticated ones whose lifetime
(``connections.max.reauth.ms``, KIP-368) has passed. Neither is a failure as long as no request is in flight.
"""

from __future__ import annotations

import asyncio
import itertools
import select
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kafka_coord.classic_groups.errors import named
from kafka_coord.errors import BrokerError
from kafka_coord.kafka.authentication import PLAINTEXT, BrokerSecurity, answers_to
from kafka_coord.renewed import Renewed
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame, take_frame
from kafka_coord.wire.messages import BadMessage, Message, message

RIGHTS = frozenset({29, 30, 31, 53})
"""TOPIC_, GROUP_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
_NOT_LEADER = 6
"""The code of NOT_LEADER_OR_FOLLOWER."""
_NOT_YET = frozenset({5, 78})
"""LEADER_NOT_AVAILABLE and OFFSET_NOT_AVAILABLE: a new leader does not know the end of its log yet (KIP-207)."""

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.Protocol)
MAX_ANSWER_BYTES = 64 * 1024 * 1024
CLIENT_ID = "kafka-coord"
ANSWER_S = 30.0
_MOST_IDLE_S = 540.0
"""How long a connection may be idle before it is replaced, in seconds: as in Kafka's clients, a minute less than a
broker's default for ``connections.max.idle.ms``, so that the broker does not close it while a request is on its way."""
_LOOKS_AFTER_S = 0.2
"""How long a connection must have been idle before it is worth asking the kernel whether the broker has closed it, in
seconds."""
_CORRELATION = 4
_API_VERSIONS, _SASL_HANDSHAKE = 0, 1
_SASL_AUTHENTICATE = 1
"""The first version of SaslAuthenticate that tells the session's lifetime. Brokers before 2.2 support only version
0."""
_LIFETIME_USED = 0.8
"""The part of a session's lifetime after which a connection is replaced. Kafka's clients do so after 0.85 to 0.95."""
_TRIES = 2


class LeadsNoMore(BrokerError):
    """Another broker leads the partition, as after a planned stop of this one, or soon will."""


class NotSent(BrokerError):
    """No byte of the request was sent, so it has had no effect."""


class LeadsNotYet(BrokerError):
    """The broker has just become the leader of a partition, and cannot answer yet."""


class RightMissing(BrokerError):
    """The broker denies this instance a right that it needs. ``code`` is the broker's error."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(f"{reason}: {named(code)}")
        self.code = code


def failure(what: str, code: int) -> BrokerError:
    """Returns the error for a request that the broker answered with ``code``. ``what`` says what could not be done."""
    if code in RIGHTS:
        return RightMissing(what, code)
    kind = LeadsNoMore if code == _NOT_LEADER else LeadsNotYet if code in _NOT_YET else BrokerError
    return kind(f"{what}: {named(code)}")


def only(found: Sequence[T], what: str) -> T:
    """Returns the one element that a response holds about the one thing that was asked for. Raises
    :class:`BrokerError` if the response holds none or several. ``what`` says of what, in the plural."""
    if len(found) != 1:
        raise BrokerError(f"the response describes {len(found)} {what}, although one was asked for")
    return found[0]


def of_group(groups: Sequence[T], group: str) -> T:
    """Returns what a response holds about ``group``, among its ``groups``. Raises :class:`BrokerError` if the response
    does not hold it once."""
    return only([one for one in groups if getattr(one, "group_id", None) == group], f"groups {group!r}")


Versions = tuple[int, int]
"""The oldest and the newest version of a request."""
_RELEASES = "Kafka 0.11 to 4.3"
_NONE: Versions = (0, -1)


class NoCommonVersion(NotSent):
    """The broker supports no version of the request that this client speaks."""


def told_versions(answer: Any) -> dict[int, Versions]:
    """Returns the versions of each request that a response to ApiVersions tells, by API key."""
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


def newest_common(
    name: str, spoken: int | Versions, supported: Mapping[int, Versions], releases: str = _RELEASES
) -> int:
    """Returns the newest version of ``<name>Request`` that the broker supports among those in ``spoken``, as brokers of
    ``releases`` do. Raises :class:`NoCommonVersion`."""
    oldest, newest = (spoken, spoken) if isinstance(spoken, int) else spoken
    theirs = supported.get(message(f"{name}Request").api_key or 0, _NONE)
    found = min(newest, theirs[1])
    if found < max(oldest, theirs[0]):
        has = f"only versions {theirs[0]} to {theirs[1]}" if theirs != _NONE else "no version"
        raise NoCommonVersion(
            f"the broker supports {has} of {name}, and this version of kafka-coord, which is made for {releases},"
            f" sends {oldest} to {newest}"
        )
    return found


Decode = Callable[[bytes, int], Any]
"""Decodes a response's frame, of the given version."""


class Unwritten(ConnectionError):
    """No byte of the request was written."""


@dataclass(slots=True, eq=False)
class _SentRequest:
    """A request in flight. It times out at the loop time ``due``."""

    decode: Decode
    version: int
    found: asyncio.Future[Any]
    due: float


class Line(asyncio.Protocol):
    """A connection with any number of requests in flight. ``ended`` is set when it has ended."""

    def __init__(self, client_id: str = CLIENT_ID) -> None:
        self._loop, self._client_id = asyncio.get_running_loop(), client_id
        self._ids = itertools.count(1)
        self._waiting: dict[int, _SentRequest] = {}
        self._late: asyncio.TimerHandle | None = None
        """One timer for all requests, because setting a timer costs as much as everything else that a request
        involves."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._used_at = self._loop.time()
        """When the last response arrived."""
        self._retires: asyncio.TimerHandle | None = None
        self._retiring = False
        self.versions: Mapping[int, Versions] | None = None
        """The oldest and the newest version of each request that the broker supports, by API key, or ``None`` until it
        has been asked."""
        self.ended = asyncio.Event()

    def is_usable(self) -> bool:
        """Returns whether a request may be sent. Ends the connection if the broker has closed it, or if the broker is
        about to close it because it is idle."""
        if self.ended.is_set() or self._retiring:
            return False
        if not self._waiting:
            idle_s = self._loop.time() - self._used_at
            if idle_s >= _MOST_IDLE_S:
                self.end("the connection was idle")
            elif idle_s >= _LOOKS_AFTER_S and self._is_hung_up():
                self.end("the broker closed the connection")
        return not self.ended.is_set()

    def _is_hung_up(self) -> bool:
        """Returns whether the broker has sent anything without being asked, which can only be the end of the
        connection. The event loop may not have come to it yet."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def ask(
        self, name: str, version: int, value: Any, timeout_s: float = ANSWER_S, decode: Decode | None = None
    ) -> Any:
        """Returns the response, decoded by ``decode`` if that is given. Raises :class:`Unwritten`, another
        :class:`OSError`, :class:`TimeoutError` or :class:`BadMessage`."""
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        number = next(self._ids)
        frame = request_frame(RequestHeader(request.api_key or 0, version, number, self._client_id), request, value)
        transport = self._transport
        if self.ended.is_set() or transport is None or transport.is_closing():
            raise Unwritten("the connection was closed")
        response: asyncio.Future[Any] = self._loop.create_future()
        due = self._loop.time() + timeout_s
        self._waiting[number] = _SentRequest(decode or partial(_decoded, answer), version, response, due)
        if self._late is None or due < self._late.when():
            self._set_timer(due)
        try:
            transport.write(frame)
            return await response
        finally:
            self._waiting.pop(number, None)
            if self._retiring and not self._waiting:
                self.end("the connection was replaced")

    async def ask_versions(self, timeout_s: float = ANSWER_S) -> Mapping[int, Versions]:
        """Returns :attr:`versions`. Raises the same errors as :meth:`ask`."""
        if self.versions is None:
            answer = await self.ask("ApiVersions", _API_VERSIONS, message("ApiVersionsRequest")(), timeout_s)
            if answer.error_code:
                raise ConnectionError(f"the broker does not tell its versions: {named(answer.error_code)}")
            self.versions = told_versions(answer)
        return self.versions

    async def ask_newest(
        self,
        name: str,
        spoken: int | Versions,
        value: Any,
        timeout_s: float = ANSWER_S,
        decode: Decode | None = None,
    ) -> Any:
        """Like :meth:`ask`, in the newest version of ``spoken`` that the broker supports. Raises
        :class:`NoCommonVersion`."""
        if name == "ApiVersions" and isinstance(spoken, int):
            return await self.ask(name, spoken, value, timeout_s)
        version = newest_common(name, spoken, await self.ask_versions(timeout_s))
        return await self.ask(name, version, value, timeout_s, decode)

    def retire_in(self, delay_s: float) -> None:
        """Takes no more requests after ``delay_s`` seconds, and ends as soon as nothing is in flight."""
        self._retires = self._loop.call_later(delay_s, self._retire)

    def _retire(self) -> None:
        self._retiring = True
        if not self._waiting:
            self.end("the connection was replaced")

    def _set_timer(self, due: float) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self._loop.call_at(due, self._fail_late)

    def _fail_late(self) -> None:
        """Fails the requests that have timed out and sets the timer for the next timeout."""
        self._late = None
        now = self._loop.time()
        for question in self._waiting.values():
            if question.due <= now and not question.found.done():
                question.found.set_exception(TimeoutError())
        due = min((question.due for question in self._waiting.values() if question.due > now), default=None)
        if due is not None:
            self._set_timer(due)

    def end(self, reason: str) -> None:
        """Closes the connection. Requests in flight raise :class:`ConnectionError` with the ``reason``."""
        self.ended.set()
        for timer in (self._late, self._retires):
            if timer is not None:
                timer.cancel()
        self._late = self._retires = None
        for question in self._waiting.values():
            if not question.found.done():
                question.found.set_exception(ConnectionError(reason))
        if self._transport is not None:
            self._transport.abort()  # an orderly TLS close would take a round trip, and no one would wait for it

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's transport is one
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.end("the broker closed the connection" if error is None else str(error))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._used_at = self._loop.time()
        try:
            while not self.ended.is_set() and (frame := take_frame(self._buffer, MAX_ANSWER_BYTES)) is not None:
                self._deliver_answer(frame)
        except BadMessage as error:
            self.end(str(error))

    def _deliver_answer(self, frame: bytes) -> None:
        if len(frame) < _CORRELATION:
            raise BadMessage(f"a response is only {len(frame)} bytes long")
        waiting = self._waiting.get(int.from_bytes(frame[:_CORRELATION], "big"))
        if waiting is None:
            return  # the caller has given up
        if not waiting.found.done():
            waiting.found.set_result(waiting.decode(frame, waiting.version))


def _decoded(answer: Message, frame: bytes, version: int) -> Any:
    return answer.decode(frame, version, answer_start(answer, version))


async def connect(protocol: Callable[[], P], host: str, port: int, security: BrokerSecurity) -> P:
    """Connects a protocol to a broker, with TLS if that is set, but without authentication. Raises :class:`OSError`."""
    _, connected = await asyncio.get_running_loop().create_connection(protocol, host, port, ssl=security.tls)
    return connected


class BrokerConnection:
    """A connection to one broker. It is opened by the first request, and again by the first request after it was
    closed. After :meth:`close`, all requests fail."""

    def __init__(
        self, host: str, port: int, security: Renewed[BrokerSecurity] = PLAINTEXT, client_id: str = CLIENT_ID
    ) -> None:
        self.host, self.port, self._security, self._client_id = host, port, security, client_id
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
        self,
        name: str,
        version: int | Versions,
        value: Any,
        timeout_s: float = ANSWER_S,
        *,
        reopens: bool = True,
        decode: Decode | None = None,
    ) -> Any:
        """Sends ``<name>Request`` in the given version, or in the newest one of a range that the broker supports, and
        returns the response.

        Raises :class:`NotSent` if no byte of the request was sent. Raises :class:`BrokerError` for any other failure:
        the broker may have carried out the request. If ``reopens`` is false and the connection is not open, the request
        is not sent.
        """
        try:
            return await self._on_line(
                name, timeout_s, lambda line: line.ask_newest(name, version, value, timeout_s, decode), reopens
            )
        except NoCommonVersion as error:
            raise NoCommonVersion(f"{self.host}:{self.port}: {error}") from None

    async def newest_version(self, name: str, spoken: Versions, timeout_s: float = ANSWER_S) -> int:
        """Returns the newest version of ``<name>Request`` that the broker supports among those in ``spoken``. Asks the
        broker once for each connection. Raises the same errors as :meth:`ask`."""
        found = await self._on_line("ApiVersions", timeout_s, lambda line: line.ask_versions(timeout_s))
        try:
            return newest_common(name, spoken, found)
        except NoCommonVersion as error:
            raise NoCommonVersion(f"{self.host}:{self.port}: {error}") from None

    async def _on_line(
        self, name: str, timeout_s: float, ask: Callable[[Line], Awaitable[T]], reopens: bool = True
    ) -> T:
        for _ in range(_TRIES):
            line = self._line
            if line is None or not line.is_usable():
                if not reopens:
                    break
                line = await self.open(timeout_s, name)
            try:
                return await ask(line)
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
        reason = f"no response within {timeout_s:.3g} s" if isinstance(error, TimeoutError) else str(error)
        return f"{self.host}:{self.port}: {name}: {reason}"

    async def _opened(self) -> Line:
        self._check_not_closed()
        security = self._security.newest()
        line = await connect(partial(Line, self._client_id), self.host, self.port, security)
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
        newest = (await line.ask_versions()).get(message("SaslAuthenticateRequest").api_key or 0, _NONE)[1]
        request = message("SaslHandshakeRequest")(mechanism=mechanism)
        response = await line.ask("SaslHandshake", _SASL_HANDSHAKE, request)
        if response.error_code:
            raise ConnectionError(f"the broker supports {', '.join(response.mechanisms)}, not {mechanism}")
        version = min(max(newest, 0), _SASL_AUTHENTICATE)
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
