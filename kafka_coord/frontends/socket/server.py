"""Serves the gateway's sockets. One thread serves all connections, and another runs the gateway."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections import deque
from contextlib import suppress

from kafka_coord.channel.frames import Rpc
from kafka_coord.channel.messages import Code
from kafka_coord.errors import SettingsError
from kafka_coord.frontends.listening import OTHER_DESCRIPTORS, Handshakes, allow_descriptors
from kafka_coord.frontends.socket.access import GatewayOptions, SocketAccess, UsersFile
from kafka_coord.frontends.socket.gateway import Gateway, LeadershipView
from kafka_coord.frontends.socket.peer import CLOSING_S, LARGE_BYTES, Inbox, Input, SocketPeer
from kafka_coord.settings import host_and_port
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

SPARE_CONNECTIONS = 1_000
"""How many connections are allowed in addition to one per consumer, for clients that only ask which instance is the
coordinator."""
MAX_TURNED_AWAY = 64
MAX_KEPT_BYTES = 64 << 20
"""The number of bytes that all connections together may buffer. Beyond that, a connection that buffers more than a
small frame is closed."""
_BACKLOG = 4_096
_ACCEPT_AT_ONCE = 128
_LOOK_AGAIN_S = 0.02


class GatewayServer:
    """Serves consumers on ``listen`` (``host:port``) until :meth:`close`. Port 0 means any free port.

    Raises :class:`SettingsError` if it cannot listen there.
    """

    def __init__(
        self,
        listen: str,
        store: Store,
        instance: int,
        leadership_view: LeadershipView,
        *,
        options: GatewayOptions | None = None,
        tls: ssl.SSLContext | None = None,
        access: SocketAccess | UsersFile | None = None,
    ) -> None:
        self._clock = store.clock
        self._options = options or GatewayOptions()
        self._awake = threading.Event()
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._inbox: Inbox[tuple[SocketPeer, Input]] = Inbox()
        self._touched: dict[SocketPeer, None] = {}
        self._open: set[SocketPeer] = set()
        self._turned_away = 0
        self._turns: dict[bool, deque[SocketPeer]] = {True: deque(), False: deque()}
        self._turn_is_due = False
        self.kept_bytes = 0
        """The total number of bytes that the connections buffer."""
        self._handshakes = None if tls is None else Handshakes(tls)
        self._securing: set[asyncio.Task[None]] = set()
        needed = self._options.most_consumers + SPARE_CONNECTIONS + OTHER_DESCRIPTORS
        allowed = allow_descriptors(needed)
        if allowed < needed:
            log.warning(
                "only %d open files are allowed, but %d are needed; raise the limit (ulimit -n)", allowed, needed
            )
        self.gateway = Gateway(store, instance, leadership_view, self._awake.set, self._options, access)
        self._loop = asyncio.new_event_loop()
        self._server = self._listen(listen)
        self.address = _address(self._server)
        self._loop_thread = threading.Thread(target=self._loop.run_forever, name="socket-channel", daemon=True)
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._loop_thread.start()
        self._thread.start()

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads that must live until :meth:`close`."""
        return self._loop_thread, self._thread

    def raise_failure(self) -> None:
        """Raises the error that ended the gateway's thread, if any. The instance must then end as well."""
        if self._failure is not None:
            raise self._failure

    def close(self, timeout_s: float = 5.0) -> None:
        """Tells every consumer to look for the next coordinator, and then stops serving. Waits up to ``timeout_s``
        seconds for each thread to end. May be called more than once."""
        self._stopping.set()
        self._awake.set()
        self._thread.join(timeout_s)
        if self._loop_thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(timeout_s)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(timeout_s)
            self._loop.close()

    def _listen(self, listen: str) -> asyncio.Server:
        host, port = host_and_port(listen)
        try:
            made = self._loop.run_until_complete(
                self._loop.create_server(lambda: SocketPeer(self), host, port, backlog=_ACCEPT_AT_ONCE)
            )
        except (OSError, ValueError) as error:
            self._loop.close()
            raise SettingsError(f"cannot listen on {listen!r} for consumers: {error}") from None
        # asyncio accepts up to ``backlog`` connections in one go, so only the kernel gets a long backlog
        for listening in made.sockets:
            with listening.dup() as same:
                same.listen(_BACKLOG)
        return made

    async def _close_all(self) -> None:
        self._server.close()
        for securing in self._securing:
            securing.cancel()
        for peer in list(self._open):
            peer.flush(b"", close=True)
        deadline = self._loop.time() + CLOSING_S
        while self._open and self._loop.time() < deadline:
            await asyncio.sleep(0.01)

    # --- on the loop's thread ----------------------------------------------------------------------------------------

    def made(self, peer: SocketPeer, transport: asyncio.Transport) -> None:
        """Counts an accepted connection, before any TLS handshake. The connection is not usable until
        :meth:`SocketPeer.open`."""
        if len(self._open) >= self._options.most_consumers + SPARE_CONNECTIONS:
            self._turn_away(peer, transport)
            return
        self._open.add(peer)
        if self._handshakes is None:
            peer.open(transport)
            return
        securing = self._loop.create_task(self._secure(peer, transport, self._handshakes))
        self._securing.add(securing)
        securing.add_done_callback(self._securing.discard)

    def _turn_away(self, peer: SocketPeer, transport: asyncio.Transport) -> None:
        if self._handshakes is not None or self._turned_away >= MAX_TURNED_AWAY:
            transport.abort()  # sending the reason would cost a handshake
            return
        self._turned_away += 1
        self._loop.call_later(CLOSING_S, self._has_turned_away)
        message = "this instance has reached its connection limit; try another instance, or retry later"
        peer.turn_away(transport, Rpc().refuse(0, Code.TOO_MANY_CONNECTIONS, message))

    def _has_turned_away(self) -> None:
        self._turned_away -= 1

    async def _secure(self, peer: SocketPeer, raw: asyncio.Transport, handshakes: Handshakes) -> None:
        """Performs the TLS handshake as soon as the limit on handshakes allows it."""
        try:
            transport = await handshakes.secure(raw, peer)
        except (OSError, asyncio.CancelledError) as error:
            log.debug("the TLS handshake failed address=%s: %s", peer.address, error)
            raw.abort()
            self.departed(peer)
            return
        if transport is None:  # the connection has been closed
            self.departed(peer)
        else:
            peer.open(transport)

    def departed(self, peer: SocketPeer) -> None:
        """Called when the connection has ended."""
        self._open.discard(peer)

    def arrived(self, peer: SocketPeer, what: Input, size: int = 0) -> None:
        """Passes input of ``size`` bytes to the gateway's thread."""
        self._inbox.put(peer.sender, (peer, what), size, member=peer.is_member)
        self._awake.set()

    def has_room(self, peer: SocketPeer, size: int) -> bool:
        """Returns whether a frame of ``size`` bytes may be read from the connection now."""
        return self._inbox.has_room(peer.sender, size, member=peer.is_member)

    def keeps(self, before: int, now: int) -> bool:
        """Accounts for a connection that now buffers ``now`` bytes instead of ``before``. Returns whether there is room
        for them."""
        self.kept_bytes += now - before
        return now <= LARGE_BYTES or self.kept_bytes <= MAX_KEPT_BYTES

    def wait_turn(self, peer: SocketPeer) -> None:
        """Queues the peer. When its turn comes, :meth:`SocketPeer.reads_on` is called."""
        self._turns[peer.is_member].append(peer)
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Lets one member and one other connection continue reading: of each kind, the first in the queue that may read
        now and has room for its next frame."""
        read = [self._read_on(waiting) for waiting in self._turns.values()]
        self._turn_is_due = any(self._turns.values())
        if self._turn_is_due and any(read):
            self._loop.call_soon(self._turn)
        elif self._turn_is_due:
            self._loop.call_later(_LOOK_AGAIN_S, self._turn)

    def _read_on(self, waiting: deque[SocketPeer]) -> bool:
        for _ in range(len(waiting)):
            peer = waiting.popleft()
            if peer.reads_on():
                return True
            waiting.append(peer)
        return False

    def _flush(self, sending: list[tuple[SocketPeer, bytes, bool, float]]) -> None:
        for peer, data, close, rest_s in sending:
            peer.flush(data, close=close, rest_s=rest_s)

    # --- on the gateway's thread -------------------------------------------------------------------------------------

    def touched(self, peer: SocketPeer) -> None:
        """Called when the peer has data to send, must stop reading for a while, or must be closed."""
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
            log.exception(
                "the gateway failed (this is a bug); ending this instance, so that another instance is elected"
            )
            self._failure = error
        finally:
            gateway.close()
            self._send_out()

    def _take_in(self) -> None:
        gateway = self.gateway
        for peer, pass_on in self._inbox.take():
            if peer.connection is None:
                peer.connection = gateway.accepted(peer)
            pass_on(gateway, peer.connection)

    def _send_out(self) -> None:
        if not self._touched:
            return
        sending: list[tuple[SocketPeer, bytes, bool, float]] = []
        for peer in self._touched:
            data, peer.unsent = b"".join(peer.unsent), []
            rest_s, peer.rest_s = peer.rest_s, 0.0
            sending.append((peer, data, peer.closing, rest_s))
        self._touched.clear()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._flush, sending)


def _address(server: asyncio.Server) -> str:
    host, port, *_ = server.sockets[0].getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
