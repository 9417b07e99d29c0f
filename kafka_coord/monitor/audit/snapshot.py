"""Reads ZooKeeper's snapshots (``version-2/snapshot.<zxid in hex>``), for a log whose beginning is missing.

The format of ``org.apache.zookeeper.server.persistence.FileSnap`` and ``DataTree.serialize`` is: a file header (magic
"ZKSN"), the sessions, the cache of ACLs, the znodes with parents first, a final "/", and an Adler-32 checksum.

The server processes writes while it takes a snapshot, so a snapshot is fuzzy: it contains all changes up to the zxid in
its name, and perhaps some later ones.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO, cast

from kafka_coord.errors import MalformedValue
from kafka_coord.monitor.audit.tree import TreeNode

_HEADER = Struct(">4siq")
_INT = Struct(">i")
_LONG = Struct(">q")
_SESSION = Struct(">qi")
_STAT = Struct(">qqqqiiiqq")
_NOT_A_SESSION = 0xFF
"""The highest byte of an ``ephemeralOwner`` that holds a TTL, not a session. (The smallest 64-bit number marks a
container.)"""


class _Source:
    """A snapshot file, with a running checksum of the bytes read so far."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._at = 0
        self.checksum = 1

    def read(self, length: int) -> bytes:
        if not 0 <= length <= 1 << 30:
            self.fail(f"impossible length {length}")
        data = self._file.read(length)
        if len(data) < length:
            self.fail("it is truncated")
        self._at += length
        self.checksum = zlib.adler32(data, self.checksum)
        return data

    def int32(self) -> int:
        return int(_INT.unpack(self.read(4))[0])

    def buffer(self) -> bytes:
        length = self.int32()
        return self.read(length) if length != -1 else b""

    def fail(self, what: str) -> None:
        raise MalformedValue(f"{self._path}:{self._at}", f"not a complete ZooKeeper snapshot: {what}")


def read_snapshot(path: Path) -> Iterator[tuple[str, TreeNode, int]]:
    """Yields (path, znode, zxid of the last transaction that changed it), parents first. Raises
    :class:`MalformedValue`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from _nodes(_Source(cast(BinaryIO, file), path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise MalformedValue(f"{path}", f"not a complete ZooKeeper snapshot: {error}") from None


def _nodes(source: _Source) -> Iterator[tuple[str, TreeNode, int]]:
    magic, version, _ = _HEADER.unpack(source.read(_HEADER.size))
    if magic != b"ZKSN" or version != 2:
        source.fail(f"it begins with {magic!r}, format {version}")
    source.read(_SESSION.size * source.int32())
    for _ in range(source.int32()):
        source.read(_LONG.size)
        for _ in range(source.int32()):
            source.read(4)
            source.buffer()
            source.buffer()
    while (name := source.buffer()) != b"/":
        data = source.buffer()
        source.read(_LONG.size)
        czxid, mzxid, _, _, node_version, _, _, owner, pzxid = _STAT.unpack(source.read(_STAT.size))
        is_session = owner > -(1 << 63) and owner >> 56 & 0xFF != _NOT_A_SESSION
        node = TreeNode(data, node_version, czxid, mzxid, owner if is_session else 0)
        yield name.decode(errors="replace"), node, max(mzxid, pzxid)
    expected = source.checksum
    (written,) = _LONG.unpack(source.read(_LONG.size))
    if written != expected:
        source.fail(f"its checksum is {expected:#x}, but the file says {written:#x}")
