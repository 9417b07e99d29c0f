"""Rebuilds the znode tree from the log, and from a snapshot (``version-2/snapshot.<zxid in hex>``) if the log's
beginning is missing, and derives the changes of each transaction.

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
from typing import BinaryIO, NamedTuple, cast

from kafka_coord.errors import MalformedValue
from kafka_coord.monitor.audit.txnlog import CHECK, CLOSE_SESSION, CREATE, DELETE, SET_DATA, Txn


class TreeNode(NamedTuple):
    """A znode. ``session_id`` is the session that owns an ephemeral znode, or 0 for a persistent one."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    session_id: int


class Change(NamedTuple):
    """A transaction's change to one znode. ``old`` is ``None`` for a created znode, and ``new`` for a deleted one."""

    path: str
    old: TreeNode | None
    new: TreeNode | None


class Checked(NamedTuple):
    """A check, in a multi, that the znode has the given version."""

    path: str
    version: int


class Step(NamedTuple):
    """One transaction that changed the tree. Paths are relative to the chroot."""

    zxid: int
    time_ms: int
    session_id: int
    changes: tuple[Change, ...]
    checks: tuple[Checked, ...]
    session_ended: bool = False


class ZnodeTree:
    """The znodes below ``chroot`` whose paths begin with one of ``roots``. Ignores all other znodes."""

    def __init__(self, chroot: str, roots: tuple[str, ...]) -> None:
        self._cut = len(chroot)
        self._roots = tuple(chroot + root for root in roots)
        self._below = tuple(f"{root}/" for root in self._roots)
        self.nodes: dict[str, TreeNode] = {}
        self._ephemerals: dict[int, set[str]] = {}

    def wants(self, path: str) -> bool:
        """Returns whether ``path``, including the chroot, belongs to this tree."""
        return path.startswith(self._below) or path in self._roots

    def put(self, path: str, node: TreeNode) -> None:
        """Adds a znode from a snapshot. ``path`` includes the chroot."""
        if self.wants(path):
            self._put(path[self._cut :], node)

    def as_changes(self) -> Iterator[Change]:
        """Yields the whole tree as creations, parents first."""
        return (Change(path, None, self.nodes[path]) for path in sorted(self.nodes))

    def apply(self, txn: Txn) -> Step | None:
        """Applies ``txn`` and returns its step, or ``None`` if it did not change this tree. The end of a session is
        always a step."""
        if txn.type == CLOSE_SESSION:
            return self._end_session(txn)
        changes: list[Change] = []
        checks: list[Checked] = []
        for kind, full, data, version, ephemeral in txn.operations:
            if not self.wants(full):
                continue
            path = full[self._cut :]
            old = self.nodes.get(path)
            if kind == CHECK:
                checks.append(Checked(path, version))
            elif kind == SET_DATA and old is not None:
                new = TreeNode(data, version, old.czxid, txn.zxid, old.session_id)
                self.nodes[path] = new
                changes.append(Change(path, old, new))
            elif kind == CREATE:
                new = TreeNode(data, 0, txn.zxid, txn.zxid, txn.session_id if ephemeral else 0)
                self._put(path, new)
                changes.append(Change(path, old, new))
            elif kind == DELETE and old is not None:
                self._remove(path, old)
                changes.append(Change(path, old, None))
        if not changes:
            return None
        return Step(txn.zxid, txn.time_ms, txn.session_id, tuple(changes), tuple(checks))

    def catch_up(self, txn: Txn) -> None:
        """Applies a transaction to a tree from a snapshot. The tree might already contain its effects, and later ones.

        The server processes writes while it takes a snapshot, so only a znode's own zxids show how new it is.
        """
        if txn.type == CLOSE_SESSION:
            self._end_session(txn)
            return
        before: dict[str, TreeNode | None] = {}
        for operation in txn.operations:
            path = operation.path[self._cut :] if self.wants(operation.path) else None
            if path is not None and path not in before:
                before[path] = self.nodes.get(path)
        newer = {path: node for path, node in before.items() if node is not None and node.mzxid > txn.zxid}
        self.apply(txn)
        for path, node in newer.items():
            self._put(path, node)

    def _end_session(self, txn: Txn) -> Step:
        """Removes the ephemerals of an ended session and returns the step. Before ZooKeeper 3.6, the record does not
        list them, so the tree tracks them."""
        changes = []
        for path in sorted(self._ephemerals.pop(txn.session_id, ())):
            old = self.nodes.pop(path)
            changes.append(Change(path, old, None))
        return Step(txn.zxid, txn.time_ms, txn.session_id, tuple(changes), (), session_ended=True)

    def _put(self, path: str, node: TreeNode) -> None:
        old = self.nodes.get(path)
        if old is not None and old.session_id != node.session_id:
            self._forget_ephemeral(path, old)
        self.nodes[path] = node
        if node.session_id:
            self._ephemerals.setdefault(node.session_id, set()).add(path)

    def _remove(self, path: str, old: TreeNode) -> None:
        del self.nodes[path]
        self._forget_ephemeral(path, old)

    def _forget_ephemeral(self, path: str, old: TreeNode) -> None:
        owned = self._ephemerals.get(old.session_id)
        if owned is not None:
            owned.discard(path)
            if not owned:
                del self._ephemerals[old.session_id]


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
