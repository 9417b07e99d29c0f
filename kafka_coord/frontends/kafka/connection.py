"""Handles one Kafka client's connection.

Requests are answered in the order they arrive. Requests for the broker, and its responses, are passed on piece by piece
as they arrive (:mod:`~kafka_coord.frontends.kafka.clients`); only the few responses that this instance changes are
buffered whole.

Like a broker, this instance does not take another request while it answers one: further input pauses reading and
releases a held heartbeat. Some clients' automatic commits are an exception: they are carried out during the hold, and
only their responses wait until the heartbeat has been answered. Reading also pauses while the other side does not
accept data.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_coord.classic_groups.heartbeat_hold import AutoCommits
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka.access import (
    ANONYMOUS,
    UNKNOWN,
    Access,
    principal_of_login,
)
from kafka_coord.frontends.kafka.clients import CLOSING_S, HIGH_WATER, BrokerEnd, with_length
from kafka_coord.frontends.kafka.native import PassedOn
from kafka_coord.frontends.kafka.routing import (
    CHANGES_TOPICS,
    FETCH,
    HEARTBEAT,
    OFFSET_COMMIT,
    SASL,
    SASL_AUTHENTICATE,
    expects_answer,
    is_local,
)
from kafka_coord.frontends.listening import Handshakes
from kafka_coord.wire.frames import API_VERSIONS, HEADER_BYTES, client_software, frame_length, peek
from kafka_coord.wire.messages import BadMessage

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.listener import KafkaListener

log = logging.getLogger(__name__)

CONNECT_S = 10.0
ANSWER_S = 60.0
"""How long the broker may take to answer a request from this instance itself, in seconds, including the time that it
needs for the client's earlier requests."""
_CHANGES = frozenset(
    {
        *("AddOffsetsToTxn", "ConsumerGroupHeartbeat", "DeleteGroups", "JoinGroup", "LeaveGroup", "OffsetCommit"),
        *("SyncGroup", "TxnOffsetCommit"),
    }
)
"""What a broker may have carried out although it has not answered: the client decides whether to ask again."""
_numbers = itertools.count(1)
_LENGTH = 4
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""The TCP settings that detect a vanished peer within two minutes."""


@dataclass(slots=True, eq=False)
class _Slot:
    """A request that needs a response, ``from_broker`` or from this instance. If this instance itself answers it,
    ``answer`` is the response, and ``ended`` is when it was ready."""

    from_broker: bool
    api_key: int
    version: int
    began: float
    answer: bytes | None = None
    passed: PassedOn | None = None
    ended: float | None = None


class ClientConnection(asyncio.Protocol):
    """One client's connection. Use only on the event loop."""

    def __init__(self, listener: KafkaListener) -> None:
        self._listener, self._clients = listener, listener.clients
        self._limits, self._statistics = listener.clients.limits, listener.clients.statistics
        self._transport: asyncio.Transport | None = None
        self._raw: asyncio.Transport | None = None
        """The transport, or the underlying transport during a TLS handshake."""
        self.number = next(_numbers)
        self.address = "?"
        self._buffer = bytearray()
        self._passing = 0
        """The number of bytes still missing from the request that is being passed on."""
        self._slots: deque[_Slot] = deque()
        self._task: asyncio.Task[None] | None = None
        self._held: asyncio.Task[None] | None = None
        """The task of a held heartbeat, while ``_task`` carries out a commit that arrived after it."""
        self._commits = AutoCommits()
        self._handling = 0
        """The size of the request that this instance is answering."""
        self._release: Callable[[], None] | None = None
        """Releases the held request. ``None`` if no request is held."""
        self._hold_ends: asyncio.TimerHandle | None = None
        """Releases it in time for the broker not to close the idle connection: see :class:`BrokerAccess`."""
        self.software = ""
        self.principal = ANONYMOUS
        self._answers_waiting = 0
        """The total size of this instance's own responses that must wait because an earlier one is not ready."""
        self._broker: BrokerEnd | None = None
        self._reaching = asyncio.Lock()
        """Held while this connects to the broker: an answer may need several of the broker's at once."""
        self._ended = False
        self.has_closed = False
        self._ends_when_answered = False
        self._has_sasl = False
        self._reading_paused = False
        self._takes_no_more = False
        self.access = Access(self.ask_broker, listener.broker_access)
        self._requests = 0
        self._kept = 0
        self._last_seen: tuple[int, ...] = ()
        self._frame_since = self._still_since = 0.0

    # --- client ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's transport is one
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.address = f"{host}:{port}"
        self._raw = transport
        self._clients.connected.add(self)
        if not self._clients.admit(self):
            self._ended = True
            transport.abort()
            return
        if self._listener.handshakes is None:
            self._open(transport)
        else:
            self._task = asyncio.create_task(self._secure(transport, self._listener.handshakes))
        self._frame_since = self._still_since = asyncio.get_running_loop().time()
        with suppress(OSError):  # if the peer has vanished, reading will detect it
            peer = transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)

    def _open(self, transport: asyncio.Transport) -> None:
        self._transport = self._raw = transport
        transport.set_write_buffer_limits(HIGH_WATER)

    async def _secure(self, raw: asyncio.Transport, handshakes: Handshakes) -> None:
        """Performs the TLS handshake as soon as the limit on handshakes allows it. Does not read before that."""
        try:
            transport = await handshakes.secure(raw, self)
        except OSError as error:
            self.end(f"the TLS handshake failed: {error}", at_once=True)
            return
        self._task = None
        if transport is None:
            self.end("the client disconnected during the TLS handshake", at_once=True)
            return
        self._open(transport)
        self._take()
        self.pause_or_resume()

    def _note_client(self, api_key: int, frame: bytes, length: int) -> None:
        """Notes what a request to the broker says about the client: its software, or as whom it logs in, unless the
        frame has not fully arrived."""
        if api_key == API_VERSIONS:
            self.software = client_software(frame)
            return
        self._has_sasl = True
        self.access.forget()
        if api_key == SASL_AUTHENTICATE:
            found = principal_of_login(frame) if len(frame) == length else UNKNOWN
            self.principal = found or (UNKNOWN if self.principal == ANONYMOUS else self.principal)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._statistics.received_bytes += len(data)
        if self._passing and not self._buffer and len(data) <= self._passing and self._broker is not None:
            self._passing -= len(data)
            self._broker.write(data)
        else:
            self._buffer += data
            self._take()
            self._end_hold()
        self.pause_or_resume()

    def holding(self, release: Callable[[], None] | None) -> None:
        """See :class:`~kafka_coord.frontends.kafka.calls.Caller`."""
        self._release = release
        if self._hold_ends is not None:
            self._hold_ends.cancel()
            self._hold_ends = None
        if self._buffer:
            self._end_hold()
        elif release is not None and self._has_sasl:
            self._hold_ends = asyncio.get_running_loop().call_later(self._listener.broker_access.known_s, release)

    def _end_hold(self) -> None:
        """Handles the arrival of another request while one is held: carries out an automatic commit during the hold,
        and ends the hold for any other request."""
        if self._release is None:
            return
        if self._is_automatic_commit():
            self._held, self._task = self._task, None
            self._take()
        else:
            self._release()

    def _is_automatic_commit(self) -> bool:
        """Returns whether the next request has fully arrived and is a commit whose response may wait for the held
        heartbeat's."""
        length = int.from_bytes(self._buffer[:_LENGTH], "big")
        is_whole = HEADER_BYTES <= length <= len(self._buffer) - _LENGTH
        if not is_whole or self._slots[-1].api_key != HEARTBEAT:
            return False
        frame = bytes(memoryview(self._buffer)[_LENGTH : _LENGTH + length])
        return peek(frame)[0] == OFFSET_COMMIT and self._commits.may_wait(time.monotonic(), self.software, frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._raw = None
        self._clients.connected.discard(self)
        if error is not None:
            log.debug("lost the connection address=%s error=%s", self.address, error)
        self.has_closed = not self._ended
        self.end()

    def pause_writing(self) -> None:
        self._takes_no_more = True
        self.pause_or_resume()

    def resume_writing(self) -> None:
        self._takes_no_more = False
        self.forward_answers()

    def end(self, reason: str = "", *, at_once: bool = False) -> None:
        """Closes the connections to the client and to the broker, and logs the ``reason``, if there is one. If
        ``at_once`` is set, unsent data is dropped. May be called more than once."""
        if self._ended:
            return
        self._ended = True
        for task in (self._task, self._held):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if self._broker is not None:
            self._broker.close()
        if self._raw is not None:
            if at_once or self._takes_no_more:
                self._raw.abort()
            else:
                self._raw.close()
                asyncio.get_running_loop().call_later(CLOSING_S, self._raw.abort)
        self._buffer.clear()
        for passed in [slot.passed for slot in self._slots if slot.passed is not None]:
            passed.end()
        self._slots.clear()
        self._count_kept()
        self._clients.departed(self, reason)

    def end_when_answered(self) -> None:
        """Takes no more requests for the broker, and ends the connection as soon as the requests in flight have been
        answered. Does not wait for record fetches: the broker may hold them, and clients repeat them."""
        self._ends_when_answered = True
        self._end_if_answered()
        self.pause_or_resume()

    def _end_if_answered(self) -> None:
        if not self._ends_when_answered or self._passing or self._task is not None or self._held is not None:
            return
        if all(slot.api_key == FETCH for slot in self._slots):
            self.end()

    # --- limits ------------------------------------------------------------------------------------------------------

    def _count_kept(self) -> None:
        """Counts the bytes that this connection buffers. Ignores transport buffers below the high-water mark: checking
        them would slow down the data path."""
        now = 0
        if not self._ended:
            now = len(self._buffer) + self._handling + self._answers_waiting
            if self._takes_no_more and self._transport is not None:
                now += self._transport.get_write_buffer_size()
            if self._broker is not None and (self._takes_no_more or self._broker.is_full):
                now += self._broker.unsent()
        if now != self._kept:
            before, self._kept = self._kept, now
            self._clients.keeps(self, before, now)

    def end_if_overdue(self, now: float) -> None:
        """Ends the connection if it exceeds a time limit. :class:`Clients` calls this method for all connections, every
        :meth:`ClientLimits.overdue_check_s` seconds."""
        try:
            reason = self._overdue(now)
        except BadMessage as error:  # in a frame that waits for the one before it
            reason = str(error)
        if reason:
            self.end(reason, at_once=True)

    def _overdue(self, now: float) -> str:
        unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
        state = (self._requests, len(self._slots), len(self._buffer), self._passing, unread)
        if state != self._last_seen:
            self._still_since = now
        half = bool(self._passing or (self._buffer and self._task is None)) and not self._reading_paused
        if self._requests and (not half or not self._last_seen or state[0] != self._last_seen[0]):
            self._frame_since = now
        self._last_seen = state
        limits = self._limits
        if not self._requests:
            late = now - self._frame_since > limits.first_request_s
            return f"no request within {limits.first_request_s:g} s" if late else ""
        length = max(self._passing, frame_length(self._buffer) if len(self._buffer) >= _LENGTH else 0)
        if now - self._frame_since > limits.request_s + length / limits.slowest_bytes_a_second:
            return f"a request is still incomplete after {now - self._frame_since:.0f} s"
        owed = (self._slots or self._task is not None) and not self._takes_no_more
        if now - self._still_since > limits.idle_s and not owed:
            what = "has not read its responses" if self._takes_no_more else "has not sent anything"
            return f"{what} for {limits.idle_s:g} s"
        return ""

    # --- requests ----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Takes requests until this instance must answer one of them itself or must connect to the broker first."""
        try:
            while self._buffer and not self._ended and self._task is None and self._take_one():
                pass
        except BadMessage as error:
            self.end(str(error), at_once=True)

    def _take_one(self) -> bool:
        if self._passing:
            chunk = bytes(self._buffer[: self._passing])
            del self._buffer[: len(chunk)]
            self._passing -= len(chunk)
            if self._broker is not None:
                self._broker.write(chunk)
            return True
        if len(self._buffer) < _LENGTH or self._has_enough():
            return False
        length = frame_length(self._buffer)
        if not HEADER_BYTES <= length <= self._limits.max_request_bytes:
            raise BadMessage(f"a request is {length} bytes long; the limit is {self._limits.max_request_bytes}")
        if len(self._buffer) < _LENGTH + HEADER_BYTES:
            return False
        api_key, version = peek(self._buffer[_LENGTH : _LENGTH + HEADER_BYTES])
        if is_local(api_key, version):
            return self._take_local(length, api_key, version)
        with memoryview(self._buffer)[_LENGTH : _LENGTH + length] as frame:
            answered = expects_answer(frame, length)
        if answered is None:
            return False
        if self._ends_when_answered:
            return False
        if self._broker is None:
            self._task = asyncio.create_task(self._reach_broker())
            return False
        if api_key == API_VERSIONS or api_key in SASL:
            self._note_client(api_key, bytes(memoryview(self._buffer)[_LENGTH : _LENGTH + length]), length)
        self._requests += 1
        if answered:
            self._slots.append(_Slot(True, api_key, version, time.monotonic()))
        self._passing = _LENGTH + length
        return True

    def _has_enough(self) -> bool:
        """Returns whether the client must read responses before this connection reads more of its requests."""
        return (
            self._takes_no_more
            or len(self._slots) >= self._limits.max_in_flight
            or self._answers_waiting > self._limits.max_answer_bytes
        )

    def _take_local(self, length: int, api_key: int, version: int) -> bool:
        most = self._limits.max_group_request_bytes
        if length > most:
            raise BadMessage(f"a request about groups (API key {api_key}) is {length} bytes long; the limit is {most}")
        if len(self._buffer) < _LENGTH + length:
            return False
        frame = bytes(memoryview(self._buffer)[_LENGTH : _LENGTH + length])
        del self._buffer[: _LENGTH + length]
        self._requests += 1
        if api_key == OFFSET_COMMIT:
            self._commits.arrived(time.monotonic(), self.software, frame, waits=self._held is not None)
        self._task = asyncio.create_task(self._answer(frame, _Slot(False, api_key, version, time.monotonic())))
        return False

    async def _answer(self, frame: bytes, slot: _Slot) -> None:
        self._slots.append(slot)
        self._handling = len(frame)
        self._count_kept()
        reason = "an internal error"
        try:
            answer = await self._listener.coordinator.answer(frame, self)
            if isinstance(answer, PassedOn):
                slot.passed, broker = answer, await self._reached_broker()
                if answer.change is None:
                    broker.write(with_length(frame))
                    slot.from_broker = True
                else:
                    slot.answer = with_length(await answer.change(await broker.answer_to(with_length(frame))))
            else:
                slot.answer = answer
        except (BadMessage, BrokerError, OSError) as error:
            reason = str(error)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("cannot answer api_key=%d version=%d address=%s", slot.api_key, slot.version, self.address)
        self._handling = 0
        if self._held is asyncio.current_task():
            self._held = None
        else:
            self._task, self._held = self._held, None
            slot.ended = None if slot.from_broker else time.monotonic()
        if slot.answer is not None:
            self._answers_waiting += len(slot.answer)
        elif not slot.from_broker:
            self.end(reason)
            return
        self.forward_answers()
        self._take()
        self._end_if_answered()
        self.pause_or_resume()

    async def ask_broker(self, name: str, version: int, value: Any) -> Any:
        """Sends the broker a request on the connection opened for this client, to answer one of the client's requests.
        Returns the response. Raises :class:`OSError` and :class:`BadMessage`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                try:
                    return await (await self._reached_broker()).ask(name, version, value)
                except ConnectionError:
                    if self._broker is not None or self._ended or name in _CHANGES:
                        raise
                    # the broker closed an idle connection; asking again is harmless, since nothing changes by it
                    return await (await self._reached_broker()).ask(name, version, value)
        except TimeoutError:
            raise ConnectionError(f"the broker has not answered {name} within {ANSWER_S:g} s") from None

    async def _reached_broker(self) -> BrokerEnd:
        async with self._reaching:
            if self._broker is None:
                if self._has_sasl:
                    raise ConnectionError("the broker has closed the authenticated connection")
                self._broker = await self._connected_broker()
            return self._broker

    async def _connected_broker(self) -> BrokerEnd:
        end = BrokerEnd(self, self._listener.patches, self._clients.connected)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._listener.connect_broker(end)
        except (OSError, TimeoutError) as error:
            raise ConnectionError(f"the broker cannot be reached: {error or 'connecting took too long'}") from None
        if self._ended:
            end.close()
            raise ConnectionError("the connection was closed")
        return end

    async def _reach_broker(self) -> None:
        try:
            await self._reached_broker()
        except ConnectionError as error:
            self.end(str(error))
            return
        self._task = None
        self._take()
        self._end_if_answered()
        self.pause_or_resume()

    def pause_or_resume(self) -> None:
        """Pauses or resumes reading from the client, depending on what this connection has buffered. Must be called
        after every change."""
        pause = (self._task is not None and bool(self._buffer)) or self._has_enough()
        pause = pause or (self._broker is not None and self._broker.is_full)
        pause = pause or (self._ends_when_answered and not self._passing)
        if self._buffer or self._kept or pause:
            self._count_kept()
        if self._transport is None or self._transport.is_closing() or pause == self._reading_paused:
            return
        self._reading_paused = pause
        (self._transport.pause_reading if pause else self._transport.resume_reading)()

    # --- responses ---------------------------------------------------------------------------------------------------

    def forward_answers(self) -> None:
        """Sends the responses that are available, in the order of the requests. The last one may be incomplete."""
        try:
            self._send_answers()
        except BadMessage as error:
            self.end(f"the broker's response is malformed: {error}")
        if self._broker is not None:
            self._broker.pause_or_resume(self._takes_no_more)
        if self._reading_paused:
            self._take()
        self._end_if_answered()
        self.pause_or_resume()

    def _send_answers(self) -> None:
        broker = self._broker
        while self._slots and not self._takes_no_more and not self._ended:
            slot = self._slots[0]
            if slot.from_broker:
                if broker is None or not broker.pass_answer(slot.api_key, slot.version):
                    break
            elif slot.answer is None:
                if broker is not None:
                    broker.take_answers_to_questions()
                break
            else:
                self._answers_waiting -= len(slot.answer)
                self.write(slot.answer)
            self._slots.popleft()
            if slot.passed is not None:
                slot.passed.end()
            if slot.api_key in CHANGES_TOPICS:
                self._listener.topics_changed.set()
            self._statistics.took(slot.api_key, (slot.ended or time.monotonic()) - slot.began)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._statistics.sent_bytes += len(data)
            self._transport.write(data)

    def broker_lost(self, reason: str) -> None:
        """Ends the client's connection if a request is in flight, or if the client had authenticated: a new connection
        to the broker would not be authenticated. Otherwise, the broker has only closed an idle connection, which does
        not matter."""
        self._broker = None
        if any(slot.from_broker for slot in self._slots) or self._passing or self._has_sasl:
            self.end(f"the broker closed the connection: {reason}" if reason else "the broker closed the connection")
