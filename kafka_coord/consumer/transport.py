"""The ways in which a consumer takes part: over ZooKeeper, or over a socket to the coordinator."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable
from typing import Protocol

from kafka_coord.channel.client import SocketClient
from kafka_coord.channel.interface import Channel, Connection
from kafka_coord.channel.link import SocketLink
from kafka_coord.channel.search import addresses
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.brokers import BrokerDirectory
from kafka_coord.consumer.socket_brokers import SocketBrokers
from kafka_coord.errors import SettingsError
from kafka_coord.zk.clock import SystemClock
from kafka_coord.zk.options import ZkOptions
from kafka_coord.zk.store import Store

ANSWER_S = 10.0
"""How long a request to the coordinator is waited for at a time."""


class Brokers(Protocol):
    """Where Kafka's brokers are. All on the connector's thread."""

    addresses: tuple[str, ...]
    problem: str

    def step(self) -> bool: ...

    def look_again(self) -> None: ...


class Transport(Protocol):
    """Everything of a consumer that differs from one way to the other."""

    connection: Connection
    channel: Channel
    brokers: Brokers

    def start(self) -> None:
        """Once everything that hears of it is there."""

    def close(self) -> None:
        """When the connector has ended."""


class ZooKeeperTransport:
    """Over a store of its own, or over one that is somebody else's to close."""

    def __init__(
        self,
        zookeeper: str | None,
        store: Store | None,
        *,
        group: str,
        consumer: str,
        session_timeout_ms: int,
        options: ZkOptions | None,
        wake: Callable[[], None],
        protocol: str,
        listener: str | None,
    ) -> None:
        self._own: Store | None = None
        if store is None:
            store = self._own = _open(zookeeper, session_timeout_ms, options)
        self.connection: Connection = store
        self.channel: Channel = ConsumerChannel(store, group, consumer)
        self.brokers: Brokers = BrokerDirectory(store, wake, protocol=protocol, listener=listener)

    def start(self) -> None:
        """It is open already."""

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


def _open(zookeeper: str | None, session_timeout_ms: int, options: ZkOptions | None) -> Store:
    if not zookeeper:
        raise SettingsError(
            "neither zookeeper nor bootstrap is given: use zookeeper='host:port,host:port/chroot', the address Kafka's"
            " brokers use, or bootstrap='host:port' of broker hosts where kafka-coord listens for consumers"
        )
    from kafka_coord.zk.session import connect

    return connect(zookeeper, session_timeout_ms=session_timeout_ms, options=options)


class SocketTransport:
    """Over a connection to the coordinator, found through any broker host."""

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str,
        consumer: str,
        session_timeout_ms: int,
        auto_commit: bool,
        wake: Callable[[], None],
        protocol: str,
        listener: str | None,
        tls: ssl.SSLContext | None,
        secret: str | None,
    ) -> None:
        hosts = addresses(bootstrap)
        brokers = SocketBrokers(wake, self._ask, protocol=protocol, listener=listener)
        link = self._link = SocketLink(
            group,
            consumer,
            SystemClock(),
            session_timeout_ms=session_timeout_ms,
            resume_key=secrets.token_hex(8),
            auto_commit=auto_commit,
            wake=wake,
            secret=secret,
            patience_s=ANSWER_S,
            on_metadata=brokers.learn,
        )
        self._client = SocketClient(hosts, link, on_metadata=brokers.learn, tls=tls)
        self.connection: Connection = link
        self.channel: Channel = link
        self.brokers: Brokers = brokers

    def _ask(self) -> None:
        self._link.ask_metadata()

    def start(self) -> None:
        self._client.start()

    def close(self) -> None:
        self._link.close()
        self._client.close()
