"""Decides which requests this instance answers, and in which versions, and changes some of the broker's responses on
their way to a client. The broker answers all other requests. Does no I/O.

ApiVersions always advertises this instance's own versions of the requests that it answers. Metadata, DescribeCluster,
and the new leaders in Produce and Fetch (KIP-951) never name a broker whose instance is not running. While every
instance runs at the address that its broker advertises, these responses pass unchanged.

Versions of these that this instance does not know are not advertised.

With ``--kafka-rewrite``, they contain the instances' addresses instead of the brokers', and ApiVersions omits the
versions of Fetch that name leaders: each of these responses would have to be read as a whole. Those of Produce are
small, and transactions of Kafka 4 need the newest version (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka_coord.wire.frames import API_VERSIONS, answer_start, peek, read_header
from kafka_coord.wire.messages import BadMessage, Message, Versions, message

PRODUCE, FETCH, SASL_HANDSHAKE, SASL_AUTHENTICATE = 0, 1, 17, 36
OFFSET_COMMIT, HEARTBEAT = 8, 12
SASL = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
_ENOUGH_BYTES = 2048
"""A Produce request's client id, transactional id and acks must lie within this many bytes of its start."""

LOCAL = {
    8: ("OffsetCommit", Versions(0, 9)),
    9: ("OffsetFetch", Versions(1, 9)),
    10: ("FindCoordinator", Versions(0, 6)),
    11: ("JoinGroup", Versions(0, 9)),
    12: ("Heartbeat", Versions(0, 4)),
    13: ("LeaveGroup", Versions(0, 5)),
    14: ("SyncGroup", Versions(0, 5)),
    15: ("DescribeGroups", Versions(0, 5)),
    16: ("ListGroups", Versions(0, 5)),
    42: ("DeleteGroups", Versions(0, 2)),
    47: ("OffsetDelete", Versions(0, 0)),
    25: ("AddOffsetsToTxn", Versions(0, 4)),
    28: ("TxnOffsetCommit", Versions(0, 5)),
    68: ("ConsumerGroupHeartbeat", Versions(0, 1)),
    69: ("ConsumerGroupDescribe", Versions(0, 1)),
}
"""The name and versions of each request that this instance answers, by API key. The broker answers OffsetFetch version
0, which reads ZooKeeper."""
GROUPS_OF_LATER = frozenset({68, 69, 76, 77, 78, 79, 88, 89, 90, 91, 92})
"""The requests for KIP-848, share groups and streams groups. The broker's version ranges for them are not advertised,
because the broker would then serve such groups itself."""
SASL_HANDSHAKE_VERSION = 1
"""The lowest supported version. After version 0, the client sends bytes without a header, so later requests could not
be recognized. Version 0 is still advertised, because librdkafka assumes that a broker without it does not support the
handshake at all."""
METADATA, DESCRIBE_CLUSTER = 3, 60
CHANGES_TOPICS = frozenset({19, 20, 37, 45})
"""CreateTopics, DeleteTopics, CreatePartitions and AlterPartitionReassignments: the mirror is told of them."""
_TOPIC_IDS = 10
"""The first version of Metadata with topic ids. Brokers have supported it since 2.8."""
_LEADER_NOT_AVAILABLE = 5
_NO_LEADER = -1
_FETCH_WITHOUT_LEADERS = 15
"""The last version of Fetch whose responses name no leaders."""


def expects_answer(frame: bytes | bytearray | memoryview, length: int) -> bool | None:
    """Returns whether the broker answers the frame, or ``None`` if more bytes are needed to decide. The broker answers
    every request except a Produce with acks = 0. Raises :class:`BadMessage`."""
    api_key, version = peek(frame)
    if api_key == SASL_HANDSHAKE and version < SASL_HANDSHAKE_VERSION:
        raise BadMessage("SaslHandshake version 0 is not supported, because the bytes after it have no header")
    if api_key != PRODUCE:
        return True
    if len(frame) < min(length, _ENOUGH_BYTES):
        return None
    form = message("ProduceRequest")
    if version not in form.versions:
        return True
    _, at = read_header(bytes(frame[:_ENOUGH_BYTES]), flexible=version in form.flexible)
    if version in form.flexible:
        size = frame[at]  # the first byte distinguishes a transactional id of 127 bytes or more from a null
        if size > 127:
            return True
        at += 1 + max(0, size - 1)
    elif version >= 3:
        size = int.from_bytes(frame[at : at + 2], "big", signed=True)
        at += 2 + max(0, size)
    if at + 2 > len(frame):
        raise BadMessage(f"a Produce request has no acks within its first {_ENOUGH_BYTES} bytes")
    return bytes(frame[at : at + 2]) != b"\0\0"


def is_local(api_key: int, version: int) -> bool:
    """Returns whether this instance answers the request, even if only to refuse its version."""
    return api_key in LOCAL and not (api_key == 9 and version == 0)


_KIP_848 = frozenset({68, 69})
Patch = Callable[[bytes, int], bytes]
"""Maps a response's frame and version to the frame to pass on. Raises :class:`BadMessage`."""
Addresses = Callable[[], Mapping[int, tuple[str, int]] | None]
"""Returns the host and port of the running instance beside each broker, by broker id, or ``None`` if the brokers'
responses need no change."""


@dataclass(frozen=True, slots=True)
class _Naming:
    """A response that names brokers in the versions from ``first`` on. ``rename`` puts the instances' addresses into
    it, and returns whether it has changed anything."""

    name: str
    first: int
    rename: Callable[[Any, Mapping[int, tuple[str, int]]], bool]


class Patches:
    """The patches of one listener. ``addresses`` are the instances' addresses. With ``rewrites``, the brokers do not
    advertise them, so every response that names a broker must be changed."""

    def __init__(self, addresses: Addresses = lambda: None, *, rewrites: bool = False) -> None:
        self._addresses, self._rewrites = addresses, rewrites

    def get(self, api_key: int, version: int) -> Patch | None:
        """Returns the patch for a response that is about to be passed on, or ``None`` if it passes unchanged."""
        if api_key == API_VERSIONS:
            return self._api_versions
        naming = _NAMING.get(api_key)
        if naming is None or version < naming.first:
            return None
        known = self._addresses()
        if known is None:
            return None
        return lambda frame, version: _with_instances(naming, frame, version, known)

    def _api_versions(self, frame: bytes, version: int) -> bytes:
        return patch_api_versions(frame, version, rewrites=self._rewrites)


def patch_api_versions(frame: bytes, version: int, *, rewrites: bool = False) -> bytes:
    """Returns an ApiVersions response in which this instance's ranges replace the broker's, without the versions of
    other responses that name brokers and that this instance cannot change or, if it ``rewrites``, does not want to.
    Leaves an error response unchanged, because it always has version 0."""
    form = message("ApiVersionsResponse")
    start = answer_start(form, version)
    if int.from_bytes(frame[start : start + 2], "big") or version not in form.versions:
        return frame
    answer = form.decode(frame, version, start)
    entry = form.struct("ApiVersion")
    ranges: dict[int, Any] = {one.api_key: one for one in answer.api_keys if one.api_key not in GROUPS_OF_LATER}
    has_topic_ids = METADATA in ranges and ranges[METADATA].max_version >= _TOPIC_IDS
    for api_key, (_, versions) in LOCAL.items():
        if api_key not in ranges and not (api_key in _KIP_848 and has_topic_ids):
            continue  # the broker is too old for this request, so clients do not expect it
        first = 0 if api_key == 9 else versions.first
        ranges[api_key] = entry(api_key=api_key, min_version=first, max_version=versions.last)
    most = {api_key: message(naming.name).versions.last for api_key, naming in _NAMING.items()}
    for api_key, last in (most | ({FETCH: _FETCH_WITHOUT_LEADERS} if rewrites else {})).items():
        if api_key in ranges:
            ranges[api_key].max_version = min(ranges[api_key].max_version, last)
    answer.api_keys = tuple(ranges.values())
    return _encoded(form, answer, version, frame[:start])


def _with_instances(naming: _Naming, frame: bytes, version: int, addresses: Mapping[int, tuple[str, int]]) -> bytes:
    """Returns the response with the instances' addresses instead of the brokers'."""
    form = message(naming.name)
    if version not in form.versions:
        raise BadMessage(f"cannot replace the brokers' addresses in {naming.name}: version {version} is not supported")
    start = answer_start(form, version)
    answer = form.decode(frame, version, start)
    return _encoded(form, answer, version, frame[:start]) if naming.rename(answer, addresses) else frame


def _rename_brokers(id_field: str, answer: Any, addresses: Mapping[int, tuple[str, int]]) -> bool:
    """Omits brokers without an instance: clients that connect to them would bypass the instances, or reach nobody. As
    in Kafka, a partition whose leader is omitted has no leader, and there is no controller if it is omitted."""
    answer.brokers = _renamed(answer.brokers, id_field, addresses)
    if answer.controller_id not in addresses:
        answer.controller_id = _NO_LEADER
    for topic in getattr(answer, "topics", ()):
        for partition in topic.partitions:
            if partition.leader_id >= 0 and partition.leader_id not in addresses:
                partition.leader_id, partition.error_code = _NO_LEADER, partition.error_code or _LEADER_NOT_AVAILABLE
    return True


def _rename_leaders(partitions: str, answer: Any, addresses: Mapping[int, tuple[str, int]]) -> bool:
    """As :func:`_rename_brokers`, for the leaders that a response names because they have changed. A client that is not
    told the new leader asks for it, as with a broker before 3.7."""
    unnamed = [
        partition
        for topic in answer.responses
        for partition in getattr(topic, partitions)
        if partition.current_leader.leader_id >= 0 and partition.current_leader.leader_id not in addresses
    ]
    for partition in unnamed:
        partition.current_leader.leader_id = partition.current_leader.leader_epoch = _NO_LEADER
    named = answer.node_endpoints
    answer.node_endpoints = _renamed(named, "node_id", addresses)
    return bool(unnamed or named)


def _renamed(nodes: Iterable[Any], id_field: str, addresses: Mapping[int, tuple[str, int]]) -> tuple[Any, ...]:
    known = [node for node in nodes if getattr(node, id_field) in addresses]
    for node in known:
        node.host, node.port = addresses[getattr(node, id_field)]
    return tuple(known)


def _encoded(form: Message, answer: Any, version: int, start: bytes) -> bytes:
    return bytes(form.encode(answer, version, bytearray(start)))


_NAMING = {
    METADATA: _Naming("MetadataResponse", 0, partial(_rename_brokers, "node_id")),
    DESCRIBE_CLUSTER: _Naming("DescribeClusterResponse", 0, partial(_rename_brokers, "broker_id")),
    PRODUCE: _Naming("ProduceResponse", 10, partial(_rename_leaders, "partition_responses")),
    FETCH: _Naming("FetchResponse", 16, partial(_rename_leaders, "partitions")),
}
"""The responses that name brokers, by API key."""
