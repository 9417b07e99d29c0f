"""The addresses of the Kafka brokers, as learned over the socket channel."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.errors import MalformedValue
from kafka_coord.kafka.brokers import choose
from kafka_coord.model import Broker

log = logging.getLogger(__name__)


class SocketBrokers:
    """The socket channel's counterpart of :class:`kafka_coord.kafka.brokers.BrokerDirectory`. Any thread may report
    brokers with :meth:`learn`. ``ask`` requests the brokers from the coordinator, whose response arrives later."""

    def __init__(
        self,
        wake: Callable[[], None],
        ask: Callable[[], None],
        *,
        protocol: str = "PLAINTEXT",
        listener: str | None = None,
    ) -> None:
        self._wake = wake
        self._ask = ask
        self._protocol = protocol.upper()
        self._listener = listener
        self._changed = False
        self.addresses: tuple[str, ...] = ()
        self.problem = ""

    def learn(self, metadata: ClusterMetadata) -> None:
        """Stores the brokers from a host's response."""
        brokers = []
        for number, endpoints in metadata.brokers.items():
            written = {"endpoints": list(endpoints), "listener_security_protocol_map": dict(metadata.protocols)}
            try:
                brokers.append(Broker.from_json(written, number, f"broker {number}"))
            except MalformedValue as error:
                log.warning("skipped broker id=%d reason=%s", number, error.reason)
        addresses, problem = choose(tuple(brokers), self._protocol, self._listener)
        if not addresses:
            addresses = self.addresses  # brokers usually return at the same addresses
        if (addresses, problem) != (self.addresses, self.problem):
            self.addresses, self.problem = addresses, problem
            self._changed = True
            self._wake()

    def step(self) -> bool:
        """Returns whether the addresses or the problem have changed since the last step."""
        changed, self._changed = self._changed, False
        return changed

    def look_again(self) -> None:
        """Requests the brokers from the coordinator. Every new connection to a host also requests them."""
        self._ask()
