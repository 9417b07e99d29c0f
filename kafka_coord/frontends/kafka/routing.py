"""Decides which requests this instance answers, and in which versions. The broker answers all others."""

from __future__ import annotations

from kafka_coord.wire.definition import Versions
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import peek, read_header
from kafka_coord.wire.messages import message

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
    28: ("TxnOffsetCommit", Versions(0, 4)),
    68: ("ConsumerGroupHeartbeat", Versions(0, 1)),
    69: ("ConsumerGroupDescribe", Versions(0, 1)),
}
"""The name and versions of each request that this instance answers, by API key. The broker answers OffsetFetch version
0, which reads ZooKeeper."""
LARGE = frozenset({11, 14})
"""JoinGroup and SyncGroup, which contain the members' metadata and assignments."""
GROUPS_OF_LATER = frozenset({68, 69, 76, 77, 78, 79, 88, 89, 90, 91, 92})
"""The requests for KIP-848, share groups and streams groups. The broker's version ranges for them are not advertised,
because the broker would then serve such groups itself."""
SASL_HANDSHAKE_VERSION = 1
"""The lowest supported version. After version 0, the client sends bytes without a header, so later requests could not
be recognized. Version 0 is still advertised, because librdkafka assumes that a broker without it does not support the
handshake at all."""


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
