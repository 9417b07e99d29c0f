"""Limits the number of a listener's connections and their memory, and logs refused and closed connections."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from kafka_coord.frontends.kafka.limits import ClientLimits
from kafka_coord.frontends.kafka.statistics import Statistics

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.broker_end import BrokerEnd
    from kafka_coord.frontends.kafka.connection import ClientConnection

log = logging.getLogger(__name__)

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

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, client: ClientConnection) -> bool:
        """Returns whether the limits allow the connection, and counts it if they do."""
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
