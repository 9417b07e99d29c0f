"""Reads and decoding that tolerate forbidden and malformed znodes, with a remedy for each, and a walk through the tree
below a znode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar, cast

from kafka_coord.errors import MalformedValue, NoAuth
from kafka_coord.model import Unreadable
from kafka_coord.model.names import RULE, is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, Node, Read, ReadResult, Store

log = logging.getLogger(__name__)

_BELOW_A_GROUP = {
    "assignment": "nothing is moved until a rebalance replaces it: kafka-coord groups rebalance {group}",
    "owners": "the partitions that {name} holds are unknown; evict it: kafka-coord groups evict {group} {name}",
    "ids": "{name} gets no partitions: repair or stop that consumer, or evict it:"
    " kafka-coord groups evict {group} {name}",
    "offsets": "its partition is not started until the offset is set again: kafka-coord groups reset-offsets {group}"
    " --topic {name}:{partition} --to-offset {offset} --execute; or, to start where auto.offset.reset says: kafka-coord"
    " groups delete-offsets {group} --topic {name}:{partition} --yes",
    "paused": "the group counts as paused until it is removed: kafka-coord groups resume {group}",
    "held": "nothing is started until it is deleted: zkCli.sh delete /consumers/groups/{group}/held, once no process of"
    " the lost tree can be reading",
    "history": "the next decision replaces it: kafka-coord groups rebalance {group}",
    "settled": "a new coordinator has to read the whole group: zkCli.sh delete /consumers/groups/{group}/settled",
    "unresolved": "{name} counts as allowed to read every topic: zkCli.sh delete"
    " /consumers/groups/{group}/unresolved/{name}",
    "channel": "its consumer has stopped carrying out commands; evict it: kafka-coord groups evict {group} {name}",
}
_LISTED = ("ids", "owners", "channel")
"""The znodes whose children show which consumers take part and what they hold."""
_ELSEWHERE = {
    layout.PAUSED: "all groups count as paused until it is removed: kafka-coord groups resume --all",
    layout.BROKER_TOPICS: "Kafka wrote it; until it can be read, its partitions stay with their owners",
    layout.BROKER_IDS: "restart its broker, which writes it again (see advertised.listeners);"
    " delete it if no broker has that id",
    layout.REQUESTS: "the request is not carried out; delete it",
    layout.CLUSTER: "nobody can read brokers and topics; the elected instance writes it again if it knew it; otherwise,"
    " set it to what a backup of this tree has (zkCli.sh set)",
    layout.RESTORED: "no instance starts; delete it once no process of the lost tree can be reading",
    layout.KINDS: "no instance can begin to coordinate Kafka clients' groups of that partition; delete that znode: the"
    " instances write again which groups they coordinate",
}
_ANYTHING_ELSE = "repair it with zkCli.sh, or delete it"


def what_to_do(path: str, offset: int | None = None) -> str:
    """Returns the remedy for an unreadable znode, as a clause without a full stop. ``offset`` is the last known
    value of an unreadable offset."""
    for place, advice in _ELSEWHERE.items():
        if path == place or path.startswith(f"{place}/"):
            return advice
    group, _, below = path.removeprefix(f"{layout.GROUPS}/").partition("/")
    if not path.startswith(layout.group(group)):
        return _ANYTHING_ELSE
    if not is_legal(group):
        return "no command accepts that group name; delete the znode with everything below it (zkCli.sh deleteall)"
    if below in _LISTED:
        return (
            f"no decisions are made for {group}; give the coordinator's user permission to read it: kafka-coord acl"
            f" apply, or in an open cluster zkCli.sh setAcl {path} world:anyone:cdrwa, as its creator or as"
            " ZooKeeper's super user"
        )
    if not below:
        return (
            "the defaults apply until the settings are written again:"
            f" kafka-coord groups settings {group} --rebalance-timeout-ms 60000"
        )
    kind, _, name = below.partition("/")
    name, _, partition = name.partition("/")
    if (name and not is_legal(name)) or (kind == "offsets" and not partition):
        return _ANYTHING_ELSE
    value = "N" if offset is None else offset
    return _BELOW_A_GROUP.get(kind, _ANYTHING_ELSE).format(group=group, name=name, partition=partition, offset=value)


T = TypeVar("T")
Answer = ReadResult | Unreadable
"""The result of one read. :class:`Unreadable` means that the ACL forbids reading the znode."""

FORBIDDEN = "its ACL forbids reading it; grant the reader's ZooKeeper user READ, or delete it"

MOST_REPORTED = 10
"""The maximum number of lines that one pass logs about unreadable znodes, of which there may be thousands."""


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


class Decoding:
    """Decodes the results of reads and collects those that cannot be decoded. ``known`` maps the path of each znode
    that has been decoded before to the zxid of its last write (mzxid) and its value; ``values`` is the same for
    the next time. ``hidden`` are the unreadable listings that every decision needs."""

    def __init__(self, known: Mapping[str, tuple[int, object]] = MappingProxyType({})) -> None:
        self.known = known
        self.values: dict[str, tuple[int, object]] = {}
        self.unreadable: list[Unreadable] = []
        self.hidden: list[Unreadable] = []

    def listing(self, found: Answer) -> tuple[str, ...] | None:
        """Returns children that every decision needs, or ``None`` if their parent does not exist or is hidden."""
        if isinstance(found, Unreadable):
            self.hidden.append(found)
            self.unreadable.append(found)
        return found if isinstance(found, tuple) else None

    def children(self, found: Answer) -> tuple[str, ...]:
        """Returns the children of a parent that may be missing or unreadable."""
        if isinstance(found, Unreadable):
            self.unreadable.append(found)
        return found if isinstance(found, tuple) else ()

    def names(self, parent: str, found: Answer) -> tuple[str, ...]:
        listing = self.listing(found) or ()
        for name in listing:
            if not is_legal(name):
                reason = f"the name {name[:80]!r} is not legal: use {RULE}"
                self.unreadable.append(Unreadable(f"{parent}/{name}", reason))
        return tuple(name for name in listing if is_legal(name))

    def decode(self, where: str, found: Answer, decoder: Callable[[str, Node], T], empty: T | None = None) -> T | None:
        """Decodes a znode. Returns ``None`` if the znode does not exist, and ``empty`` if it is empty or unreadable."""
        if isinstance(found, Unreadable):
            self.unreadable.append(found)
            return empty
        if not isinstance(found, Node):
            return None
        if not found.data and empty is not None:
            return empty
        mzxid, value = self.known.get(where, (-1, None))
        try:
            # the cast is safe, because each path has only one decoder
            decoded = cast("T", value) if mzxid == found.stat.mzxid else decoder(where, found)
        except MalformedValue as error:
            self.unreadable.append(Unreadable(error.where, error.reason, found.stat.czxid))
            return empty
        self.values[where] = found.stat.mzxid, decoded
        return decoded

    def decode_each(
        self, found: Mapping[str, Answer], where: Callable[[str], str], decoder: Callable[[str, Node], T]
    ) -> dict[str, T]:
        decoded = {consumer: self.decode(where(consumer), node, decoder) for consumer, node in found.items()}
        return {consumer: value for consumer, value in decoded.items() if value is not None}


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
