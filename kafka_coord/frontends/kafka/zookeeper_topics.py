"""Reads the topics' identities from ZooKeeper, for the groups of stock clients."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.grouplog.topics import LogTopics
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import decode_topic
from kafka_coord.zk.store import GetData, Node, SessionState, Store

log = logging.getLogger(__name__)


class ZooKeeperTopics(LogTopics):
    """The topics as ZooKeeper has them. ``watch`` makes another thread call back once now and after each change of a
    topic's znode. A topic is gone only if its znode is missing in a readable tree; a znode that cannot be read says
    nothing.

    :meth:`learn` sees every change that was made before the call. While ZooKeeper cannot be reached, what was known
    stays known: no topic can be made anew without ZooKeeper.
    """

    def __init__(self, store: Store, watch: Callable[[str, Callable[[], None]], None]) -> None:
        super().__init__()
        self._store, self._watch = store, watch
        self._reading = threading.Lock()
        self._wanted: set[str] = set()
        self._newest: asyncio.Task[None] | None = None
        self._has_begun = True
        """Whether the newest read has begun, so that it may miss later changes."""

    async def learn(self, topics: Iterable[str], *, follow: bool = False) -> None:
        names = sorted({topic for topic in topics if is_legal(topic)})
        if not names or self._store.session.state is not SessionState.CONNECTED:
            return
        self._wanted.update(names)
        if self._has_begun or self._newest is None:
            self._has_begun, self._newest = False, asyncio.create_task(self._read_wanted(self._newest))
        await asyncio.shield(self._newest)
        for topic in [one for one in names if follow and not self.is_followed(one) and self.identity(one)]:
            self.followed.add(topic)
            self._watch(topic, lambda topic=topic: self._changed(topic))  # type: ignore[misc]

    async def _read_wanted(self, before: asyncio.Task[None] | None) -> None:
        """Reads for all calls that were made while the read ``before`` was under way."""
        if before is not None:
            await asyncio.wait({before})
        names, self._wanted, self._has_begun = sorted(self._wanted), set(), True
        try:
            await asyncio.to_thread(self._read, names)
        except StoreError as error:
            log.info("cannot find out the ids of topics, so those known before are used: %s", error)

    def _changed(self, topic: str) -> None:
        self._read([topic], latest=False)

    def _read(self, names: Sequence[str], *, latest: bool = True) -> None:
        """Reads the topics' znodes, one read after another, so that an older state never replaces a newer one. If
        ``latest`` is set, the server catches up first. Raises :class:`StoreError`."""
        paths = [layout.broker_topic(topic) for topic in names]
        with self._reading:
            if latest:
                self._store.sync(layout.BROKER_TOPICS)
            parent, *nodes = read_each(self._store, [GetData(layout.BROKER_TOPICS), *map(GetData, paths)])
            for topic, node in zip(names, nodes, strict=True):
                if isinstance(node, Node):
                    try:
                        self.note(topic, decode_topic(topic, node, {}))
                    except MalformedValue as error:
                        log.info("cannot read the topic's znode: %s", error)
                elif node is None and isinstance(parent, Node):
                    self.note(topic, None)
