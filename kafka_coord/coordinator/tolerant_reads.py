"""Reads that tolerate forbidden znodes, and a walk through the tree below a znode."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from kafka_coord.coordinator.remediation import what_to_do
from kafka_coord.errors import NoAuth
from kafka_coord.model import Unreadable
from kafka_coord.zk.store import GetChildren, Read, ReadResult, Store

Answer = ReadResult | Unreadable
"""The result of one read. :class:`Unreadable` means that the ACL forbids reading the znode."""

FORBIDDEN = "its ACL forbids reading it; grant the reader's ZooKeeper user READ, or delete it"

MOST_REPORTED = 10
"""The maximum number of lines that one pass logs about unreadable znodes, of which there may be thousands."""

log = logging.getLogger(__name__)


def read_each(store: Store, reads: Sequence[Read]) -> tuple[Answer, ...]:
    """Like :meth:`Store.read_many`, but returns :class:`Unreadable` for a znode whose ACL forbids reading, at the cost
    of more requests."""
    if not reads:
        return ()
    try:
        return store.read_many(reads)
    except NoAuth:
        if len(reads) == 1:
            return (Unreadable(reads[0].path, FORBIDDEN),)
    half = len(reads) // 2
    return read_each(store, reads[:half]) + read_each(store, reads[half:])


def tree_below(store: Store, path: str) -> list[str]:
    """Returns the path of every znode below ``path``, with parents before their children."""
    level, tree = [path], list[str]()
    while level:
        listings = store.read_many([GetChildren(parent) for parent in level])
        level = [
            f"{parent}/{name}"
            for parent, listing in zip(level, listings, strict=True)
            for name in (listing if isinstance(listing, tuple) else ())
        ]
        tree += level
    return tree


def report(saying: str, found: Iterable[Unreadable]) -> None:
    """Logs one line for each unreadable znode, up to :data:`MOST_REPORTED` lines."""
    sorted_found = sorted(found, key=lambda unreadable: unreadable.path)
    for unreadable in sorted_found[:MOST_REPORTED]:
        advice = what_to_do(unreadable.path)
        log.warning(
            "%s path=%s reason=%s; %s",
            saying,
            unreadable.path,
            unreadable.reason,
            advice,
            extra={"event": "znode_unreadable"},
        )
    if len(sorted_found) > MOST_REPORTED:
        parents = sorted({unreadable.path.rpartition("/")[0] for unreadable in sorted_found[MOST_REPORTED:]})
        log.warning("%s: %d more below %s", saying, len(sorted_found) - MOST_REPORTED, ", ".join(parents[:5]))
