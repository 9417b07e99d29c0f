"""The limits on Kafka clients. When one is reached, the instance pauses reading, or refuses or closes connections."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.frontends.listening import OTHER_DESCRIPTORS, allow_descriptors, allowed_descriptors


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
    """The limit for JoinGroup and SyncGroup, which contain the members' metadata and are buffered whole."""
    max_other_request_bytes: int = 1 << 20
    """The limit for every other request that this instance answers."""
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
