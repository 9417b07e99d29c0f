"""Where the Kafka brokers are: read from their own znodes, so that users name ZooKeeper only."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka_coord.errors import MalformedValue, NoNode
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Node, Store, WatchEvent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listener:
    """One address of a broker: its listener name, the security protocol spoken there, and ``host:port``."""

    name: str
    protocol: str
    address: str


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker, as its registration under ``/brokers/ids`` describes it."""

    broker_id: str
    listeners: tuple[Listener, ...]

    @classmethod
    def from_znode(cls, data: bytes, broker_id: str, where: str) -> Broker:
        """Reads every version Kafka has written: ``host``/``port`` only (0.8) up to named listeners (since 0.10.2).

        Raises :class:`MalformedValue`. Kafka's rule: ``kafka.zk.BrokerIdZNode.decode``.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MalformedValue(where, f"not JSON ({error})") from None
        if not isinstance(value, dict):
            raise MalformedValue(where, "not a JSON object")
        endpoints = value.get("endpoints")
        if endpoints is None:
            return cls(broker_id, (Listener("PLAINTEXT", "PLAINTEXT", _host_port(value, where)),))
        if not isinstance(endpoints, list):
            raise MalformedValue(where, "field 'endpoints' is not a list")
        protocols = value.get("listener_security_protocol_map", {})
        if not isinstance(protocols, dict):
            raise MalformedValue(where, "field 'listener_security_protocol_map' is not an object")
        return cls(broker_id, tuple(_listener(endpoint, protocols, where) for endpoint in endpoints))


def _host_port(value: Mapping[str, Any], where: str) -> str:
    host, port = value.get("host"), value.get("port")
    if not isinstance(host, str) or not host or not isinstance(port, int) or not 0 < port < 65_536:
        raise MalformedValue(where, f"no usable address: host {fields.shown(host)}, port {fields.shown(port)}")
    return _address(host, port)


def _listener(endpoint: object, protocols: Mapping[str, Any], where: str) -> Listener:
    name, separator, rest = endpoint.partition("://") if isinstance(endpoint, str) else ("", "", "")
    host, colon, port = rest.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536
    if not separator or not colon or not name or not is_port:
        raise MalformedValue(where, f"endpoint {fields.shown(endpoint, 80)} is not NAME://host:port")
    protocol = fields.plain(protocols.get(name, name)).upper()
    return Listener(name, protocol, _address(host.strip("[]"), int(port)))


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def choose(brokers: tuple[Broker, ...], protocol: str, listener: str | None) -> tuple[tuple[str, ...], str]:
    """The addresses to begin with, and, where brokers live but none can be used, what is wrong ("" otherwise).

    Of each broker the first listener of that name, or without a name the first that speaks ``protocol``.
    """
    addresses: list[str] = []
    for broker in brokers:
        for found in broker.listeners:
            if found.name == listener if listener else found.protocol == protocol:
                addresses.append(found.address)
                break
    if addresses or not brokers:
        return tuple(addresses), ""
    offered = sorted({f"{found.name} ({found.protocol})" for broker in brokers for found in broker.listeners})
    wanted = f"is named {listener!r}" if listener else f"speaks {protocol}"
    return (), (
        f"no listener of the {len(brokers)} live brokers {wanted}; they have {', '.join(offered) or 'none'}."
        " Set kafka={'security.protocol': …} or listener=… accordingly"
    )


class BrokerDirectory:
    """Keeps the addresses of live brokers. :meth:`step` runs on its owner's thread, fed by a watch that only wakes."""

    def __init__(
        self, store: Store, wake: Callable[[], None], *, protocol: str = "PLAINTEXT", listener: str | None = None
    ) -> None:
        self._store = store
        self._wake = wake
        self._protocol = protocol.upper()
        self._listener = listener
        self._changed = True
        self._reported: set[str] = set()
        self.addresses: tuple[str, ...] = ()
        self.problem = ""

    def step(self) -> bool:
        """Looks if something may have changed; whether it did. Raises ``StoreUnavailable``: call again later."""
        if not self._changed:
            return False
        self._changed = False
        try:
            found = self._read()
        except BaseException:
            self._changed = True
            raise
        before = self.addresses, self.problem
        self.addresses, self.problem = choose(found, self._protocol, self._listener)
        if (self.addresses, self.problem) == before:
            return False
        if self.problem:
            log.error("found no usable broker: %s", self.problem)
        else:
            log.info("found brokers addresses=%s", ",".join(self.addresses) or "none")
        return True

    def look_again(self) -> None:
        """Makes the next step look, watch or no watch."""
        self._changed = True

    def _read(self) -> tuple[Broker, ...]:
        try:
            ids = self._store.children(layout.BROKER_IDS, self._on_change)
        except NoNode:
            ids = ()
        brokers = []
        nodes = self._store.read_many([GetData(layout.broker(broker_id)) for broker_id in ids])
        for broker_id, node in zip(ids, nodes, strict=True):
            if not isinstance(node, Node):  # gone since the listing
                continue
            path = layout.broker(broker_id)
            try:
                brokers.append(Broker.from_znode(node.data, broker_id, path))
            except MalformedValue as error:
                if path not in self._reported:
                    self._reported.add(path)
                    log.warning("skipped broker id=%s: %s", broker_id, error)
        return tuple(brokers)

    def _on_change(self, _event: WatchEvent) -> None:
        self._changed = True
        self._wake()
