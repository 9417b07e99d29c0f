"""Finds all brokers of a cluster through any one of them, connects to a broker when there is a request for it, and asks
about topics, partitions and the offsets in their logs. :class:`PartitionReader` reads a log from its leader, in batches
that carry the id of the producer that wrote them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_coord.classic_groups.errors import BrokerCode, Error, named
from kafka_coord.errors import BrokerError, NotFound, SettingsError
from kafka_coord.kafka.authentication import PLAINTEXT, BrokerSecurity, broker_security
from kafka_coord.kafka.connection import BrokerConnection, Versions, failure, only
from kafka_coord.model import TopicPartition
from kafka_coord.model.offsets import EARLIEST, LATEST, LEADERLESS, UNKNOWN_PARTITION, ListedOffsets
from kafka_coord.model.sequences import grouped, parts
from kafka_coord.renewed import Renewed
from kafka_coord.settings import host_and_port
from kafka_coord.wire.messages import message

if TYPE_CHECKING:
    from kafka_coord.wire.batches import Batch

_METADATA, _METADATA_WITH_RIGHTS, _LIST_OFFSETS, _CREATE_TOPICS = (1, 4), (1, 8), (1, 2), (1, 4)
"""The versions of these requests that this client speaks."""
_WITH_RIGHTS, _WITH_ISOLATION = 8, 2
"""The first version of Metadata that tells rights, and that of ListOffsets that knows transactions."""
_UNNAMED = 4
"""Before this version of Metadata, a request that names a topic may create it."""
_FIRST_ANSWER_S = 5.0
_NEXT_AFTER_S = 1.0
"""How long one broker may be silent before the next is asked as well, in seconds."""
_MOST_IN_A_REQUEST = 5_000
_AGAIN_S = 0.1
_OF_LEADER = frozenset(
    {BrokerCode.LEADER_NOT_AVAILABLE, BrokerCode.NOT_LEADER_OR_FOLLOWER, BrokerCode.REPLICA_NOT_AVAILABLE}
)
"""The errors of a partition whose leader moves."""
_REASONS: dict[int, str] = {Error.UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN_PARTITION} | dict.fromkeys(_OF_LEADER, LEADERLESS)

RIGHTS_UNKNOWN = -(1 << 31)
"""What stands for a client's rights in a response that does not tell them."""
READ, DESCRIBE = 1 << 3, 1 << 8
"""The bits of operations among those that a client may carry out."""
Address = tuple[str, int]
T = TypeVar("T")
_FETCH, _LIST_ONE_OFFSET = 4, 1
"""The versions of the Fetch and ListOffsets requests. Every broker from 0.11 to 4.3 supports them."""
_FETCH_BYTES = 8 << 20


def may(operation: int, rights: int) -> bool:
    """Returns whether a client may carry out the operation (:data:`READ` or :data:`DESCRIBE`), or whether a response
    with these ``rights`` does not tell."""
    return rights == RIGHTS_UNKNOWN or bool(rights & operation)


class ClusterClient:
    """A client for one cluster. ``bootstrap`` lists the addresses of some of its brokers. Call :meth:`close` after use.
    All requests raise :class:`BrokerError`."""

    def __init__(self, bootstrap: Sequence[Address], security: Renewed[BrokerSecurity] = PLAINTEXT) -> None:
        self._bootstrap, self._security = bootstrap, security
        self._learned: tuple[Address, ...] = ()
        """The brokers in the last metadata: those in ``bootstrap`` may have left the cluster."""
        self._connections: dict[Address, BrokerConnection] = {}

    @classmethod
    def of(cls, bootstrap: str, properties: Mapping[str, str]) -> ClusterClient:
        """Creates a client from a list of addresses (as in ``bootstrap.servers``) and librdkafka properties. Raises
        :class:`SettingsError`."""
        try:
            addresses = [host_and_port(one.strip()) for one in bootstrap.split(",")]
        except ValueError as error:
            raise SettingsError(f"kafka.bootstrap.servers: {error}; expected HOST:PORT[,HOST:PORT…]") from None
        return cls(addresses, broker_security(properties))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def to(self, address: Address) -> BrokerConnection:
        """Returns the connection to the broker at ``address``. Creates one if there is none yet, or after
        :meth:`close`."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = BrokerConnection(*address, self._security)
        return connection

    async def with_any(self, work: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        """Returns what ``work`` returns first, with a broker that answers. Works with the next broker as soon as one
        fails, or has been silent for a second. Brokers with an open connection come first."""
        addresses = dict.fromkeys((*self._bootstrap, *self._learned))
        left = sorted(addresses, key=lambda one: one not in self._connections or not self._connections[one].is_open)
        working: set[asyncio.Task[T]] = set()
        reasons: dict[Address, str] = {}
        by_task: dict[asyncio.Task[T], Address] = {}
        try:
            while left or working:
                if left:
                    address = left.pop(0)
                    task = asyncio.ensure_future(work(self.to(address)))
                    by_task[task] = address
                    working.add(task)
                done, working = await asyncio.wait(
                    working, timeout=_NEXT_AFTER_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                reasons |= {by_task[one]: str(one.exception()) for one in done if _has_failed(one)}
                for task in done:
                    if not _has_failed(task):
                        return task.result()
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        said = "; ".join(reasons[address] for address in addresses if address in reasons)
        raise BrokerError(f"no broker answers: {said or 'none is registered'}")

    async def ask_any(self, name: str, version: int | Versions, value: Any) -> Any:
        """Returns the response of a broker that answers."""
        return await self.with_any(lambda broker: broker.ask(name, version, value, _FIRST_ANSWER_S))

    async def metadata(
        self, topics: Iterable[str] | None = None, *, rights: bool = False, timeout_s: float = _FIRST_ANSWER_S
    ) -> Any:
        """Returns the metadata of the brokers and of the given topics, or of all topics by default. With ``rights``, it
        says what this client may do with each topic, if the broker is of Kafka 2.3 or newer."""
        named_topics = None if topics is None else tuple(topics)

        async def ask(broker: BrokerConnection) -> Any:
            newest = _METADATA_WITH_RIGHTS if rights else _METADATA
            version = await broker.newest_version("Metadata", newest, timeout_s)
            return await broker.ask("Metadata", version, metadata_request(named_topics, version, rights), timeout_s)

        found = await self.with_any(ask)
        self._learned = tuple((one.host, one.port) for one in found.brokers)
        return found

    async def leaders(self, topic: str) -> dict[int, Address]:
        """Returns the address of each partition's leader. Also raises :class:`NotFound` if the topic does not exist."""
        answer = await self.metadata([topic])
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        described = only(answer.topics, "topics")
        if not described.partitions:
            raise NotFound(f"topic {topic} does not exist, because no Kafka client has used a group yet")
        leaderless = [one.partition_index for one in described.partitions if one.leader_id not in nodes]
        if leaderless:
            raise BrokerError(
                f"topic {topic} has no leader for partitions {', '.join(map(str, leaderless))}; start their brokers"
            )
        return {one.partition_index: nodes[one.leader_id] for one in described.partitions}

    async def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool, timeout_s: float
    ) -> ListedOffsets:
        """Asks each partition's leader for the first offset at or after ``timestamp`` (ms since 1970, or
        :data:`~kafka_coord.model.offsets.EARLIEST` or ``LATEST``), or -1 if there is none. With ``read_committed``, a
        log ends before the first record of an open transaction. Asks once more for partitions whose leader has just
        moved."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        listed = ListedOffsets()
        asked = list(partitions)
        for is_last in (False, True):
            leaders, codes = await self._leaders_of(asked, min(_FIRST_ANSWER_S, max(0.5, deadline - clock())))
            requests = [
                (leader, chunk)
                for leader, theirs in grouped(leaders, leaders.__getitem__).items()
                for chunk in parts(theirs, _MOST_IN_A_REQUEST)
            ]
            left_s = max(0.5, deadline - clock())
            found = await asyncio.gather(
                *(self._list_at(leader, chunk, timestamp, read_committed, left_s) for leader, chunk in requests)
            )
            for offsets, refused, silent in found:
                listed.offsets |= offsets
                codes |= refused
                listed.trouble += silent
            again = [] if is_last or clock() >= deadline else [tp for tp, code in codes.items() if code in _OF_LEADER]
            listed.trouble += [
                _REASONS.get(code, named(code)) for tp, code in codes.items() if not again or code not in _OF_LEADER
            ]
            if not again:
                break
            asked = again
            await asyncio.sleep(_AGAIN_S)
        return listed

    async def create_topic(
        self, name: str, partitions: int, replication: int, *, timeout_s: float
    ) -> tuple[int, str | None]:
        """Asks the controller to create a topic. Returns the error's code, or 0, and what the controller says about
        it."""
        for is_last in (False, True):
            brokers = await self.metadata([])
            controllers = [one for one in brokers.brokers if one.node_id == brokers.controller_id]
            if not controllers:
                raise BrokerError("the cluster has no controller now")
            broker = self.to((controllers[0].host, controllers[0].port))
            request = create_topic_request(name, partitions, replication, timeout_s=timeout_s)
            answer = await broker.ask("CreateTopics", _CREATE_TOPICS, request, timeout_s + 5)
            result = only(answer.topics, "topics")
            if result.error_code != BrokerCode.NOT_CONTROLLER or is_last:
                break
        return result.error_code, result.error_message

    async def _leaders_of(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> tuple[dict[TopicPartition, Address], dict[TopicPartition, int]]:
        """Returns the address of each partition's leader, and the error of each partition without one."""
        wanted = grouped(partitions, lambda tp: tp.topic)
        answer = await self.metadata(wanted, timeout_s=timeout_s)
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        leader_ids: dict[TopicPartition, int] = {}
        codes: dict[str, int] = {}
        for topic in answer.topics:
            codes[topic.name] = topic.error_code
            leader_ids |= {TopicPartition(topic.name, one.partition_index): one.leader_id for one in topic.partitions}
        leaders, without = {}, {}
        for topic, theirs in wanted.items():
            for tp in theirs:
                if leader_ids.get(tp) in nodes:
                    leaders[tp] = nodes[leader_ids[tp]]
                else:
                    without[tp] = codes.get(topic) or (
                        BrokerCode.LEADER_NOT_AVAILABLE if tp in leader_ids else Error.UNKNOWN_TOPIC_OR_PARTITION
                    )
        return leaders, without

    async def _list_at(
        self, leader: Address, partitions: Sequence[TopicPartition], timestamp: int, committed: bool, timeout_s: float
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], list[str]]:
        """Returns the offsets, the codes of partitions that the broker refused, and the reasons for the others."""
        broker = self.to(leader)
        try:
            version = await broker.newest_version("ListOffsets", _LIST_OFFSETS, timeout_s)
            request = offsets_request(partitions, timestamp, committed=committed and version >= _WITH_ISOLATION)
            answer = await broker.ask("ListOffsets", version, request, timeout_s)
        except BrokerError as error:
            return {}, {}, [str(error)] * len(partitions)
        told = {
            TopicPartition(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions
        }
        offsets, codes = {}, {}
        for tp in partitions:
            if tp in told and not told[tp].error_code:
                offsets[tp] = told[tp].offset
            elif tp in told:
                codes[tp] = told[tp].error_code
        silent = ["the leader's response leaves it out"] * (len(partitions) - len(offsets) - len(codes))
        return offsets, codes, silent


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return isinstance(task.exception(), BrokerError)


def metadata_request(topics: Iterable[str] | None, version: int = _UNNAMED, rights: bool = False) -> Any:
    """Returns a request for the metadata of the given topics, or of all topics, that creates none of them."""
    form = message("MetadataRequest")
    if version < _UNNAMED:
        return form(topics=None)
    topic = form.struct("MetadataRequestTopic")
    named_topics = None if topics is None else tuple(topic(name=name) for name in topics)
    asked = {"include_topic_authorized_operations": True} if rights and version >= _WITH_RIGHTS else {}
    return form(topics=named_topics, allow_auto_topic_creation=False, **asked)


def create_topic_request(
    name: str,
    partitions: int,
    replication: int,
    settings: Mapping[str, str] | None = None,
    placed: Mapping[int, Sequence[int]] | None = None,
    *,
    timeout_s: float,
) -> Any:
    """``placed`` are the brokers of each partition, if the cluster is not to choose them."""
    form = message("CreateTopicsRequest")
    setting, assignment = form.struct("CreatableTopicConfig"), form.struct("CreatableReplicaAssignment")
    topic = form.struct("CreatableTopic")(
        name=name,
        num_partitions=-1 if placed else partitions,
        replication_factor=-1 if placed else replication,
        assignments=tuple(
            assignment(partition_index=one, broker_ids=tuple(ids)) for one, ids in (placed or {}).items()
        ),
        configs=tuple(setting(name=one, value=value) for one, value in (settings or {}).items()),
    )
    return form(topics=(topic,), timeout_ms=round(timeout_s * 1000))


def offsets_request(partitions: Iterable[TopicPartition], timestamp: int, *, committed: bool) -> Any:
    """Returns a request for the first offsets at or after ``timestamp``."""
    form = message("ListOffsetsRequest")
    part, topic = form.struct("ListOffsetsPartition"), form.struct("ListOffsetsTopic")
    topics = tuple(
        topic(name=name, partitions=tuple(part(partition_index=tp.partition, timestamp=timestamp) for tp in theirs))
        for name, theirs in grouped(partitions, lambda tp: tp.topic).items()
    )
    return form(replica_id=-1, isolation_level=int(committed), topics=topics)


class PartitionReader:
    """Reads one partition. ``broker`` is the connection to the partition's leader."""

    def __init__(self, broker: BrokerConnection, partition: int, topic: str) -> None:
        self._broker, self._partition, self._topic = broker, partition, topic

    async def first_offset(self) -> int:
        """Returns the log's first offset. Raises :class:`BrokerError`, as the other methods do
        (:class:`RightMissing` if the broker denies the right)."""
        return await self._offset(EARLIEST)

    async def end_offset(self) -> int:
        """Returns the high watermark, which is the offset after the last fully replicated record. Raises
        :class:`BrokerError`."""
        return await self._offset(LATEST)

    async def _offset(self, which: int) -> int:
        request = offsets_request([TopicPartition(self._topic, self._partition)], which, committed=False)
        answer = await self._broker.ask("ListOffsets", _LIST_ONE_OFFSET, request)
        result = only(only(answer.topics, "topics").partitions, "partitions")
        if result.error_code:
            where = "first" if which == EARLIEST else "end"
            raise failure(
                f"partition {self._partition}: cannot look up the {where} offset of the log", result.error_code
            )
        return int(result.offset)

    async def batches(self, first: int, end: int) -> AsyncIterator[Batch]:
        """Yields, in order, the batches that contain the offsets from ``first`` up to but not including ``end``. The
        first and the last batch may reach beyond this range. Raises :class:`BrokerError`, and :class:`BadMessage` if a
        batch cannot be read."""
        from kafka_coord.wire.batches import decode_batches  # needs crc32c, which only an instance has

        at = first
        while at < end:
            result = await self._fetch(at)
            if result.error_code:
                raise failure(f"partition {self._partition}: the broker refused the read", result.error_code)
            before = at
            for batch in decode_batches(result.records or b""):
                if batch.end <= at:
                    continue
                at = batch.end
                yield batch
            if at == before:
                if result.high_watermark >= end:
                    return  # compaction has removed all remaining records before the end
                await asyncio.sleep(0.05)  # the claim is acknowledged, so the high watermark will advance soon

    async def _fetch(self, offset: int) -> Any:
        form = message("FetchRequest")
        part = form.struct("FetchPartition")(
            partition=self._partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        topic = form.struct("FetchTopic")(topic=self._topic, partitions=(part,))
        request = form(replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=_FETCH_BYTES, topics=(topic,))
        answer = await self._broker.ask("Fetch", _FETCH, request)
        return only(only(answer.responses, "topics").partitions, "partitions")
