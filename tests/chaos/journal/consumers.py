"""The journal of a consumer process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from kafka_coord.dev.json_lines import Appending, read_lines
from kafka_coord.errors import MalformedValue
from kafka_coord.model import TopicPartition
from tests.chaos.journal.records import Stretch, plain, stretches, stretches_of

CONSUMERS = "consumers"

CONFLUENT, JAVA = "confluent-kafka", "java"
"""The kinds of consumers that are stock Kafka clients."""


class Opened(NamedTuple):
    t: float
    consumer: str
    group: str
    pid: int
    session_timeout_ms: int
    socket: bool = False
    """Whether it uses a socket instead of ZooKeeper."""
    kind: str = ""
    """Its kind and its options, in words."""


class Started(NamedTuple):
    """Partitions were assigned. Each continues at its offset. None means an unknown offset, which is the start or the
    end of the log.

    ``since`` is when a stock client requested these offsets. Then None means that nothing is committed. Without
    ``since``, a stock client received no answer.
    """

    t: float
    offsets: Mapping[TopicPartition, int | None]
    since: float | None = None


class Stopped(NamedTuple):
    """The consumer gives up partitions, and has no records of them in hand. It writes this line before it commits the
    offsets and acknowledges.
    """

    t: float
    partitions: frozenset[TopicPartition]


class Lost(NamedTuple):
    """The consumer lost its membership, and with it these partitions."""

    t: float
    partitions: frozenset[TopicPartition]


class Rejoined(NamedTuple):
    """The consumer is registered again."""

    t: float


class Handed(NamedTuple):
    """A call that began at ``since`` and returned at ``t`` handed out records."""

    t: float
    since: float
    runs: tuple[Stretch, ...]


class Committing(NamedTuple):
    """A stock client is about to request this commit. If it is acknowledged, a ``committed`` line follows."""

    t: float
    offsets: Mapping[TopicPartition, int]


class Committed(NamedTuple):
    """A commit was acknowledged. Each offset is that of the next record to read."""

    t: float
    offsets: Mapping[TopicPartition, int]


class Closed(NamedTuple):
    """The consumer left cleanly. This is the last line."""

    t: float


ConsumerLine = Opened | Started | Stopped | Lost | Rejoined | Handed | Committing | Committed | Closed


class ConsumerWriter(Appending):
    """Writes the file of one consumer process. Thread-safe. Each line has the current time, if no time is given.

    Call :meth:`handed` before the next request for records, with the times directly before and after the last call.
    """

    def __init__(
        self,
        directory: Path,
        *,
        consumer: str,
        group: str,
        pid: int,
        session_timeout_ms: int,
        socket: bool = False,
        kind: str = "",
    ) -> None:
        super().__init__(directory / CONSUMERS / f"{consumer}.{pid}.jsonl")
        about = {"consumer": consumer, "group": group, "pid": pid, "session_timeout_ms": session_timeout_ms}
        self._write("opened", **about, socket=socket, kind=kind)

    @classmethod
    def appending(cls, path: Path) -> Self:
        """Returns another writer of a file that another process has opened, for a consumer of two processes."""
        writer = cls.__new__(cls)
        Appending.__init__(writer, path)
        return writer

    def started(self, offsets: Mapping[TopicPartition, int | None], since: float | None = None) -> None:
        """Call this in ``on_start``, where the offset is ``consumer.position(partition)``."""
        asked = {} if since is None else {"s": since}
        self._write("started", o=[[*partition, offset] for partition, offset in offsets.items()], **asked)

    def stopped(self, partitions: Iterable[TopicPartition]) -> None:
        """Call this in ``on_stop``."""
        self._write("stopped", p=[list(partition) for partition in partitions])

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Call this in ``on_lost``."""
        self._write("lost", p=[list(partition) for partition in partitions])

    def rejoined(self) -> None:
        self._write("rejoined")

    def handed(self, since: float, t: float, records: Iterable[tuple[str, int, int, int]]) -> None:
        """``records`` are (topic, partition, offset, number), in the order of their arrival."""
        runs = stretches(records)
        if runs:
            self.append({"t": t, "k": "handed", "s": since, "r": plain(runs)})

    def committing(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Call this before a stock client requests a commit."""
        self._write("committing", o=[[*partition, offset] for partition, offset in offsets.items()])

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Call this after a commit without an error."""
        self._write("committed", o=[[*partition, offset] for partition, offset in offsets.items()])

    def closed(self) -> None:
        """Call this after ``close()`` has returned."""
        self._write("closed")

    def _write(self, kind: str, /, **value: Any) -> None:
        self.append({"t": time.monotonic(), "k": kind} | value)


@dataclass(frozen=True, slots=True)
class ConsumerJournal:
    """The file of one process. ``torn`` tells whether its last line is incomplete."""

    path: str
    consumer: str
    group: str
    pid: int
    session_timeout_ms: int
    lines: tuple[ConsumerLine, ...]
    torn: bool = False
    socket: bool = False
    kind: str = ""

    @property
    def stock(self) -> bool:
        """Whether it is a stock Kafka client."""
        return self.kind.startswith((CONFLUENT, JAVA))

    @property
    def closed(self) -> bool:
        """Whether the consumer left cleanly."""
        return bool(self.lines) and isinstance(self.lines[-1], Closed)


def read_consumers(directory: Path) -> tuple[ConsumerJournal, ...]:
    """Reads all consumer files, in order of their first lines. Leaves out files without a first line."""
    found = [read_consumer(path) for path in sorted((directory / CONSUMERS).glob("*.jsonl"))]
    return tuple(sorted((journal for journal in found if journal is not None), key=lambda journal: journal.lines[0].t))


def read_consumer(path: Path) -> ConsumerJournal | None:
    """Reads one file. Returns None if it has no first line. Raises :class:`MalformedValue` with the faulty line."""
    lines = tuple(read_lines(path, _consumer_line))
    if not lines:
        return None
    first = lines[0]
    if not isinstance(first, Opened):
        raise MalformedValue(f"{path}:1", "a consumer's file begins with 'opened'")
    torn = not path.read_bytes().endswith(b"\n")
    return ConsumerJournal(
        path.name,
        first.consumer,
        first.group,
        first.pid,
        first.session_timeout_ms,
        lines,
        torn=torn,
        socket=first.socket,
        kind=first.kind,
    )


def _consumer_line(value: Mapping[str, Any]) -> ConsumerLine:
    t = value["t"]
    match value["k"]:
        case "handed":
            return Handed(t, value["s"], stretches_of(value["r"]))
        case "committed":
            return Committed(t, {TopicPartition(topic, p): offset for topic, p, offset in value["o"]})
        case "committing":
            return Committing(t, {TopicPartition(topic, p): offset for topic, p, offset in value["o"]})
        case "started":
            return Started(t, {TopicPartition(topic, p): offset for topic, p, offset in value["o"]}, value.get("s"))
        case "stopped":
            return Stopped(t, frozenset(TopicPartition(*partition) for partition in value["p"]))
        case "lost":
            return Lost(t, frozenset(TopicPartition(*partition) for partition in value["p"]))
        case "rejoined":
            return Rejoined(t)
        case "opened":
            about = {name: value[name] for name in ("consumer", "group", "pid", "session_timeout_ms")}
            return Opened(t, **about, socket=bool(value.get("socket", False)), kind=value.get("kind", ""))
        case "closed":
            return Closed(t)
        case other:
            raise ValueError(f"{other!r} is no kind of line")
