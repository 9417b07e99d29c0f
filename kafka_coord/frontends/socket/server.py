"""The sockets of the gateway: one thread for all connections, one for the gateway itself."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka_coord.channel.frames import BadFrame, Decoder, Frame, encode
from kafka_coord.errors import SettingsError
from kafka_coord.frontends.members.members import Connection
from kafka_coord.frontends.socket.access import Access
from kafka_coord.frontends.socket.gateway import Gateway, LeadershipView
from kafka_coord.frontends.socket.options import GatewayOptions
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

CLOSING_S = 2.0
"""How long a connection that is being closed may take to take what was sent to it."""
MAX_UNSENT_BYTES = 4 << 20
MAX_INBOX = 50_000
"""Frames that wait for the gateway's thread; beyond that nothing more is read."""
SPARE_CONNECTIONS = 1_000
"""Beyond as many as there may be consumers: those that only ask where to go."""
OTHER_DESCRIPTORS = 100
"""What the process has open besides."""


class SocketPeer(asyncio.Protocol):
    """A connection. Its methods named as in :class:`asyncio.Protocol` run on the loop's thread, the others on any."""

    def __init__(self, server: GatewayServer) -> None:
        self._server = server
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._address = "?"
        self._certificate: str | None = None
        self._broken = False
        self.connection: Connection | None = None
        """The gateway's thread's."""
        self.unsent: list[bytes] = []
        self.closing = False

    # --- the gateway's thread ----------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return self._address

    @property
    def certificate(self) -> str | None:
        return self._certificate

    def send(self, frame: Frame) -> None:
        self.unsent.append(encode(frame))
        self._server.touched(self)

    def close(self) -> None:
        self.closing = True
        self._server.touched(self)

    # --- the loop's thread -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's is a Transport
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self._address = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        self._certificate = _common_name(transport.get_extra_info("peercert"))
        if not self._server.may_accept(self):
            transport.abort()  # type: ignore[attr-defined]
            return
        self._server.arrived(_Accepted(self))

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        try:
            for frame in self._decoder.feed(data):
                self._server.arrived(_Came(self, frame))
        except BadFrame as error:
            self._broken = True
            self._server.arrived(_Broken(self, error))
        if self._transport is not None and self._server.is_behind():
            self._transport.pause_reading()
            self._server.resume_later(self._transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._server.departed(self)
        self._server.arrived(_Lost(self))

    def flush(self, data: bytes, *, close: bool) -> None:
        """Sends, and closes if asked to."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if data:
            transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("closed connection address=%s: it does not take what it is sent", self._address)
            transport.abort()
        elif close:
            transport.close()
            asyncio.get_running_loop().call_later(CLOSING_S, transport.abort)


@dataclass(frozen=True, slots=True)
class _Accepted:
    peer: SocketPeer


@dataclass(frozen=True, slots=True)
class _Came:
    peer: SocketPeer
    frame: Frame


@dataclass(frozen=True, slots=True)
class _Broken:
    peer: SocketPeer
    error: BadFrame


@dataclass(frozen=True, slots=True)
class _Lost:
    peer: SocketPeer


_Arrival = _Accepted | _Came | _Broken | _Lost


class GatewayServer:
    """Listens and serves until :meth:`close`. ``listen`` is ``host:port``, port 0 for a free one.

    Raises :class:`SettingsError` where it cannot listen there.
    """

    def __init__(
        self,
        listen: str,
        store: Store,
        instance: int,
        office: LeadershipView,
        *,
        options: GatewayOptions | None = None,
        tls: ssl.SSLContext | None = None,
        access: Access | None = None,
    ) -> None:
        self._clock = store.clock
        self._options = options or GatewayOptions()
        self._awake = threading.Event()
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._inbox: deque[_Arrival] = deque()
        self._touched: dict[SocketPeer, None] = {}
        self._open: set[SocketPeer] = set()
        _allow_descriptors(self._options.most_consumers + SPARE_CONNECTIONS + OTHER_DESCRIPTORS)
        self.gateway = Gateway(store, instance, office, self._awake.set, self._options, access)
        self._loop = asyncio.new_event_loop()
        self._server = self._listen(listen, tls)
        self.address = _address(self._server)
        self._loop_thread = threading.Thread(target=self._loop.run_forever, name="socket-channel", daemon=True)
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._loop_thread.start()
        self._thread.start()

    def raise_failure(self) -> None:
        """Raises what has ended the gateway's thread, if anything has: whoever runs the instance must not go on."""
        if self._failure is not None:
            raise self._failure

    def close(self, timeout_s: float = 5.0) -> None:
        """Tells every consumer to look for the next coordinator, and ends. Safe to call twice."""
        self._stopping.set()
        self._awake.set()
        self._thread.join(timeout_s)
        if self._loop_thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(timeout_s)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(timeout_s)
            self._loop.close()

    def _listen(self, listen: str, tls: ssl.SSLContext | None) -> asyncio.Server:
        host, _, port = listen.rpartition(":")
        try:
            return self._loop.run_until_complete(
                self._loop.create_server(
                    lambda: SocketPeer(self), host.strip("[]") or None, int(port), ssl=tls, backlog=4_096
                )
            )
        except (OSError, ValueError) as error:
            self._loop.close()
            raise SettingsError(f"cannot listen on {listen!r} for consumers: {error}") from None

    async def _close_all(self) -> None:
        self._server.close()
        for peer in list(self._open):
            peer.flush(b"", close=True)
        deadline = self._loop.time() + CLOSING_S
        while self._open and self._loop.time() < deadline:
            await asyncio.sleep(0.01)

    # --- the loop's thread -------------------------------------------------------------------------------------------

    def may_accept(self, peer: SocketPeer) -> bool:
        if len(self._open) >= self._options.most_consumers + SPARE_CONNECTIONS:
            return False
        self._open.add(peer)
        return True

    def departed(self, peer: SocketPeer) -> None:
        self._open.discard(peer)

    def arrived(self, what: _Arrival) -> None:
        self._inbox.append(what)
        self._awake.set()

    def is_behind(self) -> bool:
        return len(self._inbox) > MAX_INBOX

    def resume_later(self, transport: asyncio.Transport) -> None:
        def resume() -> None:
            if self.is_behind():
                self._loop.call_later(0.05, resume)
            elif not transport.is_closing():
                transport.resume_reading()

        self._loop.call_later(0.05, resume)

    def _flush(self, sending: list[tuple[SocketPeer, bytes, bool]]) -> None:
        for peer, data, close in sending:
            peer.flush(data, close=close)

    # --- the gateway's thread ----------------------------------------------------------------------------------------

    def touched(self, peer: SocketPeer) -> None:
        """It has something to send, or is to be closed."""
        self._touched[peer] = None

    def _run(self) -> None:
        gateway = self.gateway
        try:
            while not self._stopping.is_set():
                self._awake.clear()
                self._take_in()
                due = gateway.step()
                self._send_out()
                if not self._inbox:
                    self._awake.wait(max(0.0, due - self._clock.monotonic()))
        except Exception as error:
            log.exception("the gateway ended: its instance ends too, so that another one is elected (a defect)")
            self._failure = error
        finally:
            gateway.close()
            self._send_out()

    def _take_in(self) -> None:
        gateway = self.gateway
        for _ in range(len(self._inbox)):
            arrival = self._inbox.popleft()
            peer = arrival.peer
            if isinstance(arrival, _Accepted):
                peer.connection = gateway.accepted(peer)
            elif peer.connection is None:
                continue
            elif isinstance(arrival, _Came):
                gateway.received(peer.connection, arrival.frame)
            elif isinstance(arrival, _Broken):
                gateway.broken(peer.connection, arrival.error)
            else:
                gateway.lost(peer.connection)

    def _send_out(self) -> None:
        if not self._touched:
            return
        sending: list[tuple[SocketPeer, bytes, bool]] = []
        for peer in self._touched:
            data, peer.unsent = b"".join(peer.unsent), []
            sending.append((peer, data, peer.closing))
        self._touched.clear()
        with suppress(RuntimeError):  # the loop is closed: nobody is there to send to
            self._loop.call_soon_threadsafe(self._flush, sending)


def _allow_descriptors(wanted: int) -> None:
    """As many open files as that, as far as this process may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    found = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (found, hard))
    if found < wanted:
        log.warning("may open %d files only, which %d consumers may exceed: raise the limit (ulimit -n)", found, wanted)


def _common_name(certificate: dict[str, Any] | None) -> str | None:
    """Of a certificate as :meth:`ssl.SSLSocket.getpeercert` gives it."""
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else None


def _address(server: asyncio.Server) -> str:
    host, port, *_ = server.sockets[0].getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


__all__ = ["GatewayServer", "SocketPeer"]
