"""What ties the groups log to a coordination tree (ADR 57): the znodes that number the terms of its partitions, and
what the log itself tells of the trees that have claimed it.

A partition's znode ``/consumers/kafka/<n>`` is set by compare-and-set for each claim. It holds the term's number, which
is greater than the number before, the znode's version and the newest term in the log: numbers go on although the znode
was made anew, and in another tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from kafka_coord.errors import (
    BadVersion,
    BrokerError,
    Fenced,
    MalformedValue,
    MultiFailed,
    NodeExists,
    NoNode,
    NotFound,
    StoreUnavailable,
    TreeRefused,
)
from kafka_coord.grouplog.records import Claim, GroupEntry, OffsetEntry, is_claim, read_claim, read_record
from kafka_coord.grouplog.term import TOPIC, Claimed, LogLoad, LogTerm, TermEnded, next_term
from kafka_coord.kafka.cluster import Address, ClusterClient
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.model import json_fields as fields
from kafka_coord.wire.messages import BadMessage
from kafka_coord.zk import layout
from kafka_coord.zk.election import MAX_EPOCH, decode_epoch
from kafka_coord.zk.fencing import multi_fenced
from kafka_coord.zk.root import ClusterRecord, OwnTree
from kafka_coord.zk.store import Check, GetData, Node, SessionState, SetData, Stat, Store

EPOCH_MARGIN = 100_000
"""By how much the epoch of a new tree exceeds every known one: more elections may have followed than anybody knows."""
_AT_ONCE = 8
_ATTEMPTS = 20
_AGAIN_S = 0.25


# --- the znodes of the partitions -------------------------------------------------------------------------------------


def claim_term(
    store: Store,
    partition: int,
    broker_id: int | None,
    tree: OwnTree,
    *,
    newest: int = -1,
    managed_groups: str | None = None,
) -> Claimed:
    """Claims a term by compare-and-set on the partition's znode, if ``tree`` is still there. The value names the term,
    the broker (``None``: nobody serves the term) and the instance's ``managed_groups``. ``newest`` is the newest term
    in the log. Raises :class:`BadVersion` if another instance was faster, :class:`StoreUnavailable`,
    :class:`TreeRefused`, :class:`MalformedValue` if the znode's number cannot be read, and :class:`BrokerError` if
    there is no further term."""
    while True:
        try:
            return _claim_once(store, partition, broker_id, tree, newest, managed_groups)
        except MultiFailed as error:
            if error.index:
                raise error.cause from None
            # the tree's record has changed, perhaps only in where the metadata is: read it again


def _claim_once(
    store: Store, partition: int, broker_id: int | None, tree: OwnTree, newest: int, managed_groups: str | None
) -> Claimed:
    path = layout.log_partition(partition)
    reads = [GetData(one) for one in (path, layout.CLUSTER, layout.COORDINATOR_EPOCH)]
    node, record, epoch = store.read_many(reads)
    if node is None:
        store.ensure_path(layout.LOG_PARTITIONS)
        with suppress(NodeExists):
            store.create(path, b"")
        node, record, epoch = store.read_many(reads)
    tree.check(record if isinstance(record, Node) else None)
    if not isinstance(node, Node) or not isinstance(record, Node):
        raise NoNode(f"{path} has just vanished", path)
    version = node.stat.version
    term = next_term(max(stored_term(path, node), newest))
    value: dict[str, object] = {"version": fields.VERSION, "term": term}
    value |= {"broker": broker_id} if broker_id is not None else {}
    value |= {"managed_groups": managed_groups} if managed_groups else {}
    _, stat = store.multi([Check(layout.CLUSTER, record.stat.version), SetData(path, fields.dump(value), version)])
    if not isinstance(stat, Stat):
        raise StoreUnavailable("the response to a claim lacks a stat", path)
    known = decode_epoch(epoch.data) if isinstance(epoch, Node) else None
    return Claimed(term, stat.version, stat.czxid, known or 0)


def stored_term(path: str, node: Node) -> int:
    """Returns the number of the last term that the partition's znode knows of: the greater of its number and its
    version. Raises :class:`MalformedValue`."""
    stored = fields.number(fields.load(node.data, path), "term", path, 0, at_least=0) if node.data else 0
    return max(stored, node.stat.version)


def is_current_term(store: Store, partition: int, claimed: Claimed) -> bool:
    """Returns whether the partition's znode is still as it was claimed, as ZooKeeper's leader knows it: a multi is
    ordered with all writes, and a plain read is not. A znode that was deleted and created again can have the same
    version, but not the same czxid. The read after the multi sees at least what the multi saw. Raises
    :class:`StoreError` if that cannot be found out."""
    if store.session.state is not SessionState.CONNECTED:
        raise StoreUnavailable("the session is not connected")  # do not wait until it is
    path = layout.log_partition(partition)
    try:
        multi_fenced(store, Check(path, claimed.version), ())
    except Fenced:
        return False
    stat = store.exists(path)
    return stat is not None and (stat.version, stat.czxid) == (claimed.version, claimed.czxid)


def read_claimant(store: Store, partition: int) -> int | None:
    """Returns the broker id of the instance that claimed the partition last, or ``None`` if nobody has. Raises
    :class:`StoreError` and :class:`MalformedValue`."""
    if store.session.state is not SessionState.CONNECTED:
        return None  # do not wait until it is
    path = layout.log_partition(partition)
    try:
        data = store.get(path).data
    except NoNode:
        return None
    return fields.optional_number(fields.load_object(data, path), "broker", path) if data else None


# --- what the log tells of trees --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogTree:
    """What the groups log tells: the newest ``claim`` of the newest generation (``None``: no tree has claimed it), the
    newest ``epoch`` of a coordinator, the newest term of each partition, and how many client-assigned groups it has.
    ``kafka`` is the cluster's id, ``None`` if the brokers do not tell it. Without a groups log, all are empty."""

    claim: Claim | None = None
    epoch: int = 0
    terms: Mapping[int, int] = field(default_factory=dict)
    groups: int = 0
    kafka: str | None = None

    @property
    def generation(self) -> int:
        return self.claim.generation if self.claim is not None else 0

    def refuses(self, own: ClusterRecord | None) -> bool:
        """Returns whether the log belongs to another tree than ``own``, which may not claim it."""
        return self.claim is not None and (own is None or self.claim.refuses(own))


async def read_log_tree(
    cluster: ClusterClient, topic: str = TOPIC, partitions: Collection[int] | None = None
) -> LogTree:
    """Reads every partition, or only some, up to its present end. Raises :class:`BrokerError`, :class:`BadMessage`, and
    :class:`TreeRefused` if the log has another format."""
    kafka = (await cluster.metadata([])).cluster_id
    try:
        leaders = await cluster.leaders(topic)
    except NotFound:
        return LogTree(kafka=kafka)
    places = asyncio.Semaphore(_AT_ONCE)

    async def read(partition: int, leader: Address) -> LogTree:
        load, alive, epoch = LogLoad(cluster.to(leader), partition, topic), dict[object, str](), 0
        async with places:
            async for _, records in load.up_to():
                for record in records:
                    if is_claim(record):
                        with suppress(MalformedValue):
                            epoch = max(epoch, read_claim(record).epoch)
                        continue
                    with suppress(BadMessage):
                        match read_record(record):
                            case OffsetEntry(group, _, _, value) | GroupEntry(group, value):
                                alive.pop(record.key, None)
                                if value is not None:
                                    alive[record.key] = group
        return LogTree(load.claim, epoch, {partition: load.newest}, len(set(alive.values())))

    wanted = leaders if partitions is None else leaders.keys() & partitions
    found = await asyncio.gather(*(read(one, leaders[one]) for one in wanted))
    claims = [one.claim for one in found if one.claim is not None]
    return LogTree(
        max(claims, key=lambda claim: (claim.generation, claim.term), default=None),
        max((one.epoch for one in found), default=0),
        {partition: term for one in found for partition, term in one.terms.items()},
        sum(one.groups for one in found),
        kafka,
    )


async def write_generation(cluster: ClusterClient, store: Store, record: ClusterRecord, topic: str = TOPIC) -> int:
    """Claims each partition of the groups log for the tree, unless the tree has done so already. From then on, nobody
    can write to it for an older tree. Returns the number of partitions. Raises :class:`BrokerError`,
    :class:`StoreError`, and :class:`TreeRefused` if a newer tree has claimed a partition."""
    try:
        leaders = await cluster.leaders(topic)
    except NotFound:
        return 0
    places, tree = asyncio.Semaphore(_AT_ONCE), OwnTree(store, record=record)

    async def claim(partition: int, newest: int) -> Claimed:
        return await asyncio.to_thread(claim_term, store, partition, None, tree, newest=newest)

    def now_ms() -> int:
        return round(store.clock.time() * 1000)

    async def claim_soon(partition: int, leader: Address) -> None:
        """Repeats a claim that an instance of the old tree, or a move of the partition, has crossed."""
        async with places:
            for left in range(_ATTEMPTS, 0, -1):
                try:
                    await claim_generation(cluster.to(leader), partition, record, claim, now_ms, topic)
                except (BrokerError, TermEnded, BadVersion) as error:
                    if left == 1:
                        raise BrokerError(f"{error}; is every old instance stopped? Then try again") from error
                    await asyncio.sleep(_AGAIN_S)
                    leader = (await cluster.leaders(topic)).get(partition, leader)
                else:
                    return

    await asyncio.gather(*(claim_soon(*one) for one in leaders.items()))
    return len(leaders)


async def claim_generation(
    broker: BrokerConnection,
    partition: int,
    record: ClusterRecord,
    claiming: Callable[[int, int], Awaitable[Claimed]],
    now_ms: Callable[[], int],
    topic: str = TOPIC,
) -> None:
    """Claims one partition for a new tree, unless it has been. ``claiming`` sets the partition's znode. Raises
    :class:`BrokerError`, :class:`TermEnded` if somebody else has just claimed it, and :class:`TreeRefused`."""
    load = LogLoad(broker, partition, topic)
    async for _ in load.up_to():
        pass
    load.check(record)
    if load.claim is not None and load.claim.is_of(record):
        return
    claimed = await claiming(partition, load.newest)
    who = f"tree {record.tree}"
    term = LogTerm(broker, partition, claimed, who, record, now_ms, _ignore_end, _no_check, topic=topic)
    await term.claim(load.newest)
    term.end("only the generation was to be written", planned=True)


def _ignore_end(_reason: str, _planned: bool) -> None:
    return


async def _no_check() -> bool:
    return True


def epoch_of_new_tree(*known: int) -> int:
    """Returns the first epoch of a tree that replaces others, whose coordinators are ``known`` to have had these
    epochs. Raises :class:`TreeRefused` if there is none that exceeds them by the margin."""
    epoch = max(known, default=0)
    if epoch and epoch + EPOCH_MARGIN >= MAX_EPOCH:
        raise TreeRefused(f"epoch {epoch} is too high: a new tree begins {EPOCH_MARGIN} above it, below {MAX_EPOCH}")
    return epoch + EPOCH_MARGIN if epoch else 0
