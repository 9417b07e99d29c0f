"""The transports of a membership, a ZooKeeper session or a socket to the coordinator, and the brokers' addresses that
a consumer learns over them."""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kafka_coord.channel.link import SocketClient, SocketLink
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.channel.operations import MemberChannel, SessionHandle
from kafka_coord.channel.search import addresses
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.settings import ConsumerOptions, MemberSettings, ReadingSettings, between
from kafka_coord.consumer.troubles import Look, look_in_zookeeper
from kafka_coord.errors import MalformedValue, SettingsError, StoreUnavailable
from kafka_coord.kafka.brokers import BrokerDirectory, choose
from kafka_coord.model import Broker
from kafka_coord.settings import DEFAULT_SESSION_TIMEOUT_MS, DEFAULT_SOCKET_SESSION_TIMEOUT_MS
from kafka_coord.zk import SystemClock
from kafka_coord.zk.options import ZkOptions
from kafka_coord.zk.store import SessionState, Store

log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""The longest wait, in seconds, for the coordinator's response to one request."""
_LOOKUP_S = 30.0
_RETRY_S = 1.0


class BrokerAddresses(Protocol):
    """The addresses of Kafka's brokers. Only the connector's thread calls its methods."""

    addresses: tuple[str, ...]
    problem: str

    def step(self) -> bool: ...

    def look_again(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a consumer joins its group: through ZooKeeper (``zookeeper`` or an open ``store``) or through a coordinator's
    socket (``bootstrap``). If ``session_timeout_ms`` is ``None``, the transport's default applies."""

    zookeeper: str | None = None
    store: Store | None = None
    zk_options: ZkOptions | None = None
    bootstrap: str | None = None
    tls: ssl.SSLContext | None = None
    secret: str | None = None
    session_timeout_ms: int | None = None

    @classmethod
    def of(cls, zookeeper: str | None, options: ConsumerOptions[Any, Any]) -> Endpoint:
        """Returns the options that say how to join. Raises :class:`SettingsError` for an invalid session timeout."""
        endpoint = cls(
            zookeeper=zookeeper,
            store=options.get("store"),
            zk_options=options.get("zk_options"),
            bootstrap=options.get("bootstrap"),
            tls=options.get("tls"),
            secret=options.get("secret"),
            session_timeout_ms=options.get("session_timeout_ms"),
        )
        endpoint.session_timeout()
        return endpoint

    def session_timeout(self) -> int:
        """Returns the session timeout in ms. Raises :class:`SettingsError`."""
        if self.session_timeout_ms is None:
            return DEFAULT_SESSION_TIMEOUT_MS if self.bootstrap is None else DEFAULT_SOCKET_SESSION_TIMEOUT_MS
        return between("session_timeout_ms", self.session_timeout_ms, 100, 3_600_000)


class Transport(Protocol):
    """What differs between consumers with a ZooKeeper session and consumers with a socket."""

    handle: SessionHandle
    channel: MemberChannel
    brokers: BrokerAddresses
    look: Look | None
    """Finds out which topics exist. ``None``: only the brokers know."""

    def start(self) -> None:
        """Starts the transport. Call it once all listeners exist."""

    def close(self) -> None:
        """Closes the transport. Call it only after the connector has ended."""


def open_transport(
    endpoint: Endpoint, settings: MemberSettings, reading: ReadingSettings, wake: Callable[[], None]
) -> Transport:
    """Opens the transport that the endpoint selects. Raises :class:`SettingsError`, and any error raised while
    opening a ZooKeeper session."""
    endpoint.session_timeout()
    if endpoint.bootstrap is None:
        return ZooKeeperTransport(endpoint, settings, reading, wake)
    if endpoint.zookeeper is not None or endpoint.store is not None:
        raise SettingsError("give zookeeper or bootstrap, not both")
    return SocketTransport(endpoint, endpoint.bootstrap, settings, reading, wake)


class ZooKeeperTransport:
    """Uses a store that it opens itself, or a store that the caller passes in and later closes."""

    def __init__(
        self, endpoint: Endpoint, settings: MemberSettings, reading: ReadingSettings, wake: Callable[[], None]
    ) -> None:
        self._own: Store | None = None
        store = endpoint.store
        if store is None:
            store = self._own = _open(endpoint)
        self.handle: SessionHandle = store
        self.channel: MemberChannel = ConsumerChannel(store, settings.group, settings.member.consumer)
        self.brokers: BrokerAddresses = BrokerDirectory(
            store, wake, protocol=reading.security_protocol, listener=reading.listener
        )
        self.look: Look | None = look_in_zookeeper(store, settings.group)

    def start(self) -> None:
        """Does nothing: the store is already open."""

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


def _open(endpoint: Endpoint) -> Store:
    if not endpoint.zookeeper:
        raise SettingsError(
            "neither zookeeper nor bootstrap is given: set zookeeper='host:port,host:port/chroot', the brokers' own"
            " zookeeper.connect, or bootstrap='host:port' of broker hosts where kafka-coord listens for consumers"
        )
    from kafka_coord.zk.session import connect

    return connect(endpoint.zookeeper, session_timeout_ms=endpoint.session_timeout(), options=endpoint.zk_options)


class SocketTransport:
    """Uses a connection to the coordinator. Any broker host can tell a consumer the coordinator's address."""

    def __init__(
        self,
        endpoint: Endpoint,
        bootstrap: str,
        settings: MemberSettings,
        reading: ReadingSettings,
        wake: Callable[[], None],
    ) -> None:
        hosts = addresses(bootstrap)
        brokers = SocketBrokers(wake, self._ask, protocol=reading.security_protocol, listener=reading.listener)
        link = self._link = SocketLink(
            settings.group,
            settings.member.consumer,
            SystemClock(),
            session_timeout_ms=endpoint.session_timeout(),
            resume_key=secrets.token_hex(8),
            auto_commit=reading.auto_commit_interval_s is not None,
            wake=wake,
            secret=endpoint.secret,
            patience_s=ANSWER_S,
            on_metadata=brokers.learn,
        )
        self._client = SocketClient(hosts, link, on_metadata=brokers.learn, tls=endpoint.tls)
        self.handle: SessionHandle = link
        self.channel: MemberChannel = link
        self.brokers: BrokerAddresses = brokers
        self.look: Look | None = None

    def _ask(self) -> None:
        self._link.ask_metadata()

    def start(self) -> None:
        self._client.start()

    def close(self) -> None:
        self._link.close()
        self._client.close()


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
            return now + _LOOKUP_S
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
