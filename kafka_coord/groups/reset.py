"""Computes new offsets by the rules of Kafka's own ``kafka-consumer-groups --reset-offsets``.

As in Kafka, an offset outside the log is replaced by the nearest end of the log. Whatever else the rule asked for and
the log does not hold is replaced too. A note in the row says so, and the operator must accept the notes of a plan.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, MalformedValue, RequestRefused, SettingsError
from kafka_coord.groups.group import Document, OffsetRow, iso_time
from kafka_coord.groups.offsets import Scope
from kafka_coord.groups.requests import Acting, held_by_nobody
from kafka_coord.kafka.offsets import NO_SUCH_RECORD, BrokerLog, BrokerOffsets
from kafka_coord.model import Action, PartitionSet, TopicPartition
from kafka_coord.model.histories import changed_offsets, offsets_before
from kafka_coord.model.names import is_legal
from kafka_coord.model.offsets import LogRange
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.model.sequences import parts
from kafka_coord.zk.store import Store

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from kafka_coord.groups.directory import GroupDirectory


_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE)
_MAX_OFFSET = (1 << 63) - 1


class RuleKind(StrEnum):
    TO_EARLIEST = "to-earliest"
    TO_LATEST = "to-latest"
    TO_CURRENT = "to-current"
    TO_OFFSET = "to-offset"
    SHIFT_BY = "shift-by"
    TO_TIME = "to-time"
    FROM_FILE = "from-file"
    FROM_GROUP = "from-group"
    UNDO = "undo"


@dataclass(frozen=True, slots=True)
class ResetRule:
    """A rule for new offsets. ``number`` is the offset, the shift, or the time in ms since 1970. ``group`` is the group
    whose offsets are copied."""

    kind: RuleKind
    number: int = 0
    group: str = ""

    def __str__(self) -> str:
        """Returns the text for the plan and the history, such as ``to-earliest``, ``shift-by -100`` or ``to-time
        2026-01-31T12:00:00.000Z``, which is in UTC."""
        if self.kind is RuleKind.TO_TIME:
            return f"{self.kind} {self.time}"
        if self.kind is RuleKind.FROM_GROUP:
            return f"{self.kind} {self.group}"
        numbered = self.kind in {RuleKind.TO_OFFSET, RuleKind.SHIFT_BY}
        return f"{self.kind} {self.number}" if numbered else str(self.kind)

    def copied(
        self, directory: GroupDirectory, groups: Sequence[str], kind: str | None = None
    ) -> Mapping[TopicPartition, int] | None:
        """Returns the offsets that the rule copies to ``groups``, from another group or from before, or ``None`` if it
        copies none. Raises :class:`NotFound`, and :class:`RequestRefused` if nothing can be undone."""
        if self.kind is RuleKind.UNDO:
            if len(groups) != 1:
                raise SettingsError("--undo needs one group")
            return offsets_to_undo(groups[0], directory.find(groups[0], kind).actions(groups[0]).actions)
        return directory.find(self.group).committed(self.group)[0] if self.group else None

    @property
    def time(self) -> str:
        return iso_time(self.number) or f"{self.number} ms since 1970"


@dataclass(frozen=True, slots=True)
class ResetRow:
    """The new offset of one partition. If the rule could not be followed, ``note`` says why, and what was put in its
    place. ``log`` is what the partition's log holds, if that is known."""

    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    note: str = ""
    log: LogRange | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def repeated_and_skipped(current: int | None, new: int | None, log: LogRange | None) -> tuple[int | None, int | None]:
    """Returns how many records a group reads again, and how many it never reads, if its ``current`` offset becomes
    ``new``. Without a new offset, its consumers start where auto.offset.reset says: at the start of the log, so that
    the first number is true, or at the end, so that the second is. Both count offsets, and are ``None`` if unknown."""
    if current is None or log is None:
        return None, None
    at = max(log.start, min(log.end, current))
    if new is None:
        return at - log.start, log.end - at
    return max(0, at - new), max(0, new - at)


def compute(
    rule: ResetRule,
    wanted: PartitionSet,
    committed: Mapping[TopicPartition, int],
    log: BrokerLog,
    explicit: Mapping[TopicPartition, int] | None = None,
) -> tuple[ResetRow, ...]:
    """Returns the new offset of each partition in ``wanted``. ``explicit`` has the offsets of a file, of another group,
    or of before.

    Raises :class:`BrokerError` if a rule needs a partition's log and the broker does not answer. Raises
    :class:`RequestRefused` for a shift of a partition without a committed offset, as Kafka does.
    """
    rows, logs = _computed(rule, wanted, committed, log, explicit or {}), log.known_ranges(wanted).ranges
    return tuple(replace(row, log=logs.get(row.tp)) for row in rows)


def _computed(
    rule: ResetRule,
    wanted: PartitionSet,
    committed: Mapping[TopicPartition, int],
    log: BrokerLog,
    explicit: Mapping[TopicPartition, int],
) -> tuple[ResetRow, ...]:
    match rule.kind:
        case RuleKind.TO_EARLIEST:
            return _rows(wanted, committed, _all(log.earliest, wanted))
        case RuleKind.TO_LATEST:
            return _rows(wanted, committed, _all(log.latest, wanted))
        case RuleKind.TO_TIME:
            offsets = _all(lambda found: log.at_time(found, rule.number), wanted)
            beyond = PartitionSet.of(tp for tp, offset in offsets.items() if offset == NO_SUCH_RECORD)
            notes = dict.fromkeys(beyond, f"no record at or after {rule.time}, so reset to the end of the log")
            return _rows(wanted, committed, {**offsets, **_all(log.latest, beyond)}, notes)
        case RuleKind.TO_CURRENT:
            missing = PartitionSet.of(tp for tp in wanted if tp not in committed)
            ends = _all(log.latest, missing)
            notes = dict.fromkeys(missing, "no committed offset, so reset to the end of the log")
            return _rows(wanted, committed, {**ends, **{tp: committed[tp] for tp in wanted if tp in committed}}, notes)
        case RuleKind.TO_OFFSET:
            return _within(wanted, committed, dict.fromkeys(wanted, rule.number), log)
        case RuleKind.FROM_FILE | RuleKind.FROM_GROUP | RuleKind.UNDO:
            return _within(wanted, committed, explicit, log)
        case RuleKind.SHIFT_BY:
            missing = PartitionSet.of(tp for tp in wanted if tp not in committed)
            if missing:
                raise RequestRefused(f"cannot shift {missing} without a committed offset; nothing was changed")
            return _within(wanted, committed, {tp: committed[tp] + rule.number for tp in wanted}, log)


def offsets_to_undo(group: str, actions: Iterable[Action]) -> Mapping[TopicPartition, int]:
    """Returns the offsets that the last of the ``actions`` which changed any replaced. Leaves out partitions that had
    none. Raises :class:`RequestRefused` if there is no such action, or the history does not tell all offsets."""
    last = max(filter(changed_offsets, actions), key=lambda one: one.at_ms, default=None)
    if last is None:
        raise RequestRefused(f"the history of group {group!r} has no change to its offsets")
    before = offsets_before(last.change)
    if before is None:
        raise RequestRefused(
            f"the history of group {group!r} does not tell all offsets before the {last.kind} by {last.by}, because"
            " there are too many: use --from-file with an export, or --to-datetime"
        )
    found = {tp: offset for tp, offset in before.items() if offset is not None}
    if not found:
        raise RequestRefused(f"group {group!r} had no offsets before the {last.kind} by {last.by}: delete-offsets")
    return found


def require_accepted(rows: Iterable[ResetRow], *, accepted: bool, how: str) -> None:
    """Raises :class:`RequestRefused` if any row has a note, unless the notes are ``accepted``. ``how`` says how to
    accept them."""
    noted = [row for row in rows if row.note]
    if noted and not accepted:
        first = f"{PartitionSet.of([noted[0].tp])}: {noted[0].note}"
        raise RequestRefused(
            f"{counted(len(noted), 'offset')} would not be what the rule asks for, such as {first}."
            f" No offset was changed; {how}"
        )


def _all(ask: Callable[[PartitionSet], BrokerOffsets], wanted: PartitionSet) -> Mapping[TopicPartition, int]:
    if not wanted:
        return {}
    found = ask(wanted)
    missing = PartitionSet.of(tp for tp in wanted if tp not in found.offsets)
    if missing:
        raise BrokerError(f"the brokers returned no offsets for {missing}: {found.note or 'no response'}")
    return found.offsets


def _within(
    wanted: PartitionSet,
    committed: Mapping[TopicPartition, int],
    asked: Mapping[TopicPartition, int],
    log: BrokerLog,
) -> tuple[ResetRow, ...]:
    first, end = _all(log.earliest, wanted), _all(log.latest, wanted)
    offsets, notes = {}, {}
    for tp in wanted:
        offsets[tp] = max(first[tp], min(end[tp], asked[tp]))
        if asked[tp] > end[tp]:
            notes[tp] = f"{asked[tp]} is beyond the end of the log, so reset to the end"
        elif asked[tp] < first[tp]:
            notes[tp] = f"{asked[tp]} is before the start of the log, so reset to the start"
    return _rows(wanted, committed, offsets, notes)


def _rows(
    wanted: PartitionSet,
    committed: Mapping[TopicPartition, int],
    offsets: Mapping[TopicPartition, int],
    notes: Mapping[TopicPartition, str] | None = None,
) -> tuple[ResetRow, ...]:
    notes = notes or {}
    return tuple(ResetRow(tp.topic, tp.partition, committed.get(tp), offsets[tp], notes.get(tp, "")) for tp in wanted)


def duration_ms(written: str) -> int:
    """Parses an ISO 8601 duration such as ``P1DT2H30M`` or ``PT15S`` into ms. Raises :class:`SettingsError`."""
    match = _DURATION.fullmatch(written.strip())
    if match is None or not any(match.groups()):
        raise SettingsError(f"duration {written[:60]!r} is not of the form PnDTnHnMnS, for example P1DT12H or PT15M")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    milliseconds = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    if milliseconds > _MAX_OFFSET:
        raise SettingsError(f"duration {written[:60]!r} is too long (over 2^63 - 1 ms)")
    return round(milliseconds)


def before_now_ms(duration: str) -> int:
    """Returns the time ``duration`` (ISO 8601) before now, in ms since 1970, or 0 if that is before 1970. Raises
    :class:`SettingsError` if ``duration`` is invalid."""
    return max(0, round(time.time() * 1000) - duration_ms(duration))


def time_ms(written: str) -> int:
    """Parses ``2026-01-31T12:00:00.000`` (UTC unless it ends in an offset) into ms since 1970. Raises
    :class:`SettingsError`.
    """
    try:
        moment = datetime.fromisoformat(written.strip())
    except ValueError:
        raise SettingsError(
            f"time {written[:60]!r} is not of the form YYYY-MM-DDTHH:MM:SS.sss, with +HH:MM at the end if it is not UTC"
        ) from None
    milliseconds = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if milliseconds < 0:
        raise SettingsError(f"time {written[:60]!r} is before 1970, and no record is that old")
    return milliseconds


FileOffsets = Mapping[str, Mapping[TopicPartition, int]]
"""The offsets in a file, by group."""


def read_csv(lines: Iterable[str], groups: Sequence[str], where: str) -> FileOffsets:
    """Parses ``group,topic,partition,offset`` lines, as written by Kafka's ``--export``. For a single group, also
    accepts ``topic,partition,offset``. Reads only the groups in ``groups``, or all groups if it is empty. Raises
    :class:`MalformedValue` for a malformed line, or for a group without any line.
    """
    found: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups}
    for here, fields in _rows_of(lines, where):
        if len(fields) == 3 and len(groups) == 1:
            fields.insert(0, groups[0])
        if len(fields) != 4:
            form = "topic,partition,offset" if len(groups) == 1 else "group,topic,partition,offset"
            raise MalformedValue(here, f"{','.join(fields).strip()[:80]!r} is not {form}")
        group, *rest = fields
        if groups and group not in found:
            continue
        tp, offset = _partition_offset([field.strip() for field in rest], here)
        offsets = found.setdefault(group, {})
        if tp in offsets:
            raise MalformedValue(here, f"{tp} is listed twice")
        offsets[tp] = offset
    missing = [group for group in groups if not found[group]]
    if missing or not found:
        raise MalformedValue(
            where, f"the file lists no partitions of {f'group {missing[0]}' if missing else 'any group'}"
        )
    return found


def write_csv(rows: Iterable[tuple[str | float, ...]], file: SupportsWrite[str]) -> None:
    """Writes rows, such as those that :func:`read_csv` reads back, quoted only where necessary."""
    for row in rows:
        odd = any(mark in str(field) for field in row for mark in "\r\n")  # the writer would not quote a lone \r
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC if odd else csv.QUOTE_MINIMAL)
        writer.writerow(row)


def _rows_of(lines: Iterable[str], where: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each row that is not empty, with its place. A group's name may contain a line break, and may begin or end
    with a blank, so its field is kept as it is."""
    reader = csv.reader(lines)
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise MalformedValue(f"{where}:{reader.line_num}", str(error)) from None
        if fields is None:
            return
        if any(field.strip() for field in fields):
            yield f"{where}:{reader.line_num}", fields


def _partition_offset(fields: Sequence[str], where: str) -> tuple[TopicPartition, int]:
    topic, partition, offset = fields
    if not is_legal(topic):
        raise MalformedValue(where, f"{topic[:60]!r} is not a legal topic name")
    for written in (partition, offset):
        if not _is_number(written):
            raise MalformedValue(where, f"{written[:30]!r} is not a number")
    if int(partition) > MAX_PARTITION or int(offset) > _MAX_OFFSET:
        raise MalformedValue(where, f"partition {partition} or offset {offset} is too large")
    return TopicPartition(topic, int(partition)), int(offset)


def _is_number(written: str) -> bool:
    return written.isascii() and written.isdigit() and len(written) <= 19


IN_ONE_REQUEST = 2_000
"""The maximum number of partitions in a request. The coordinator executes each request as one multi, which must not
exceed ZooKeeper's size limit."""


@dataclass(frozen=True, slots=True)
class Resettable:
    """What a reset of one group needs. ``there`` contains all existing partitions, and ``known`` those of the group.
    ``owners`` maps partitions to their owners, and ``instead`` ends the sentence "stop these consumers".
    ``afresh`` reads the group again. ``write`` sets offsets and returns a message about the result.
    """

    group: str
    there: PartitionSet
    known: PartitionSet
    committed: Mapping[TopicPartition, int]
    owners: Mapping[TopicPartition, str]
    instead: str
    afresh: Callable[[], Resettable]
    write: Callable[[Mapping[TopicPartition, int]], str]

    def owned(self, rows: Sequence[ResetRow]) -> PartitionSet:
        """Returns the partitions in ``rows`` that have an owner."""
        return PartitionSet.of(row.tp for row in rows if row.tp in self.owners)

    def chosen(self, scope: Scope, copied: Mapping[TopicPartition, int] | None = None) -> PartitionSet:
        """Returns the partitions in ``scope``, or the group's partitions if the scope does not name topics. If the
        offsets of another group, or of before, are ``copied``, returns those of its partitions that are in the scope
        and exist. Raises the same errors as :meth:`Scope.choose`."""
        if copied is not None:
            return scope.choose(PartitionSet.of(copied) & self.there, self.group)
        return scope.choose(self.there if scope.topics else self.known & self.there, self.group)


Plan = tuple[Resettable, tuple[ResetRow, ...]]
"""A group and its new offsets."""

Check = Callable[[Sequence[ResetRow]], None]
"""Raises :class:`RequestRefused` if the rows must not be executed."""


def reset(
    store: Store,
    found: Resettable,
    rows: tuple[ResetRow, ...],
    acting: Acting,
    *,
    pause: bool,
    again: Callable[[], Plan],
    check: Check,
) -> Plan:
    """Sets the offsets and returns the executed plan. With ``pause``, first takes the partitions from any owners and
    then executes a fresh plan from ``again``, because the owners may have committed after ``rows`` was computed.
    ``check`` is called with the rows of each plan before it is executed, and raises an error to refuse it.

    Raises :class:`RequestRefused` if a partition has an owner when its offset is to be set. Also raises the same errors
    as :func:`held_by_nobody`.
    """
    check(rows)
    owned = found.owned(rows)
    if not (pause and owned):
        _execute(found, rows, acting)
        return found, rows
    mine = PartitionSet.of(row.tp for row in rows)
    with held_by_nobody(store, found.group, mine, acting):
        now = again()
        check(now[1])
        _execute(*now, acting)
        return now


def _execute(found: Resettable, rows: tuple[ResetRow, ...], acting: Acting) -> None:
    owned = found.owned(rows)
    if owned:
        owners = ", ".join(sorted({found.owners[tp] for tp in owned}))
        raise RequestRefused(
            f"cannot reset {owned} of group {found.group!r} while owned by {owners}: stop these consumers"
            f"{found.instead}. Nothing was changed"
        )
    done = 0
    for part in parts(rows, IN_ONE_REQUEST):
        try:
            message = found.write({row.tp: row.new_offset for row in part})
        except RequestRefused as error:
            raise RequestRefused(
                f"{error}" + (f"; {counted(done, 'partition')} had already been reset" if done else "")
            ) from error
        done += len(part)
        acting.on_progress(f"group {found.group}: {message}")


class OffsetChangeDocument(Document, frozen=True):
    """``kafka-coord groups reset-offsets -o json``"""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    new_offset: int | None
    """``null`` if the offset is deleted."""
    repeated: int | None
    """The records that the group reads again. Of a deletion: with auto.offset.reset earliest."""
    skipped: int | None
    """The records that the group never reads. Of a deletion: with auto.offset.reset latest."""
    owner: str | None
    note: str | None

    @classmethod
    def of(cls, found: Resettable, row: ResetRow) -> Self:
        repeated, skipped = repeated_and_skipped(row.current_offset, row.new_offset, row.log)
        return cls(
            group=found.group,
            topic=row.topic,
            partition=row.partition,
            current_offset=row.current_offset,
            new_offset=row.new_offset,
            repeated=repeated,
            skipped=skipped,
            owner=found.owners.get(row.tp),
            note=row.note or None,
        )

    @classmethod
    def deleting(cls, group: str, row: OffsetRow) -> Self:
        """Returns what the deletion of a committed offset means."""
        log = None
        if row.start_offset is not None and row.end_offset is not None:
            log = LogRange(row.start_offset, row.end_offset)
        repeated, skipped = repeated_and_skipped(row.committed_offset, None, log)
        return cls(
            group=group,
            topic=row.topic,
            partition=row.partition,
            current_offset=row.committed_offset,
            new_offset=None,
            repeated=repeated,
            skipped=skipped,
            owner=row.owner,
            note=None,
        )
