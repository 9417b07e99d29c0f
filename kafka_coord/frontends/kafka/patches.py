"""Changes some of the broker's responses on their way to a client. Does no I/O.

ApiVersions always advertises this instance's own versions of the requests that it answers. Metadata and DescribeCluster
never name a broker whose instance is not running. While every instance runs at the address that its broker advertises,
these responses pass unchanged. With ``--kafka-rewrite``, they contain the instances' addresses instead of the brokers',
and ApiVersions omits all versions whose responses contain addresses that this instance cannot rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka_coord.frontends.kafka.routing import GROUPS_OF_LATER, LOCAL
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import API_VERSIONS, answer_start
from kafka_coord.wire.messages import Message, message

METADATA, DESCRIBE_CLUSTER = 3, 60
_KIP_848 = frozenset({68, 69})
_TOPIC_IDS = 10
"""The first version of Metadata with topic ids. Brokers have supported it since 2.8."""
_LEADER_NOT_AVAILABLE = 5
_NO_LEADER = -1
Patch = Callable[[bytes, int], bytes]
"""Maps a response's frame and version to the frame to pass on. Raises :class:`BadMessage`."""
Addresses = Callable[[], Mapping[int, tuple[str, int]] | None]
"""Returns the host and port of the running instance beside each broker, by broker id, or ``None`` if the brokers'
responses need no change."""
MOST_WITH_REWRITE = {
    0: 9,  # Produce 10 returns addresses of new leaders (KIP-951)
    1: 15,  # so does Fetch 16
    METADATA: message("MetadataResponse").versions.last,
    DESCRIBE_CLUSTER: message("DescribeClusterResponse").versions.last,
}

_NAMING = {METADATA: ("MetadataResponse", "node_id"), DESCRIBE_CLUSTER: ("DescribeClusterResponse", "broker_id")}
"""The responses that name brokers, and the field of a broker's id."""


class Patches:
    """The patches of one listener. ``addresses`` are the instances' addresses. With ``rewrites``, the brokers do not
    advertise them, so every response that names a broker must be changed."""

    def __init__(self, addresses: Addresses = lambda: None, *, rewrites: bool = False) -> None:
        self._addresses, self._rewrites = addresses, rewrites

    def get(self, api_key: int, version: int) -> Patch | None:
        """Returns the patch for a response that is about to be passed on, or ``None`` if it passes unchanged."""
        if api_key == API_VERSIONS:
            return self._api_versions
        if api_key not in _NAMING:
            return None
        name, id_field = _NAMING[api_key]
        known = self._addresses()
        if not self._rewrites and version not in message(name).versions:
            return None  # a version that this instance cannot change
        if known is None:
            return None
        return lambda frame, version: _with_instances(name, id_field, frame, version, known)

    def _api_versions(self, frame: bytes, version: int) -> bytes:
        return patch_api_versions(frame, version, MOST_WITH_REWRITE if self._rewrites else None)


def patch_api_versions(frame: bytes, version: int, most: Mapping[int, int] | None = None) -> bytes:
    """Returns an ApiVersions response in which this instance's ranges replace the broker's, and ``most`` limits the
    other ranges. Leaves an error response unchanged, because it always has version 0."""
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
    for api_key, last in (most or {}).items():
        if api_key in ranges:
            ranges[api_key].max_version = min(ranges[api_key].max_version, last)
    answer.api_keys = tuple(ranges.values())
    return _encoded(form, answer, version, frame[:start])


def _with_instances(
    name: str, id_field: str, frame: bytes, version: int, addresses: Mapping[int, tuple[str, int]]
) -> bytes:
    """Returns the response with the instances' addresses instead of the brokers'. Omits brokers without an instance:
    clients that connect to them would bypass the instances, or reach nobody. As in Kafka, a partition whose leader is
    omitted has no leader."""
    form = message(name)
    if version not in form.versions:
        raise BadMessage(f"cannot replace the brokers' addresses in {name}: version {version} is not supported")
    start = answer_start(form, version)
    answer = form.decode(frame, version, start)
    brokers = [broker for broker in answer.brokers if getattr(broker, id_field) in addresses]
    for broker in brokers:
        broker.host, broker.port = addresses[getattr(broker, id_field)]
    answer.brokers = tuple(brokers)
    for topic in getattr(answer, "topics", ()):
        for partition in topic.partitions:
            if partition.leader_id >= 0 and partition.leader_id not in addresses:
                partition.leader_id, partition.error_code = _NO_LEADER, partition.error_code or _LEADER_NOT_AVAILABLE
    return _encoded(form, answer, version, frame[:start])


def _encoded(form: Message, answer: Any, version: int, start: bytes) -> bytes:
    return bytes(form.encode(answer, version, bytearray(start)))
