"""Finds the log files of all servers and merges them into one sequence of transactions.

Each directory belongs to one server: it is the ``dataDir``, the ``dataLogDir``, or the ``version-2`` below one of them.
The servers must all belong to one ensemble, because only then do their logs agree where they overlap. The log of a
server that was down, or that received a snapshot, lacks some transactions.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from kafka_coord.errors import NotFound
from kafka_coord.monitor.audit.txnlog import Txn, read_log, read_zxids

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
