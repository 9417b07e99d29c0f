"""Sends many reads, watches or writes in one request. kazoo does not support such requests, or is slow at them.

Reads use ZooKeeper 3.6's multi-read. Request type 22 carries any mix of getData and getChildren, each of which is
answered or refused separately. On the wire (``org.apache.zookeeper.MultiOperationRecord`` and ``MultiResponse``), each
read is a header (type, done, error) and the ordinary request. A header with ``done`` set marks the end. In the
response, a refused read has type -1 and an error code.

Watches use ``SetWatches`` (request type 101), which the Java client uses to restore its watches on another server. The
request names a zxid, and the server immediately fires every watch whose znode has changed since
(``org.apache.zookeeper.server.DataTree.setWatches``).

Writes use ZooKeeper's multi (request type 14). kazoo's own multi normalises every path and packs every operation piece
by piece, which accounted for most of the time that a large request took.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.states import ZnodeStat

from kafka_coord.errors import StoreError
from kafka_coord.zk.kazoo_private import translated
from kafka_coord.zk.store import Check, Create, Delete, GetData, Node, Op, OpResult, Read, ReadResult, SetData, Stat

_GET_DATA, _GET_CHILDREN = 4, 8
_CREATE, _DELETE, _SET_DATA, _CHECK = 1, 2, 5, 13
_WRITES: Mapping[type[Op], int] = {Create: _CREATE, Delete: _DELETE, SetData: _SET_DATA, Check: _CHECK}
_EPHEMERAL, _SEQUENCE = 1, 2
_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_STAT = struct.Struct("!qqqqiiiqiiq")
_END = _HEADER.pack(-1, 1, -1)
_NO_NODE = -101

FIRST_CHUNK = 500
MIN_CHUNK = 50
MAX_CHUNK = 1_000
MAX_REQUEST_BYTES = 500_000
TARGET_RESPONSE_BYTES = 4_000_000
"""The intended size of a response, in bytes. kazoo accepts any size, but the server builds the whole response in its
heap."""


def to_stat(stat: ZnodeStat) -> Stat:
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


def _stat(buffer: bytes, offset: int) -> Stat:
    """Decodes a stat. The order of its fields is czxid mzxid ctime mtime version cversion aversion owner length
    children pzxid."""
    f = _STAT.unpack_from(buffer, offset)
    return Stat(f[0], f[1], f[4], f[5], f[2], f[3], f[7], f[8], f[9], f[10])


def _error(code: int) -> Exception:
    return EXCEPTIONS[code]() if code in EXCEPTIONS else RuntimeError(f"ZooKeeper error {code}")


class MultiRead:
    """A multi-read, in the form that kazoo's connection needs. ``reads`` contain absolute paths (chroot included)."""

    type = 22

    def __init__(self, reads: Sequence[Read]) -> None:
        self.reads = reads

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for read in self.reads:
            path = read.path.encode()
            kind = _GET_DATA if isinstance(read, GetData) else _GET_CHILDREN
            parts += _HEADER.pack(kind, 0, -1), _INT.pack(len(path)), path, b"\0"  # without a watch
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
                answers.append(Node(data, _stat(buffer, offset)))
                offset += _STAT.size
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
                raise ValueError(f"multi-read returned a result of unknown type {kind}")


class MultiWrite:
    """A multi, in the form that kazoo's connection needs. ``body`` comes from :func:`packed`."""

    type = 14

    def __init__(self, body: bytes) -> None:
        self.body = body

    def serialize(self) -> bytes:
        return self.body

    def deserialize(self, buffer: bytes, offset: int) -> list[OpResult | Exception]:
        """Returns the result of each operation, with absolute paths, or a kazoo exception if it failed."""
        results: list[OpResult | Exception] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return results
            if kind == _CREATE:
                (length,) = _INT.unpack_from(buffer, offset)
                offset += _INT.size
                results.append(buffer[offset : offset + length].decode())
                offset += length
            elif kind == _SET_DATA:
                results.append(_stat(buffer, offset))
                offset += _STAT.size
            elif kind == -1:
                results.append(_error(_INT.unpack_from(buffer, offset)[0]))
                offset += _INT.size
            elif kind in (_DELETE, _CHECK):
                results.append(None)
            else:
                raise ValueError(f"a multi returned a result of unknown type {kind}")


def packed(ops: Sequence[Op], path_of: Callable[[str], str], acl_of: Callable[[str], bytes]) -> bytes:
    """Returns the operations in a multi's wire format. ``path_of`` returns the absolute path, and ``acl_of`` returns
    the ACL in the format of :func:`packed_acl`."""
    parts: list[bytes] = []
    for op in ops:
        path = path_of(op.path).encode()
        parts += _HEADER.pack(_WRITES[type(op)], 0, -1), _INT.pack(len(path)), path
        if isinstance(op, Create | SetData):
            parts += _INT.pack(len(op.data)), op.data
        if isinstance(op, Create):
            flags = (_EPHEMERAL if op.ephemeral else 0) | (_SEQUENCE if op.sequence else 0)
            parts += acl_of(op.path), _INT.pack(flags)
        else:
            parts.append(_INT.pack(op.version))
    parts.append(_END)
    return b"".join(parts)


def packed_acl(acls: Sequence[Any]) -> bytes:
    """Converts kazoo's ACLs to the wire format of a create."""
    parts = [_INT.pack(len(acls))]
    for acl in acls:
        scheme, who = acl.id.scheme.encode(), acl.id.id.encode()
        parts += _INT.pack(acl.perms), _INT.pack(len(scheme)), scheme, _INT.pack(len(who)), who
    return b"".join(parts)


class WatchOf(Enum):
    """The kinds of watches, in the order of the request's lists, and when a watch of each kind fires immediately."""

    DATA = "data"
    """A watch on an existing znode. Fires if its data has changed since the zxid, or if the znode is gone."""
    MISSING = "missing"
    """A watch on a missing znode. Fires if the znode exists now."""
    CHILDREN = "children"
    """A watch on the children of a znode. Fires if they have changed since the zxid, or if the znode is gone."""


class SetWatches:
    """A ``SetWatches`` request in the form that kazoo's connection expects. The server immediately fires each watch
    whose znode has changed since the zxid ``since``. Paths are absolute and include the chroot. kazoo's connection
    thread, which receives the events, calls ``before_sending`` just before any watch can fire."""

    type = 101

    def __init__(self, since: int, wanted: Sequence[tuple[WatchOf, str]], before_sending: Callable[[], None]) -> None:
        self.since = since
        self.wanted = wanted
        self._before_sending = before_sending

    def serialize(self) -> bytes:
        self._before_sending()
        parts = [_LONG.pack(self.since)]
        for kind in WatchOf:
            paths = [path.encode() for of, path in self.wanted if of is kind]
            parts.append(_INT.pack(len(paths)))
            for path in paths:
                parts += _INT.pack(len(path)), path
        return b"".join(parts)

    def deserialize(self, _buffer: bytes, _offset: int) -> None:
        """Does nothing, because the response is empty."""


class AddWatch:
    """A request for a persistent recursive watch (type 106, ZooKeeper 3.6). The server reports each znode that is
    created, changed or deleted at or below ``path`` (absolute, chroot included), giving that znode's own path, until
    the connection ends (``org.apache.zookeeper.AddWatchMode``). ``before_sending`` is called as in
    :class:`SetWatches`."""

    type = 106
    _PERSISTENT_RECURSIVE = 1

    def __init__(self, path: str, before_sending: Callable[[], None]) -> None:
        self.path = path
        self._before_sending = before_sending

    def serialize(self) -> bytes:
        self._before_sending()
        path = self.path.encode()
        return _INT.pack(len(path)) + path + _INT.pack(self._PERSISTENT_RECURSIVE)

    def deserialize(self, _buffer: bytes, _offset: int) -> None:
        """Does nothing, because the response is empty."""


class MultiReadAnswer(NamedTuple):
    """The results in the order of the reads (an ``int`` is an error code), and the length of the response in bytes."""

    answers: Sequence[ReadResult | int]
    size: int


def results(reads: Sequence[Read], answer: MultiReadAnswer) -> list[ReadResult]:
    """Returns the results of ``reads`` (paths below the chroot), with ``None`` for a missing znode. Raises any other
    error."""
    if len(answer.answers) != len(reads):
        raise StoreError(f"ZooKeeper returned {len(answer.answers)} results for {len(reads)} reads of a multi-read")
    decoded: list[ReadResult] = []
    for read, result in zip(reads, answer.answers, strict=True):
        if not isinstance(result, int):
            decoded.append(result)
        elif result == _NO_NODE:
            decoded.append(None)
        else:
            raise translated(_error(result), "get" if isinstance(read, GetData) else "get children of", read.path)
    return decoded


def in_chunks(
    reads: Sequence[Read], ask: Callable[[Sequence[Read]], tuple[list[ReadResult], int]]
) -> tuple[ReadResult, ...]:
    """Sends all ``reads`` in chunks through ``ask``, which returns results and the number of bytes received. The size
    of a response is not known in advance, so the sizes of earlier responses determine the size of each chunk.
    """
    results: list[ReadResult] = []
    size = FIRST_CHUNK
    received = 0
    while len(results) < len(reads):
        chunk = reads[len(results) : len(results) + size]
        while len(chunk) > 1 and sum(len(read.path) + 64 for read in chunk) > MAX_REQUEST_BYTES:
            chunk = chunk[: len(chunk) // 2]
        chunk_results, weight = ask(chunk)
        results += chunk_results
        received += weight
        size = max(MIN_CHUNK, min(MAX_CHUNK, TARGET_RESPONSE_BYTES * len(results) // max(received, 1)))
    return tuple(results)


def watch_chunks(wanted: Sequence[tuple[WatchOf, str]]) -> Iterator[Sequence[tuple[WatchOf, str]]]:
    """Yields the watches in chunks that each fit in a request."""
    first = size = 0
    for number, (_, path) in enumerate(wanted):
        size += len(path.encode()) + _INT.size
        if size > MAX_REQUEST_BYTES and number > first:
            yield wanted[first:number]
            first, size = number, len(path.encode()) + _INT.size
    if first < len(wanted):
        yield wanted[first:]
