"""The addresses of Kafka's brokers, read from their znodes, so that users only have to give ZooKeeper's address."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kafka_coord.errors import BrokerError, NoNode
from kafka_coord.model import Broker, Unreadable
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Brokers, decode_brokers, read_brokers
from kafka_coord.zk.store import GetData, Store, WatchEvent

log = logging.getLogger(__name__)


def choose(brokers: tuple[Broker, ...], protocol: str, listener: str | None) -> tuple[tuple[str, ...], str]:
    """Returns the addresses to connect to, and why no broker can be used ("" if one can, or if none is live). Picks
    each broker's first listener named ``listener`` or, if no name is given, the first that speaks ``protocol``.
    """
    addresses: list[str] = []
    for broker in brokers:
        for candidate in broker.listeners:
            if candidate.name == listener if listener else candidate.protocol == protocol:
                addresses.append(candidate.address)
                break
    if addresses or not brokers:
        return tuple(addresses), ""
    offered = sorted(
        {f"{candidate.name} ({candidate.protocol})" for broker in brokers for candidate in broker.listeners}
    )
    requirement = f"is named {listener!r}" if listener else f"speaks {protocol}"
    return (), (
        f"no listener of the {len(brokers)} live brokers {requirement}; they offer {', '.join(offered) or 'none'}."
        " Set kafka={'security.protocol': …} or listener=… accordingly"
    )


def log_left_out(broker: Unreadable) -> None:
    log.warning("skipped a broker path=%s reason=%s", broker.path, broker.reason)


def bootstrap_servers(
    store: Store, properties: Mapping[str, str], on_left_out: Callable[[Unreadable], None] = log_left_out
) -> str:
    """Returns ``bootstrap.servers`` if it is set, and otherwise the addresses of the live brokers. Calls
    ``on_left_out`` for each broker with an unusable registration. Raises :class:`BrokerError` if no broker is live, or
    if no live broker has a listener with the configured security protocol.
    """
    given = properties.get("bootstrap.servers") or properties.get("metadata.broker.list")
    if given:
        return given
    found = read_brokers(store) or Brokers()
    for one in found.unreadable:
        on_left_out(one)
    addresses, problem = choose(found.live, properties.get("security.protocol", "PLAINTEXT").upper(), None)
    if addresses:
        return ",".join(addresses)
    bad = "".join(f" ({one.path} cannot be read: {one.reason})" for one in found.unreadable[:1])
    raise BrokerError((problem or "no live broker is registered") + bad)


class BrokerDirectory:
    """Tracks the addresses of the live brokers. :meth:`step` runs on the owner's thread; the watch only wakes it."""

    def __init__(
        self, store: Store, wake: Callable[[], None], *, protocol: str = "PLAINTEXT", listener: str | None = None
    ) -> None:
        self._store = store
        self._wake = wake
        self._protocol = protocol.upper()
        self._listener = listener
        self._changed = True
        self._reported: frozenset[Unreadable] = frozenset()
        self.addresses: tuple[str, ...] = ()
        self.problem = ""

    def step(self) -> bool:
        """Reads the brokers if they may have changed. Returns whether the addresses or the problem changed. After
        ``StoreUnavailable``, call this method again later."""
        if not self._changed:
            return False
        self._changed = False
        try:
            live = self._read()
        except BaseException:
            self._changed = True
            raise
        before = self.addresses, self.problem
        self.addresses, self.problem = choose(live, self._protocol, self._listener)
        if (self.addresses, self.problem) == before:
            return False
        if self.problem:
            log.error("no usable broker: %s", self.problem)
        else:
            log.info("found brokers addresses=%s", ",".join(self.addresses) or "none")
        return True

    def look_again(self) -> None:
        """Makes the next step read the brokers, even if no watch has fired."""
        self._changed = True

    def _read(self) -> tuple[Broker, ...]:
        try:
            ids = self._store.children(layout.BROKER_IDS, self._on_change)
        except NoNode:
            ids = ()
        nodes = self._store.read_many([GetData(layout.broker(name)) for name in ids]) if ids else ()
        decoded = decode_brokers(ids, nodes)
        for skipped in decoded.unreadable:
            if skipped not in self._reported:
                log.warning("skipped a broker path=%s reason=%s", skipped.path, skipped.reason)
        self._reported = frozenset(decoded.unreadable)
        return decoded.live

    def _on_change(self, _event: WatchEvent) -> None:
        self._changed = True
        self._wake()
