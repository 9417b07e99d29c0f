"""The limits on Kafka clients: connections, bytes and time. Beyond a limit, the instance closes a connection."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.frontends.descriptors import OTHER_DESCRIPTORS, allow_descriptors, allowed_descriptors


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits. The defaults are Kafka's where Kafka has such a limit."""

    max_connections: int = 10_000
    max_connections_per_ip: int | None = None
    """``None`` means three quarters of :attr:`max_connections`, so that one address never has all of them."""
    max_request_bytes: int = 100 << 20
    """``socket.request.max.bytes``. Larger requests are refused, although requests for the broker are never buffered
    whole."""
    max_group_request_bytes: int = 8 << 20
    """The limit for JoinGroup and SyncGroup, which are kept whole and contain the members' metadata."""
    max_other_request_bytes: int = 1 << 20
    """The limit for every other request that this instance answers."""
    max_in_flight: int = 1_000
    """The maximum number of unanswered requests of one connection. Beyond that, reading from it pauses."""
    max_answer_bytes: int = 1 << 20
    """The maximum number of unsent answer bytes of one connection. Beyond that, reading from it pauses."""
    max_kept_bytes: int = 256 << 20
    """The limit for all connections together, like ``queued.max.request.bytes``. It counts requests that have not
    arrived completely or are being answered, and answers that are not read."""
    first_request_s: float = 30.0
    """Seconds in which a new connection must send its first request, including the TLS handshake."""
    request_s: float = 60.0
    """Seconds in which a request must arrive, plus one second for each :attr:`slowest_bytes_a_second` bytes."""
    slowest_bytes_a_second: int = 16 << 10
    idle_s: float = 600.0
    """Seconds that a client may send no request, or read no answers (``connections.max.idle.ms``)."""

    def connections(self) -> int:
        """The maximum number of open connections. Each may need a second descriptor, to the broker."""
        return min(self.max_connections, (allowed_descriptors() - OTHER_DESCRIPTORS) // 2)

    def allow_descriptors(self) -> None:
        """Raises this process's limit on open files, as far as possible, to the number that all connections need."""
        allow_descriptors(2 * self.max_connections + OTHER_DESCRIPTORS)

    def connections_per_ip(self) -> int:
        if self.max_connections_per_ip is not None:
            return self.max_connections_per_ip
        return max(1, self.max_connections * 3 // 4)

    def overdue_check_s(self) -> float:
        """Returns the seconds between two checks for overdue connections."""
        return min(2.0, self.first_request_s / 4, self.request_s / 4, self.idle_s / 4)
