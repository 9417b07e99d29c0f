"""Many reads in one request: ZooKeeper 3.6's multi-read, which kazoo does not offer.

Request type 22 carries any mix of getData and getChildren, each answered (or refused) by itself. On the wire
(``org.apache.zookeeper.MultiOperationRecord`` and ``MultiResponse``): each read is a header (type, done, error) and the
ordinary request; the end is a header with ``done`` set. In the answer a refused read has type -1 and its error code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.states import ZnodeStat

from kafka_coord.errors import StoreError
from kafka_coord.zk.failures import translated
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, ReadResult, Stat

_GET_DATA, _GET_CHILDREN = 4, 8
_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_END = _HEADER.pack(-1, 1, -1)
_NO_NODE = -101

FIRST_CHUNK = 500
MIN_CHUNK = 50
MAX_CHUNK = 1_000
MAX_REQUEST_BYTES = 500_000
TARGET_RESPONSE_BYTES = 4_000_000
"""Nothing bounds an answer on its way to kazoo, but a server builds it whole in its heap."""


def to_stat(stat: ZnodeStat) -> Stat:
    """kazoo's stat as ours."""
    return Stat(
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        version=stat.version,
        cversion=stat.cversion,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        ephemeral_owner=stat.ephemeralOwner,
        data_length=stat.dataLength,
        num_children=stat.numChildren,
        pzxid=stat.pzxid,
    )


class MultiRead:
    """The request, in the shape kazoo's connection wants. ``reads`` hold absolute paths (chroot included)."""

    type = 22

    def __init__(self, reads: Sequence[Read]) -> None:
        self.reads = reads

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for read in self.reads:
            path = read.path.encode()
            kind = _GET_DATA if isinstance(read, GetData) else _GET_CHILDREN
            parts += _HEADER.pack(kind, 0, -1), _INT.pack(len(path)), path, b"\0"  # and no watch
        parts.append(_END)
        return b"".join(parts)

    def deserialize(self, buffer: bytes, offset: int) -> MultiReadAnswer:
        started = offset
        answers: list[ReadResult | int] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return MultiReadAnswer(answers, offset - started)
            if kind == _GET_DATA:
                (length,) = _INT.unpack_from(buffer, offset)
                offset += _INT.size
                data = bytes(buffer[offset : offset + length]) if length > 0 else b""
                offset += max(length, 0)
                f = _STAT.unpack_from(buffer, offset)
                offset += _STAT.size
                # on the wire: czxid mzxid ctime mtime version cversion aversion owner length children pzxid
                stat = Stat(f[0], f[1], f[4], f[5], f[2], f[3], f[7], f[8], f[9], f[10])
                answers.append(Node(data, stat))
            elif kind == _GET_CHILDREN:
                (count,) = _INT.unpack_from(buffer, offset)
                offset += _INT.size
                names = []
                for _ in range(count):
                    (length,) = _INT.unpack_from(buffer, offset)
                    offset += _INT.size
                    names.append(buffer[offset : offset + length].decode())
                    offset += length
                names.sort()
                answers.append(tuple(names))
            elif kind == -1:
                answers.append(_INT.unpack_from(buffer, offset)[0])
                offset += _INT.size
            else:
                raise ValueError(f"multi-read answered with a result of unknown type {kind}")


class MultiReadAnswer:
    """Results in the order of the reads, an ``int`` being an error code; and how long the answer was."""

    __slots__ = ("answers", "size")

    def __init__(self, answers: Sequence[ReadResult | int], size: int) -> None:
        self.answers = answers
        self.size = size


def results(reads: Sequence[Read], answer: MultiReadAnswer) -> list[ReadResult]:
    """The answers to ``reads`` (paths below the chroot); a missing znode is None, any other error is raised."""
    if len(answer.answers) != len(reads):
        raise StoreError(f"ZooKeeper answered {len(answer.answers)} of {len(reads)} reads of a multi-read")
    found: list[ReadResult] = []
    for read, result in zip(reads, answer.answers, strict=True):
        if not isinstance(result, int):
            found.append(result)
        elif result == _NO_NODE:
            found.append(None)
        else:
            error = EXCEPTIONS[result]() if result in EXCEPTIONS else RuntimeError(f"ZooKeeper error {result}")
            raise translated(error, "get" if isinstance(read, GetData) else "get children of", read.path)
    return found


def in_chunks(
    reads: Sequence[Read], ask: Callable[[Sequence[Read]], tuple[list[ReadResult], int]]
) -> tuple[ReadResult, ...]:
    """All ``reads`` through ``ask`` (which gives results and bytes received), a bounded number at a time.

    What is about to come back cannot be known, so each chunk is sized by what the ones before it weighed.
    """
    found: list[ReadResult] = []
    size = FIRST_CHUNK
    received = 0
    while len(found) < len(reads):
        chunk = reads[len(found) : len(found) + size]
        while len(chunk) > 1 and sum(len(read.path) + 64 for read in chunk) > MAX_REQUEST_BYTES:
            chunk = chunk[: len(chunk) // 2]
        chunk_results, weight = ask(chunk)
        found += chunk_results
        received += weight
        size = max(MIN_CHUNK, min(MAX_CHUNK, TARGET_RESPONSE_BYTES * len(found) // max(received, 1)))
    return tuple(found)


def absolute(reads: Sequence[Read], path_of: Callable[[str], str]) -> list[Read]:
    """The same reads with absolute paths."""
    return [
        GetData(path_of(read.path)) if isinstance(read, GetData) else GetChildren(path_of(read.path)) for read in reads
    ]
