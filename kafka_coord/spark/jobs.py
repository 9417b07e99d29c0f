"""The batch job ``history``, which analyses the causes and costs of coordinator decisions: its evidence as rows, its
results, and how results are published.

ZooKeeper's transaction log holds every decision, command and commit. This module replays the log as ``kafka-coord
audit`` does. It also reads the output of ``kafka-coord groups history GROUP -o json``, which contains only a group's
last decisions.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kafka_coord.channel.operations import decode_command
from kafka_coord.errors import MalformedValue, NotFound
from kafka_coord.model import Decision, StopFetcher, TopicPartition, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.monitor.audit import audit
from kafka_coord.monitor.audit.auditor import Auditor
from kafka_coord.monitor.audit.state import Kind, StepContext, Znode
from kafka_coord.monitor.audit.tree import Change, Step
from kafka_coord.spark.sinks.files import local_directory, replace

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession


class DecidedAt(NamedTuple):
    """A decision about a group. Durations are in ms from the decision, or ``None`` if the log does not show them."""

    source: str
    group: str
    generation: int
    epoch: int
    at_ms: int
    reason: str
    causes: tuple[str, ...]
    assignor: str
    members: int
    partitions: int
    moved: int
    stopped_ms: int | None
    settled_ms: int | None


class HeldPartition(NamedTuple):
    """A period in which a consumer held a partition. It begins when a start-fetcher is acknowledged, and ends when a
    stop-fetcher is acknowledged or the registration is removed (``ending`` says which). ``members_left`` is how many
    members the group then has.
    """

    source: str
    group: str
    topic: str
    partition: int
    consumer: str
    begin_ms: int
    end_ms: int | None
    ending: str
    members_left: int


class ReadPosition(NamedTuple):
    """The offset that a group had committed for a partition at a given time."""

    source: str
    group: str
    topic: str
    partition: int
    offset: int
    at_ms: int


@dataclass(slots=True)
class Evidence:
    """All evidence, and the number of values that could not be read, wholly or in part."""

    decisions: list[DecidedAt] = field(default_factory=list)
    holds: list[HeldPartition] = field(default_factory=list)
    positions: list[ReadPosition] = field(default_factory=list)
    unreadable: int = 0

    def add_trail(self, source: str, group: str, trail: Trail) -> None:
        self.add_decisions(source, group, trail.decisions)
        self.unreadable += len(trail.unreadable)

    def add_decisions(self, source: str, group: str, decisions: Iterable[Decision]) -> None:
        self.decisions += (
            DecidedAt(
                source,
                group,
                one.generation,
                one.epoch,
                one.decided_at_ms,
                one.reason,
                tuple(map(str, one.causes)),
                one.assignor,
                one.members,
                one.partitions,
                one.moved,
                one.stopped_ms,
                one.settled_ms,
            )
            for one in decisions
        )


def read_evidence(paths: Sequence[Path], *, chroot: str = "", source: str = "") -> Evidence:
    """Reads the evidence in ``paths``. Each path is the data directory of a ZooKeeper server, or a file with the
    output of 'kafka-coord groups history GROUP -o json', named after its group. All directories must belong to the same
    ensemble. ``source`` names the ensemble (default: the first directory's name). ``chroot`` is the root of the
    coordinator's znodes. Raises :class:`NotFound` for a path that does not exist, and :class:`MalformedValue` for any
    other kind of file.
    """
    evidence = Evidence()
    logs = []
    for path in paths:
        if not path.exists():
            raise NotFound(f"{path} does not exist")
        if path.is_dir():
            logs.append(path)
        else:
            trail = _trail(path)
            if trail.unreadable and not trail.decisions:
                raise MalformedValue(str(path), trail.unreadable[0].reason)
            evidence.add_trail(path.name, path.stem, trail)
    if logs:
        witness = _Witness(source or logs[0].name or str(logs[0]))
        audit(logs, chroot=chroot, running=True, watch=witness)
        witness.end(evidence)
    return evidence


def _trail(path: Path) -> Trail:
    """Reads the decisions in the output of ``groups history``, or in the value of a history znode."""
    content = path.read_bytes()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedValue(
            str(path), f"not JSON ({error}); use the output of 'groups history GROUP -o json'"
        ) from None
    if isinstance(value, Mapping):
        return Trail.from_json(fields.load(content, str(path)), str(path))
    if not isinstance(value, list) or not all(isinstance(decision, Mapping) for decision in value):
        raise MalformedValue(str(path), "not a list of decisions; use the output of 'groups history GROUP -o json'")
    decisions, problem = fields.readable({"decisions": value}, "decisions", str(path), _shown_decision)
    return Trail(decisions, unreadable=(Unreadable(str(path), problem),) if problem else ())


def _shown_decision(shown: fields.Json, where: str) -> Decision:
    """Decodes a decision as ``groups history`` shows it."""
    written = shown.get("decided_at")
    try:
        at_ms = round(datetime.fromisoformat(written).timestamp() * 1000) if written is not None else 0
    except (TypeError, ValueError, OverflowError):
        raise MalformedValue(where, f"{fields.shown(written)} is not a time") from None
    return Decision.from_json({**shown, "decided_at_ms": at_ms}, where)


class _Witness:
    """Collects evidence from each step of a log, before the audit judges the step."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._decisions: dict[tuple[str, int], Decision] = {}
        self._groups: set[str] = set()
        self._open: dict[tuple[str, TopicPartition], HeldPartition] = {}
        self._closed: list[HeldPartition] = []
        self._commits: dict[tuple[str, TopicPartition, int], ReadPosition] = {}
        self._unreadable = 0

    def __call__(self, auditor: Auditor, step: Step) -> None:
        context = StepContext.of(step, auditor.state)
        for change in step.changes:
            znode = auditor.znodes.of(change.path)
            try:
                if znode.kind is Kind.HISTORY and change.new is not None:
                    self._history(znode, change)
                elif znode.kind is Kind.COMMAND and change.new is None:
                    if context.fenced_as(znode.group, znode.name):
                        self._acknowledged(auditor, znode, change, step.time_ms)
                elif znode.kind is Kind.REGISTRATION and change.new is None:
                    self._gone(auditor, znode, step, _departure(change, context))
                elif znode.kind is Kind.OFFSET and change.new is not None:
                    self._committed(znode, change.new.data, step.time_ms)
            except MalformedValue:
                self._unreadable += 1

    def end(self, evidence: Evidence) -> None:
        """Adds the collected evidence to ``evidence``."""
        for (group, _), decision in self._decisions.items():
            evidence.add_decisions(self._source, group, [decision])
        evidence.holds += [*self._closed, *self._open.values()]
        evidence.positions += self._commits.values()
        evidence.unreadable += self._unreadable

    def _history(self, znode: Znode, change: Change) -> None:
        data = change.new.data if change.new is not None else b""
        found = Trail.from_json(fields.load(data, change.path), change.path)
        decisions = found.decisions
        self._unreadable += len(found.unreadable)
        is_known = znode.group in self._groups
        self._groups.add(znode.group)
        for decision in decisions[-1:] if is_known else decisions:  # only the last decision is new or newly settled
            self._decisions[znode.group, decision.generation] = decision

    def _acknowledged(self, auditor: Auditor, znode: Znode, change: Change, at_ms: int) -> None:
        command = decode_command(change.old.data if change.old is not None else b"", change.path)
        for partition in command.partitions:
            if isinstance(command, StopFetcher):
                left = len(auditor.state.group(znode.group).registrations)
                self._close(znode.group, partition, znode.name, at_ms, "stopped", left)
            else:
                self._open[znode.group, partition] = HeldPartition(
                    self._source, znode.group, *partition, znode.name, at_ms, None, "held at the end", 0
                )

    def _gone(self, auditor: Auditor, znode: Znode, step: Step, ending: str) -> None:
        left = len(auditor.state.group(znode.group).registrations.keys() - {znode.name})
        for group, partition in list(self._open):
            if group == znode.group:
                self._close(group, partition, znode.name, step.time_ms, ending, left)

    def _close(self, group: str, partition: TopicPartition, consumer: str, at_ms: int, ending: str, left: int) -> None:
        held = self._open.get((group, partition))
        if held is not None and held.consumer == consumer:
            del self._open[group, partition]
            self._closed.append(held._replace(end_ms=at_ms, ending=ending, members_left=left))

    def _committed(self, znode: Znode, data: bytes, at_ms: int) -> None:
        if not znode.leaf.isdigit() or not data.strip().isdigit():
            return
        partition = TopicPartition(znode.name, int(znode.leaf))
        self._commits[znode.group, partition, at_ms // 1000] = ReadPosition(
            self._source, znode.group, *partition, int(data), at_ms
        )


def _departure(change: Change, context: StepContext) -> str:
    if context.step.session_ended:
        return "session ended"
    if context.fence is not None:
        return "evicted"
    own = change.old is not None and change.old.session_id == context.step.session_id
    return "left" if own else "registration deleted"


_SUMMARY = "summary.json"
_KEPT = 5
"""The number of results to retain, so that readers of an earlier result can finish."""


class Results:
    """Results that are being written. ``directory`` is a draft until the :func:`publishing` block ends, and the
    published directory afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.summary: Mapping[str, Any] = {}

    def write(self, part: str, rows: DataFrame) -> None:
        """Writes one data set that is small enough for one file."""
        rows.coalesce(1).write.parquet((self.directory / part).as_uri())


@contextmanager
def publishing(root: Path, order: str = "") -> Iterator[Results]:
    """Publishes what the block writes, below ``root``, under a name that sorts by ``order`` and then by time. If
    anything fails, publishes nothing."""
    results = Results(root / f".{uuid.uuid4().hex}")
    draft = results.directory
    try:
        draft.mkdir(parents=True)
        yield results
        replace(draft / _SUMMARY, json.dumps(results.summary, indent=1).encode())
        results.directory = root / "-".join(filter(None, (order, f"{time.time_ns() // 1_000_000:013d}")))
        draft.rename(results.directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for old in _published(root)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def last_published(root: Path, advice: str) -> tuple[Path, Mapping[str, Any]]:
    """Returns the directory and the summary of the last results. Raises :class:`NotFound` with ``advice`` if there are
    no results, and :class:`MalformedValue` for a damaged summary.
    """
    there = _published(root)
    if not there:
        raise NotFound(f"{root} does not contain results yet: {advice}")
    path = there[-1] / _SUMMARY
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MalformedValue(str(path), f"not JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise MalformedValue(str(path), "not a JSON object")
    return there[-1], value


def _published(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob(f"[0-9]*/{_SUMMARY}"))


RESULTS = "history"
"""The subdirectory for the results in a job's output directory."""

PARTS = ("rebalances", "without_owner", "decisions", "holds", "positions")

UNKNOWN = "unknown"
"""The cause assigned to decisions from releases that did not record causes."""

_SCHEMAS: Mapping[type[Any], str] = {
    DecidedAt: "source string, group string, generation bigint, epoch bigint, at_ms bigint, reason string, "
    "causes array<string>, assignor string, members int, partitions int, moved int, stopped_ms bigint, "
    "settled_ms bigint",
    HeldPartition: "source string, group string, topic string, partition int, consumer string, begin_ms bigint, "
    "end_ms bigint, ending string, members_left int",
    ReadPosition: "source string, group string, topic string, partition int, offset bigint, at_ms bigint",
}


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """The result of the job: the amount of evidence, and the ``directory`` with a parquet data set for each of
    :data:`PARTS`.

    ``rebalances`` counts the decisions by group and ``cause``; a decision with several causes counts for each of
    them. ``without_owner`` shows how long partitions had no owner, by group and by how the last hold ended. The other
    data sets contain the evidence itself.
    """

    directory: Path
    decisions: int
    holds: int
    positions: int
    unreadable: int

    def read(self, part: str) -> pyarrow.Table:
        """Reads one of :data:`PARTS` without Spark."""
        import pyarrow.parquet as pq

        return pq.read_table(self.directory / part)


def write_history(spark: SparkSession, evidence: Evidence, output: str) -> HistoryReport:
    counts = {
        "decisions": len(evidence.decisions),
        "holds": len(evidence.holds),
        "positions": len(evidence.positions),
        "unreadable": evidence.unreadable,
    }
    with publishing(local_directory(output) / RESULTS) as results:
        decisions = data_set(spark, results.directory / "decisions", evidence.decisions, DecidedAt)
        holds = data_set(spark, results.directory / "holds", evidence.holds, HeldPartition)
        data_set(spark, results.directory / "positions", evidence.positions, ReadPosition)
        results.write("rebalances", _rebalances(decisions))
        results.write("without_owner", _without_owner(holds))
        results.summary = {"version": 1, **counts}
    return HistoryReport(results.directory, **counts)


def data_set(spark: SparkSession, folder: Path, rows: Sequence[Any], kind: type[Any]) -> DataFrame:
    """Writes the evidence of one ``kind`` to ``folder`` and returns it as a DataFrame. A log may contain too many rows
    to be sent with a task, so the evidence goes through a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    struct = cast("StructType", StructType.fromDDL(_SCHEMAS[kind]))
    schema = to_arrow_schema(struct)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    folder.mkdir()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), folder / "part-0.parquet", row_group_size=100_000)
    return spark.read.schema(struct).parquet(folder.as_uri())


def _rebalances(decisions: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    causes = f.when(f.size("causes") > 0, f.col("causes")).otherwise(f.array(f.lit(UNKNOWN)))
    return (
        decisions.withColumn("cause", f.explode(causes))
        .groupBy("source", "group", "cause")
        .agg(
            f.count("*").alias("decisions"),
            f.sum("moved").alias("moved"),
            f.count("settled_ms").alias("settled"),
            *(
                f.percentile_approx("settled_ms", share).alias(f"settled_{name}_ms")
                for name, share in (("p50", 0.5), ("p95", 0.95))
            ),
            f.max("settled_ms").alias("settled_max_ms"),
        )
        .orderBy("source", "group", f.desc("decisions"), "cause")
    )


def _without_owner(holds: DataFrame) -> DataFrame:
    """Returns statistics on the gaps between the end of each hold and the beginning of the next (0 if they overlap). A
    hold that has ended and has no successor counts as ``not_taken_up``.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    partition = Window.partitionBy("source", "group", "topic", "partition").orderBy("begin_ms", "end_ms")
    ending = f.when(f.col("members_left") == 0, "the last member was gone").otherwise(f.col("ending"))
    gap = f.when(f.col("next_ms").isNotNull(), f.greatest(f.col("next_ms") - f.col("end_ms"), f.lit(0)))
    return (
        holds.withColumn("next_ms", f.lead("begin_ms").over(partition))
        .where("end_ms IS NOT NULL")
        .withColumn("ending", ending)
        .withColumn("gap_ms", gap)
        .groupBy("source", "group", "ending")
        .agg(
            f.count("gap_ms").alias("times"),
            f.count_if(f.col("next_ms").isNull()).alias("not_taken_up"),
            *(
                f.percentile_approx("gap_ms", share).alias(f"{name}_ms")
                for name, share in (("p50", 0.5), ("p99", 0.99))
            ),
            f.max("gap_ms").alias("max_ms"),
            f.sum("gap_ms").alias("total_ms"),
        )
        .orderBy("source", "group", "ending")
    )
