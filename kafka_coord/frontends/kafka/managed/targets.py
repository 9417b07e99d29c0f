"""Reads groups' targets from ZooKeeper while members are waiting for their shares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from kafka_coord.coordinator.image import decode_assignment
from kafka_coord.errors import MalformedValue
from kafka_coord.model import PartitionSet
from kafka_coord.zk import layout
from kafka_coord.zk.store import Node, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

Target = Mapping[str, PartitionSet]
"""Maps each consumer to its share."""


class Targets:
    """Watches the targets of groups. Calls ``tell`` with a group's target when it is first read, and after each change.
    Not thread-safe."""

    def __init__(self, store: Store, wake: Callable[[], None], tell: Callable[[str, Target], None]) -> None:
        self._watches, self._tell = Watches(store, wake), tell
        self._followed: set[str] = set()

    def step(self, wanted: set[str]) -> None:
        """Watches the targets of the given groups, and of no others. Raises :class:`StoreUnavailable`."""
        for group in self._followed - wanted:
            self._watches.drop(layout.assignment(group))
        for group in wanted - self._followed:
            self._watches.data(layout.assignment(group), partial(self._changed, group))
        self._followed = wanted
        self._watches.step()

    def _changed(self, group: str, node: Node | None) -> None:
        path = layout.assignment(group)
        target: Target = {}
        if node is not None:
            try:
                target = decode_assignment(path, node).members
            except MalformedValue as error:
                log.warning("cannot read the target of group=%s: %s", group, error)
        self._tell(group, target)

    def close(self) -> None:
        self._watches.close()
