"""Reads ZooKeeper's transaction log record by record: ``version-2/log.<zxid in hex>``.

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
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO, NamedTuple

from kafka_coord.errors import MalformedValue
from kafka_coord.monitor.audit.jute import JuteReader, Truncated

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
