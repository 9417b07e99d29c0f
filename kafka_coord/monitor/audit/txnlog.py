"""Reads ZooKeeper's transaction logs: the records of one file, ``version-2/log.<zxid in hex>``, in ZooKeeper's
serialization format (jute), and the files of all servers as one sequence of transactions.

In ZooKeeper 3.4 to 3.9, ``org.apache.zookeeper.server.persistence.FileTxnLog`` and ``…server.util.SerializeUtils``
write this format. ``zookeeper.jute``, module ``txn``, defines the records:

    file header: int magic "ZKLG", int version 2, long dbid
    per record:  long Adler-32 of the payload, int length, payload, byte 'B'
    payload:     TxnHeader {long session, int cxid, long zxid, long time, int type}, the transaction,
                 and in 3.6 and later a digest, which the audit ignores
    the rest:    zeros, to the length the file was preallocated to

A server logs the results of requests, not the requests themselves: sequential names are complete, a ``setData`` carries
the new version, and a ``check`` carries the checked version plus one (``PrepRequestProcessor.checkAndIncVersion``). A
server also logs failed multis. A failed multi contains at least one operation of type ``error``, and none of its
operations takes effect (``DataTree.processTxn``).

Each directory belongs to one server: it is the ``dataDir``, the ``dataLogDir``, or the ``version-2`` below one of them.
The servers must all belong to one ensemble, because only then do their logs agree where they overlap. The log of a
server that was down, or that received a snapshot, lacks some transactions.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from struct import Struct
from typing import BinaryIO, NamedTuple

from kafka_coord.errors import MalformedValue, NotFound

_INT = struct.Struct(">i").unpack_from


class Truncated(ValueError):
    """A value is truncated, contains an impossible length, or is not valid UTF-8."""


class JuteReader:
    """Reads values in order from ``data``, beginning at ``at``. Raises :class:`Truncated`."""

    __slots__ = ("_end", "at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self._end = len(data)

    def int32(self) -> int:
        at = self.at
        self.at = at + 4
        if self.at > self._end:
            raise Truncated("a number is truncated")
        value: int = _INT(self.data, at)[0]
        return value

    def flag(self) -> bool:
        if self.at >= self._end:
            raise Truncated("a flag is truncated")
        self.at += 1
        return self.data[self.at - 1] != 0

    def buffer(self) -> bytes:
        """Reads a buffer. A null buffer (length -1) reads as empty."""
        begin = self.at + 4
        if begin > self._end:
            raise Truncated("a length is truncated")
        length: int = _INT(self.data, self.at)[0]
        if length <= 0:
            if length < -1:
                raise Truncated(f"impossible length {length}")
            self.at = begin
            return b""
        self.at = begin + length
        if self.at > self._end:
            raise Truncated(f"a value of {length} bytes is truncated")
        return self.data[begin : self.at]

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise Truncated("a string is not UTF-8") from None

    def skip_acl(self) -> None:
        """Skips a vector of ACL entries: permissions, scheme, id."""
        for _ in range(self.int32()):
            self.int32()
            self.buffer()
            self.buffer()


_MAGIC = b"ZKLG"
_VERSION = 2
_FILE_HEADER = Struct(">4siq")
_RECORD_HEADER = Struct(">qi")
_TXN_HEADER = Struct(">qiqqi")
_END_OF_RECORD = b"B"
MAX_RECORD_BYTES = 1 << 27
"""The maximum length of a record. No server accepts a request this large, so a larger length means that the log is
damaged."""

# org.apache.zookeeper.ZooDefs.OpCode
CREATE = 1
DELETE = 2
SET_DATA = 5
SET_ACL = 7
CHECK = 13
MULTI = 14
CREATE2 = 15
RECONFIG = 16
CREATE_CONTAINER = 19
DELETE_CONTAINER = 20
CREATE_TTL = 21
CREATE_SESSION = -10
CLOSE_SESSION = -11
ERROR = -1

_CREATES = frozenset({CREATE, CREATE2, CREATE_CONTAINER, CREATE_TTL})


class TxnOperation(NamedTuple):
    """One change or check. ``kind`` is ``CREATE``, ``SET_DATA``, ``DELETE`` or ``CHECK``. ``version`` is the new
    version for ``SET_DATA``, and the checked version for ``CHECK``."""

    kind: int
    path: str
    data: bytes = b""
    version: int = 0
    ephemeral: bool = False


class Txn(NamedTuple):
    """One transaction. ``time_ms`` is the ZooKeeper leader's wall clock, in ms since 1970.

    ``operations`` is empty for a failed transaction, and for the start or end of a session.
    """

    zxid: int
    time_ms: int
    session_id: int
    type: int
    operations: tuple[TxnOperation, ...]


def read_log(path: Path, torn: list[str] | None = None) -> Iterator[Txn]:
    """Yields the transactions of one log file in order, with one record in memory at a time.

    The log of a killed or running server may end with an incomplete record. Such a record ends the file, and is
    reported in ``torn``. For any other fault, raises :class:`MalformedValue` with the file and byte offset.
    """
    for offset, payload in _payloads(path, torn):
        try:
            txn = decode_txn(payload)
        except Truncated as error:
            raise MalformedValue(f"{path}:{offset}", f"cannot decode a transaction: {error}") from None
        yield txn


def read_zxids(path: Path) -> Iterator[int]:
    """Yields the zxids of one log file in order, much faster than :func:`read_log`. Raises the same errors."""
    for offset, payload in _payloads(path, None):
        if len(payload) < _TXN_HEADER.size:
            raise MalformedValue(f"{path}:{offset}", "a transaction without its header")
        yield _TXN_HEADER.unpack_from(payload)[2]


def _payloads(path: Path, torn: list[str] | None) -> Iterator[tuple[int, bytes]]:
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(path.open("rb"))
        head = file.read(_FILE_HEADER.size)
        if not head.strip(b"\0"):
            return  # the server was killed before it wrote the file header
        if len(head) < _FILE_HEADER.size:
            _torn(torn, path, 0, "the file's header is truncated")
            return
        magic, version, _ = _FILE_HEADER.unpack(head)
        if magic != _MAGIC:
            raise MalformedValue(f"{path}", f"not a ZooKeeper transaction log: it begins with {magic!r}")
        if version != _VERSION:
            raise MalformedValue(f"{path}", f"a transaction log of format {version}; this release supports {_VERSION}")
        while True:
            offset = file.tell()
            try:
                payload = _next_payload(file, path, offset, torn)
            except MalformedValue:
                # Read again, because a running server may have replaced zeros with records between two reads.
                file = opened.enter_context(path.open("rb"))
                file.seek(offset)
                payload = _next_payload(file, path, offset, torn)
            if payload is None:
                return
            yield offset, payload


def _next_payload(file: BinaryIO, path: Path, offset: int, torn: list[str] | None) -> bytes | None:
    head = file.read(_RECORD_HEADER.size)
    if len(head) < _RECORD_HEADER.size:
        if head.strip(b"\0"):
            _torn(torn, path, offset, "the last record is truncated")
        return None
    checksum, length = _RECORD_HEADER.unpack(head)
    if length == 0:
        _only_zeros_follow(file, path, offset, torn, began=checksum != 0)
        return None
    if not 0 < length <= MAX_RECORD_BYTES:
        raise MalformedValue(f"{path}:{offset}", f"a record of {length} bytes, so the log is damaged here")
    payload = file.read(length)
    end = file.read(1)
    if not end:
        _torn(torn, path, offset, f"the last record contains only {len(payload)} of {length} bytes")
        return None
    if end != _END_OF_RECORD:
        # ZooKeeper treats this as the end of the file. So does this reader, if nothing follows.
        _only_zeros_follow(file, path, offset, torn, began=True)
        return None
    computed = zlib.adler32(payload)
    if computed != checksum:
        raise MalformedValue(
            f"{path}:{offset}",
            f"the checksum of a record is {computed:#x} instead of {checksum:#x}, so the log is damaged here",
        )
    return payload


def _only_zeros_follow(file: BinaryIO, path: Path, offset: int, torn: list[str] | None, *, began: bool) -> None:
    while block := file.read(1 << 20):
        if block.strip(b"\0"):
            raise MalformedValue(f"{path}:{offset}", "more data follows a truncated record, so the log is damaged here")
    if began:
        _torn(torn, path, offset, "the last record is incomplete")


def _torn(torn: list[str] | None, path: Path, offset: int, what: str) -> None:
    if torn is not None:
        torn.append(f"{path}:{offset}: {what}; it never took effect, or another server's log contains it")


def decode_txn(payload: bytes) -> Txn:
    """Decodes one transaction. Raises :class:`Truncated`."""
    if len(payload) < _TXN_HEADER.size:
        raise Truncated("its header is truncated")
    session_id, _, zxid, time_ms, kind = _TXN_HEADER.unpack_from(payload)
    operations: tuple[TxnOperation, ...] = ()
    if kind == MULTI:
        operations = _multi(JuteReader(payload, _TXN_HEADER.size))
    elif kind not in {CREATE_SESSION, CLOSE_SESSION, ERROR}:
        operation = _operation(kind, JuteReader(payload, _TXN_HEADER.size))
        operations = (operation,) if operation is not None else ()
    return Txn(zxid, time_ms, session_id, kind, operations)


def _multi(reader: JuteReader) -> tuple[TxnOperation, ...]:
    operations: list[TxnOperation] = []
    for _ in range(reader.int32()):
        kind = reader.int32()
        if kind == ERROR:
            return ()
        length = reader.int32()
        end = reader.at + length
        operation = _operation(kind, reader)
        if reader.at > end:
            raise Truncated("an operation of a multi is longer than its stated length")
        reader.at = end
        if operation is not None:
            operations.append(operation)
    return tuple(operations)


def _operation(kind: int, reader: JuteReader) -> TxnOperation | None:
    """Decodes an operation. Returns ``None`` for a change to an ACL."""
    if kind in (SET_DATA, RECONFIG):
        return TxnOperation(SET_DATA, reader.text(), reader.buffer(), reader.int32())
    if kind == CHECK:
        return TxnOperation(CHECK, reader.text(), b"", reader.int32() - 1)
    if kind in {DELETE, DELETE_CONTAINER}:
        return TxnOperation(DELETE, reader.text())
    if kind in _CREATES:
        path, data = reader.text(), reader.buffer()
        reader.skip_acl()
        return TxnOperation(CREATE, path, data, ephemeral=kind in {CREATE, CREATE2} and reader.flag())
    if kind == SET_ACL:
        return None
    raise Truncated(f"a transaction of type {kind}, which this release does not support")


_NAME = re.compile(r"(log|snapshot)\.([0-9a-f]{1,16})(\.gz)?")
_COUNTER = 0xFFFFFFFF
"""The mask for the counter in a zxid. The upper 32 bits are the leader's epoch, and the counter starts at 1 for each
leader."""


@dataclass(frozen=True, slots=True)
class Files:
    """One server's files, oldest first, each with the zxid from its name."""

    directory: Path
    logs: tuple[tuple[int, Path], ...]
    snapshots: tuple[tuple[int, Path], ...]


def find_files(paths: Sequence[Path]) -> tuple[Files, ...]:
    """Lists the files of each directory. Raises :class:`NotFound` if one of ``paths`` is not a directory, or if there
    is no transaction log."""
    found: list[Files] = []
    for path in paths:
        directory = next((d for d in (path / "data" / "version-2", path / "version-2", path) if d.is_dir()), None)
        if directory is None:
            raise NotFound(
                f"{path} is not a directory; give a server's dataDir or dataLogDir, or its version-2 directory"
            )
        logs: list[tuple[int, Path]] = []
        snapshots: list[tuple[int, Path]] = []
        for file in directory.iterdir():
            name = _NAME.fullmatch(file.name)
            if name is not None and file.is_file() and not (name[1] == "log" and name[3]):
                (logs if name[1] == "log" else snapshots).append((int(name[2], 16), file))
        found.append(Files(directory, tuple(sorted(logs)), tuple(sorted(snapshots))))
    if not any(files.logs for files in found):
        raise NotFound(
            f"no transaction log (log.<hex>) in {', '.join(str(files.directory) for files in found)};"
            " give a server's dataDir or dataLogDir, or its version-2 directory"
        )
    return tuple(found)


class Segment(NamedTuple):
    """A gapless part of one server's log, from zxid ``first`` to ``last``, within one epoch."""

    first: int
    last: int


def in_order(sources: Sequence[Files], notes: list[str]) -> Iterator[Txn]:
    """Yields every transaction once, in zxid order. Adds a note about each skipped part to ``notes``.

    Raises :class:`MalformedValue` if a file cannot be read.
    """
    logged = [files for files in sources if files.logs]
    if len(logged) == 1:
        yield from _of_one(logged[0], notes)
        return
    dead = never_committed(
        [_segments(files) for files in logged], [[zxid for zxid, _ in files.snapshots] for files in logged]
    )
    never: list[int] = []
    for zxid, found in groupby(heapq.merge(*(_of_one(files, notes) for files in logged), key=_zxid), key=_zxid):
        if any(span.first <= zxid <= span.last for span in dead):
            never.append(zxid)
        else:
            yield next(found)
    if never:
        notes.append(
            f"{len(never)} proposals from zxid {never[0]:#x} on were never committed, so the audit ignores them"
        )


def never_committed(
    servers: Sequence[Sequence[Segment]], snapshots: Sequence[Sequence[int]] | None = None
) -> list[Segment]:
    """Returns the transactions that never took effect. ``servers`` holds the segments of each server's log, in order,
    and ``snapshots`` the zxids of each server's snapshots.

    A leader that dies or loses its followers may have proposals at the end of its log that no other server has. When it
    rejoins, ZooKeeper either truncates these proposals, or sends a snapshot and leaves them in the middle of the log.

    If a server's log runs straight from epoch N into the first transaction of N+1, it contains all of N. Anything
    beyond that point in another server's copy of N was never committed. A server that received a snapshot exactly
    between two epochs looks the same, but its copy of N is shorter, so the other servers outvote it. If no vote is
    possible, the transactions count as committed.
    """
    ends: dict[int, Counter[int]] = {}
    for segments, taken in zip(servers, snapshots or [()] * len(servers), strict=True):
        for before, after in itertools.pairwise(segments):
            sent = any(before.last < zxid < after.first for zxid in taken)
            if after.first & _COUNTER == 1 and after.first >> 32 > before.last >> 32 and not sent:
                for epoch in range(before.last >> 32, after.first >> 32):
                    last = before.last if epoch == before.last >> 32 else epoch << 32
                    ends.setdefault(epoch, Counter())[last] += 1
    dead = []
    for epoch, votes in sorted(ends.items()):
        most = max(votes.values())
        end = max(last for last, count in votes.items() if count == most)
        beyond = [one.last for segments in servers for one in segments if one.last >> 32 == epoch and one.last > end]
        if beyond:
            dead.append(Segment(end + 1, max(beyond)))
    return dead


def _segments(files: Files) -> list[Segment]:
    segments: list[Segment] = []
    for _, path in files.logs:
        for zxid in read_zxids(path):
            if segments and zxid == segments[-1].last + 1:
                segments[-1] = Segment(segments[-1].first, zxid)
            elif not segments or zxid > segments[-1].last:
                segments.append(Segment(zxid, zxid))
    return segments


def _zxid(txn: Txn) -> int:
    return txn.zxid


def _of_one(files: Files, torn: list[str]) -> Iterator[Txn]:
    last = -1
    for _, path in files.logs:
        for txn in read_log(path, torn):
            if txn.zxid > last:  # a restarted server may write its last records again
                last = txn.zxid
                yield txn


def missing_between(last: int, following: int) -> bool:
    """Returns whether transactions are certainly missing between the zxids ``last`` and ``following``."""
    if last >> 32 == following >> 32:
        return following != last + 1
    return following & _COUNTER > 1


def begins_everything(zxid: int) -> bool:
    """Returns whether ``zxid`` certainly belongs to the first transaction of the ensemble."""
    return zxid & _COUNTER <= 1 and zxid >> 32 <= 1
