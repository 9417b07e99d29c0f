"""Keeps the fetchers connected to Kafka's brokers. Runs on the connector's thread."""

from __future__ import annotations

from collections.abc import Callable

from kafka_coord.consumer.transport import Transport
from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk.store import SessionState

_LOOKUP_S = 30.0
_RETRY_S = 1.0


class BrokerLookup:
    """Looks up the brokers and passes their addresses to ``connect``. If the application gives ``bootstrap_servers``,
    passes those on instead, without a look-up."""

    def __init__(
        self, transport: Transport, bootstrap_servers: str | None, connect: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._handle = transport.handle
        self._brokers = transport.brokers
        self._given = tuple(bootstrap_servers.split(",")) if bootstrap_servers else ()
        self._connect = connect
        self._due = 0.0

    @property
    def problem(self) -> str:
        """Why no broker can be used, or "" if one can be used or none is known yet."""
        return self._brokers.problem if not self._brokers.addresses else ""

    def step(self, now: float) -> float:
        """Looks up the brokers if a look-up is due. Returns the time for the next call."""
        if self._given:
            self._connect(self._given)
            return float("inf")
        if now >= self._due:
            self._brokers.look_again()
        if self._handle.session.state is not SessionState.CONNECTED:
            return now + _RETRY_S
        try:
            if self._brokers.step():
                self._due = now + _LOOKUP_S
        except StoreUnavailable:
            self._due = now + _RETRY_S
            return self._due
        if now >= self._due:
            self._due = now + (_LOOKUP_S if self._brokers.addresses else _RETRY_S)
        self._connect(self._brokers.addresses)
        return self._due
