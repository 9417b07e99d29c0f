"""The connections of a listener's clients: their limits, what the listener has counted, and what happens when a limit
is reached. The instance then pauses reading, or refuses or closes connections, and logs that. Each client has a
connection to the broker, which passes on the broker's responses, in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from kafka_coord.classic_groups.errors import CODES
from kafka_coord.frontends.kafka.routing import LOCAL, Patches
from kafka_coord.frontends.listening import OTHER_DESCRIPTORS, allow_descriptors, allowed_descriptors
from kafka_coord.kafka.connection import CLIENT_ID
from kafka_coord.model.sequences import Durations
from kafka_coord.wire.frames import RequestHeader, answer_start, frame_length, request_frame, take_frame
from kafka_coord.wire.messages import message

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.connection import ClientConnection


log = logging.getLogger(__name__)

OTHER = "Other"
NAMES = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    26: "EndTxn",
    32: "DescribeConfigs",
    36: "SaslAuthenticate",
    60: "DescribeCluster",
} | {api_key: name for api_key, (name, _) in LOCAL.items()}
"""The names of the requests that are counted separately, by API key. All others are counted together, since a client
could invent any number of API keys."""
_PARTS = ("topics", "partitions", "groups", "coordinators", "results", "members")
SMALL_BYTES = 16 << 10
"""Connections that buffer at most this many bytes are closed to free memory only if there are no larger ones."""
MOST_LINES = 50
"""The maximum number of log lines about closed and refused connections in :data:`LINES_S` seconds. Any others are only
counted."""
LINES_S = 10.0
ANSWERED_WITHIN_S = 2.0
"""How long a planned stop waits for the answers to requests in flight, in seconds."""
CLOSING_S = 5.0
"""How long a connection that is being closed has to deliver its last bytes, in seconds."""
_CHECK_S = 0.01


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits on connections, bytes and time. Where Kafka has the same limit, the default is Kafka's."""

    max_connections: int = 10_000
    max_connections_per_ip: int | None = None
    """``None`` means three quarters of :attr:`max_connections`, which leaves room for other addresses unless the limit
    on open files is lower."""
    max_request_bytes: int = 100 << 20
    """The limit for any request (``socket.request.max.bytes``). It also applies to requests for the broker, although
    they are never buffered whole."""
    max_group_request_bytes: int = 8 << 20
    """The limit for a request that this instance answers, which is buffered whole. Whatever does not fit in a record of
    the groups log must fit here: it is answered, as Kafka answers it."""
    max_in_flight: int = 1_000
    """Reading from a connection pauses while this many of its requests are unanswered."""
    max_answer_bytes: int = 1 << 20
    """Reading from a connection pauses while more than this many bytes of its responses are unsent."""
    max_kept_bytes: int = 256 << 20
    """The limit for all connections together, like ``queued.max.request.bytes``. It counts requests that have not fully
    arrived or are being answered, and responses that clients have not read."""
    first_request_s: float = 30.0
    """The time limit for a new client to complete the TLS handshake and send its first request, in seconds."""
    request_s: float = 60.0
    """The time limit for a request to arrive completely: this many seconds, plus one second for every
    :attr:`slowest_bytes_a_second` bytes."""
    slowest_bytes_a_second: int = 16 << 10
    idle_s: float = 600.0
    """How long a client may go without sending a request or reading its responses, in seconds
    (``connections.max.idle.ms``)."""

    def connections(self) -> int:
        """Returns the maximum number of open connections. Each may need a second descriptor for its connection to the
        broker."""
        return min(self.max_connections, (allowed_descriptors() - OTHER_DESCRIPTORS) // 2)

    def allow_descriptors(self) -> None:
        """Raises this process's limit on open files to what all connections need, or as close to that as possible."""
        allow_descriptors(2 * self.max_connections + OTHER_DESCRIPTORS)

    def connections_per_ip(self) -> int:
        if self.max_connections_per_ip is not None:
            return self.max_connections_per_ip
        return max(1, self.max_connections * 3 // 4)

    def overdue_check_s(self) -> float:
        """Returns how often to check for overdue connections, in seconds."""
        return min(2.0, self.first_request_s / 4, self.request_s / 4, self.idle_s / 4)


@dataclass(slots=True)
class Statistics:
    """The counters of one listener."""

    answered: dict[str, Durations] = field(default_factory=lambda: defaultdict(Durations))
    """The seconds from a request to its complete response, by request name. Like the broker's TotalTimeMs, they include
    waits."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of this instance's own error responses, by request name and error name."""
    accepted: int = 0
    refused: int = 0
    closed: int = 0
    """The number of connections that ended for a reason worth logging."""
    received_bytes: int = 0
    sent_bytes: int = 0

    def took(self, api_key: int, took_s: float) -> None:
        self.answered[NAMES.get(api_key, OTHER)].add(took_s)

    def told(self, name: str, answer: Any) -> None:
        """Counts the first error in a response from this instance, if there is one."""
        code = first_error(answer)
        if code:
            self.errors[name, CODES.get(code, OTHER)] += 1


def first_error(answer: Any) -> int:
    """Returns the first error code other than NONE in a response, at any depth, or 0 if there is none."""
    has_code, parts = _errors_in(answer.__class__)
    if has_code and answer.error_code:
        return int(answer.error_code)
    for name in parts:
        for part in getattr(answer, name):
            if code := first_error(part):
                return code
    return 0


@cache
def _errors_in(kind: Hashable) -> tuple[bool, tuple[str, ...]]:
    """Returns whether a message of the given type has an error code of its own, and which of its fields to search for
    others."""
    fields = getattr(kind, "_fields", ())
    return "error_code" in fields, tuple(name for name in _PARTS if name in fields)


class Clients:
    """The clients of a listener. Use only on the event loop."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self._open: set[ClientConnection] = set()
        self.connected: set[ClientConnection | BrokerEnd] = set()
        """The connections to clients and to the broker that are not closed yet."""
        self._by_host: Counter[str] = Counter()
        self.kept_bytes = 0
        """The total number of bytes that the connections buffer."""
        self._holders: dict[ClientConnection, None] = {}
        """The connections that buffer more than :data:`SMALL_BYTES`, in the order they exceeded that size."""
        self._period_ends, self._written, self._omitted = 0.0, 0, 0
        self.statistics = Statistics()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, client: ClientConnection) -> bool:
        """Returns whether the limits allow the connection, and counts it if they do. Once :meth:`close` has begun,
        refuses those that were still being accepted: nobody would close them."""
        if self._is_closed:
            return False
        most, most_of_one = self.limits.connections(), self.limits.connections_per_ip()
        if len(self._open) >= most:
            self.statistics.refused += 1
            self._log("refused connection address=%s reason=the limit is %d connections", client.address, most)
            return False
        if self._by_host[client.host] >= most_of_one:
            self.statistics.refused += 1
            why = "refused connection address=%s reason=the limit is %d connections per address"
            self._log(why, client.address, most_of_one)
            return False
        self.statistics.accepted += 1
        self._open.add(client)
        self._by_host[client.host] += 1
        return True

    def departed(self, client: ClientConnection, reason: str) -> None:
        """Called when the connection has ended. Logs the ``reason``, if there is one."""
        if client not in self._open:
            return
        self._open.remove(client)
        self._by_host[client.host] -= 1
        if not self._by_host[client.host]:
            del self._by_host[client.host]
        if reason:
            self.statistics.closed += 1
            self._log("closed connection address=%s reason=%s", client.address, reason)

    def keeps(self, client: ClientConnection, before: int, now: int) -> None:
        """Accounts for a client whose connection now buffers ``now`` bytes instead of ``before``. If all connections
        together exceed the limit, closes the one that has buffered more than :data:`SMALL_BYTES` for the longest or, if
        there is none, this client's."""
        self.kept_bytes += now - before
        if now <= SMALL_BYTES:
            self._holders.pop(client, None)
        elif before <= SMALL_BYTES:
            self._holders[client] = None
        limit = self.limits.max_kept_bytes
        if now > before and self.kept_bytes > limit:
            victim = next(iter(self._holders), client)
            victim.end(f"all connections together buffer more than {limit} bytes", at_once=True)

    def end_overdue(self, now: float) -> None:
        for client in list(self._open):
            try:
                client.end_if_overdue(now)
            except Exception:  # one connection must not keep the others from being checked
                log.exception("closing a connection, because its time limits cannot be checked (this is a bug)")
                client.end("an internal error", at_once=True)
        self._flush_log()

    async def close(self) -> None:
        """Ends each connection once its requests have been answered, or after :data:`ANSWERED_WITHIN_S` seconds. Waits
        until all connections are closed, which takes little more than :data:`CLOSING_S` seconds more at most."""
        self._is_closed = True
        await asyncio.sleep(_CHECK_S)  # until then, those that were being accepted have come, and been refused
        late = time.monotonic() + ANSWERED_WITHIN_S
        for client in list(self._open):
            client.end_when_answered()
        while self._open and time.monotonic() < late:
            await asyncio.sleep(_CHECK_S)
        late = time.monotonic() + 2 * CLOSING_S
        while self.connected and time.monotonic() < late:
            for client in list(self._open):
                client.end()
            await asyncio.sleep(_CHECK_S)

    def _log(self, text: str, *values: object) -> None:
        """Logs at most :data:`MOST_LINES` lines in :data:`LINES_S` seconds, and later the number of omitted lines."""
        self._flush_log()
        if self._written < MOST_LINES:
            self._written += 1
            log.info(text, *values)
        else:
            self._omitted += 1

    def _flush_log(self) -> None:
        """Starts a new period if the current one is over, and logs how many lines were omitted in it."""
        now = time.monotonic()
        if now < self._period_ends:
            return
        if self._omitted:
            log.info("closed or refused %d more connections in %g s", self._omitted, LINES_S)
        self._period_ends, self._written, self._omitted = now + LINES_S, 0, 0


HIGH_WATER = 256 << 10
"""Reading pauses while more than this many bytes are buffered between client and broker."""
_LENGTH = 4


class BrokerEnd(asyncio.Protocol):
    """One connection to the broker. Passes on the bytes of a response as they arrive, or all at once if the response
    must be changed. Is in ``connected`` until it is closed."""

    def __init__(
        self, client: ClientConnection, patches: Patches, connected: set[ClientConnection | BrokerEnd]
    ) -> None:
        self._client, self._patches, self._connected = client, patches, connected
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._left = 0
        """The number of bytes still missing from the response that is being passed on."""
        self._paused = False
        self._questions: deque[asyncio.Future[bytes]] = deque()
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's transport is one
        self._transport = transport
        self._connected.add(self)
        transport.set_write_buffer_limits(HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self._left and not self._buffer and len(data) < self._left:
            self._left -= len(data)
            self._client.write(data)
            return
        self._buffer += data
        self._client.forward_answers()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._connected.discard(self)
        reason = "" if error is None else str(error)
        for question in self._questions:
            if not question.done():
                question.set_exception(ConnectionError(reason or "the broker closed the connection"))
        self._questions.clear()
        self._client.broker_lost(reason)

    def pause_writing(self) -> None:
        self.is_full = True
        self._client.pause_or_resume()

    def resume_writing(self) -> None:
        self.is_full = False
        self._client.pause_or_resume()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def unsent(self) -> int:
        """Returns the number of bytes not yet sent to the broker, plus those not yet passed on to the client."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + len(self._buffer)

    def pass_answer(self, api_key: int, version: int) -> bool:
        """Passes on the bytes of the next response that have arrived, or changes it. Returns whether the response is
        complete."""
        if not self._left:
            patch = self._patches.get(api_key, version)
            if patch is not None:
                frame = take_frame(self._buffer)
                if frame is not None:
                    self._client.write(with_length(patch(frame, version)))
                return frame is not None
            if len(self._buffer) < _LENGTH:
                return False
            self._left = _LENGTH + frame_length(self._buffer)
        chunk = bytes(memoryview(self._buffer)[: self._left])
        del self._buffer[: len(chunk)]
        self._left -= len(chunk)
        self._client.write(chunk)
        return self._left == 0

    async def ask(self, name: str, version: int, value: Any) -> Any:
        """Sends ``<name>Request`` as the client and returns the response. Raises :class:`ConnectionError`, and
        :class:`~kafka_coord.wire.messages.BadMessage` if the response cannot be decoded."""
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        header = RequestHeader(request.api_key or 0, version, 0, CLIENT_ID, version in request.flexible)
        frame = await self.answer_to(request_frame(header, request, value))
        return answer.decode(frame, version, answer_start(answer, version))

    async def answer_to(self, data: bytes) -> bytes:
        """Sends a request, and returns the response's frame. Raises :class:`ConnectionError`."""
        if self._transport is None:
            raise ConnectionError("the broker closed the connection")
        question: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        self.write(data)
        return await question

    def take_answers_to_questions(self) -> None:
        """Takes the responses to this instance's own requests. Call this only when the client's earlier requests have
        been answered."""
        while self._questions:
            frame = take_frame(self._buffer)
            if frame is None:
                return
            question = self._questions.popleft()
            if not question.done():
                question.set_result(frame)

    def pause_or_resume(self, pause: bool) -> None:
        if self._transport is None or self._transport.is_closing() or pause == self._paused:
            return
        self._paused = pause
        (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def close(self) -> None:
        """Closes the connection once the broker has accepted the remaining bytes, or after :data:`CLOSING_S`
        seconds."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSING_S, self._transport.abort)


def with_length(frame: bytes) -> bytes:
    """Returns the bytes in which a frame is sent."""
    return len(frame).to_bytes(_LENGTH, "big") + frame
