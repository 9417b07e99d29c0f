"""Follows which instances serve Kafka clients: those whose znodes name the endpoint ``kafka``. A znode exists until its
instance's ZooKeeper session ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from kafka_coord.errors import MalformedValue, NoNode, StoreUnavailable
from kafka_coord.model import CoordinatorInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.settings import host_and_port
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store, WatchEvent

log = logging.getLogger(__name__)

Address = tuple[str, int]
READ_AGAIN_S = 5.0
"""How often to read the znodes even though no watch has fired, in seconds."""
_UNWATCHED_S = 0.5
"""How often to read them while there is no watch."""


class RegisteredInstances:
    """Keeps the addresses of the registered instances up to date. Use only on the event loop.

    While ZooKeeper does not answer, the last known addresses remain valid, because no session ends without ZooKeeper.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.addresses: Mapping[int, Address | None] = {}
        """The host and port where each instance serves Kafka clients, by broker id. ``None`` if the znode of a running
        instance cannot be read."""

    async def follow(self) -> None:
        """Reads the addresses whenever a registration begins, changes or ends. Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def changed(_event: WatchEvent) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(news.set)

        while True:
            news.clear()
            pause_s = READ_AGAIN_S
            try:
                found, is_watched = await asyncio.to_thread(read_addresses, self._store, changed)
                if not is_watched:
                    pause_s = _UNWATCHED_S
                self.addresses = found
            except StoreUnavailable as error:
                log.debug("cannot read which instances are registered: %s; retrying", error)
                pause_s = _UNWATCHED_S
            except Exception:
                log.exception("cannot read which instances are registered (this is a bug); retrying")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await news.wait()


def read_addresses(store: Store, changed: Callable[[WatchEvent], None]) -> tuple[dict[int, Address | None], bool]:
    """Returns the addresses where the registered instances serve Kafka clients, by broker id, and whether a watch is
    set, which calls ``changed`` when an instance is added, removed or written. Raises :class:`StoreUnavailable`."""
    try:
        names = store.children(layout.COORDINATORS, changed)
    except NoNode:
        return {}, False
    addresses: dict[int, Address | None] = {}
    for name in names:
        path = f"{layout.COORDINATORS}/{name}"
        try:
            info = CoordinatorInfo.from_json(fields.load(store.get(path, changed).data, path), path)
            if "kafka" in info.endpoints:
                addresses[info.broker_id] = host_and_port(info.endpoints["kafka"])
        except NoNode:
            continue
        except (MalformedValue, ValueError):
            if name.isdecimal():
                addresses[int(name)] = None
    return addresses, True
