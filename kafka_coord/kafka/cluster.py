"""Finds all brokers of a cluster through any one of them, and connects to a broker when there is a request for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka_coord.errors import BrokerError, NotFound, SettingsError
from kafka_coord.kafka.authentication import PLAINTEXT, BrokerSecurity, broker_security
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.kafka.errors import only
from kafka_coord.renewed import Renewed
from kafka_coord.settings import host_and_port
from kafka_coord.wire.messages import message

_METADATA = 4
"""The version of the Metadata request. Every broker from 0.11 to 3.9 supports it."""
_FIRST_ANSWER_S = 5.0

Address = tuple[str, int]


class ClusterClient:
    """A client for one cluster. ``bootstrap`` lists the addresses of some of its brokers. Call :meth:`close` after use.
    All requests raise :class:`BrokerError`."""

    def __init__(self, bootstrap: Sequence[Address], security: Renewed[BrokerSecurity] = PLAINTEXT) -> None:
        self._bootstrap, self._security = bootstrap, security
        self._connections: dict[Address, BrokerConnection] = {}

    @classmethod
    def of(cls, bootstrap: str, properties: Mapping[str, str]) -> ClusterClient:
        """Creates a client from a list of addresses (as in ``bootstrap.servers``) and librdkafka properties. Raises
        :class:`SettingsError`."""
        try:
            addresses = [host_and_port(one.strip()) for one in bootstrap.split(",")]
        except ValueError as error:
            raise SettingsError(f"kafka.bootstrap.servers: {error}; expected HOST:PORT[,HOST:PORT…]") from None
        return cls(addresses, broker_security(properties))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def to(self, address: Address) -> BrokerConnection:
        """Returns the connection to the broker at ``address``. Creates one if there is none yet, or after
        :meth:`close`."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = BrokerConnection(*address, self._security)
        return connection

    async def ask_any(self, name: str, version: int, value: Any) -> Any:
        """Returns the response from the first broker in ``bootstrap`` that answers."""
        reasons = []
        for address in self._bootstrap:
            try:
                return await self.to(address).ask(name, version, value, _FIRST_ANSWER_S)
            except BrokerError as error:
                reasons.append(str(error))
        raise BrokerError(f"no broker answers: {'; '.join(reasons) or 'none is registered'}")

    async def metadata(self, topics: Sequence[str] | None = None) -> Any:
        """Returns the metadata of the brokers and of the given topics, or of all topics by default."""
        form = message("MetadataRequest")
        topic = form.struct("MetadataRequestTopic")
        named = None if topics is None else tuple(topic(name=name) for name in topics)
        return await self.ask_any("Metadata", _METADATA, form(topics=named, allow_auto_topic_creation=False))

    async def leaders(self, topic: str) -> dict[int, Address]:
        """Returns the address of each partition's leader. Also raises :class:`NotFound` if the topic does not exist."""
        answer = await self.metadata([topic])
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        described = only(answer.topics, "topics")
        if not described.partitions:
            raise NotFound(f"topic {topic} does not exist, because no Kafka client has used a group yet")
        leaderless = [one.partition_index for one in described.partitions if one.leader_id not in nodes]
        if leaderless:
            raise BrokerError(
                f"topic {topic} has no leader for partitions {', '.join(map(str, leaderless))}; start their brokers"
            )
        return {one.partition_index: nodes[one.leader_id] for one in described.partitions}
