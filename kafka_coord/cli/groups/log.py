"""``groups log dump``: prints records of the groups log."""

from __future__ import annotations

from typing import Any, Self

import click

from kafka_coord.classic_groups.metadata import GroupMetadata
from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.opening import open_instances
from kafka_coord.cli.options import ANY_GROUP, output_option
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import SettingsError
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.records import Claim, GoneEntry, GroupEntry, OffsetEntry
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.groups.group import Document, Time, iso_time
from kafka_coord.groups.log import EntryKind, LogEntry, about_group, entry_of, owned_in, read_groups_log
from kafka_coord.model import NO_PARTITIONS, CommittedOffset

_COLUMNS = columns("#offset at kind group what")


@click.group()
def log() -> None:
    """Show the log of client-assigned groups, the topic __kafka_coord_groups.

    \b
    kafka-coord groups log dump 7
    kafka-coord groups log dump --group delays
    """


@log.command()
@click.argument("partition", type=click.IntRange(0, PARTITIONS - 1), required=False)
@click.option("--group", type=ANY_GROUP, help="Show only the group's records, and the claims of its partition.")
@click.option("--from", "first", type=click.IntRange(0), metavar="OFFSET", help="The first offset to show.")
@click.option(
    "--last",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    show_default=True,
    help="The maximum number of records to show.",
)
@output_option
@connection_options
def dump(partition: int | None, group: str | None, first: int | None, last: int, output: Format) -> None:
    """Show one partition of the groups log: the newest records, oldest first.

    \b
    claim        an instance began to coordinate the partition's groups, in a new term
    group        a group's generation (members, assignor, assignment), or its removal
    offset       a committed offset, or its removal
    keep-alive   the instance is still alive
    heard        which members of earlier terms the instance has heard, written once in each term

    With --group, the command reads the whole partition and prints its progress on standard error. Otherwise, it reads
    only the end. Kafka compacts the log, so older records with the same key disappear.

    \b
    kafka-coord groups log dump 7 --last 20
    kafka-coord groups log dump --group delays -o json
    """
    if (partition is None) is (group is None):
        raise SettingsError(f"name a partition from 0 to {PARTITIONS - 1}, or use --group")
    chosen = partition_of(group) if group is not None else partition or 0
    selected = about_group(group) if group is not None else None
    with open_instances() as instances:
        bounds, newest = read_groups_log(instances, chosen, selected, note, first=first, last=last)
    entries = [entry_of(record) for record in newest]
    documents = [LogEntryDocument.of(entry) for entry in entries]
    rows = [document.row(what=_what(entry)) for document, entry in zip(documents, entries, strict=True)]
    summary = f"{TOPIC} partition {chosen}: offsets {bounds.first} to {bounds.end - 1}"
    show(output, documents, [Section("records", _COLUMNS, rows)], summary=[summary])
    if first is None:
        first = bounds.first if group is not None else bounds.end - last
    if entries and first > bounds.first:
        note(f"earlier records are not shown: --from {bounds.first} --last 1000000 shows all")


class LogEntryDocument(Document, frozen=True):
    """``kafka-coord groups log dump -o json``"""

    offset: int
    at: Time | None
    kind: EntryKind
    """``claim``, ``group``, ``offset``, ``keep-alive``, ``heard``, ``gone``, ``unknown`` or ``unreadable``."""
    group: str | None
    removed: bool
    value: dict[str, Any]
    """Its shape depends on ``kind``."""

    @classmethod
    def of(cls, entry: LogEntry) -> Self:
        return cls(
            offset=entry.offset,
            at=Time.of(entry.timestamp_ms),
            kind=entry.kind,
            group=entry.group,
            removed=isinstance(entry.entry, OffsetEntry | GroupEntry) and entry.entry.value is None,
            value=_value(entry),
        )


def _value(entry: LogEntry) -> dict[str, Any]:
    match entry.entry:
        case OffsetEntry(_, topic, partition, value):
            return {"topic": topic, "partition": partition} | (_offset(value) if value else {})
        case GroupEntry(_, GroupMetadata() as group):
            return _group(group)
        case Claim() as claim:
            return {name: value for name, value in claim.to_json().items() if name != "version"}
        case Heard(term, left_ms):
            members = [{"group": group, "member": one, "left_ms": left} for (group, one), left in left_ms.items()]
            return {"term": term, "members": members}
        case GoneEntry(topic, since_ms):
            return {"topic": topic, "gone_since": iso_time(since_ms) if since_ms is not None else None}
        case _:
            return {"problem": entry.problem} if entry.problem else {}


def _offset(value: CommittedOffset) -> dict[str, Any]:
    return {
        "committed_offset": value.offset,
        "leader_epoch": value.leader_epoch if value.leader_epoch >= 0 else None,
        "metadata": value.metadata,
        "committed_at": iso_time(value.committed_at_ms),
    }


def _group(group: GroupMetadata) -> dict[str, Any]:
    owned = owned_in(group)
    return {
        "generation": group.generation_id,
        "state": str(group.state),
        "protocol_type": group.protocol_type,
        "assignor": group.protocol_name,
        "leader": group.leader_id,
        "since": iso_time(group.state_since_ms),
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "session_timeout_ms": round(member.session_timeout_s * 1000),
                "rebalance_timeout_ms": round(member.rebalance_timeout_s * 1000),
                "owned": owned.get(member.instance_id or member.member_id, NO_PARTITIONS).to_json(),
            }
            for member in group.members.values()
        ],
    }


def _what(entry: LogEntry) -> str:
    """Describes the record in one line."""
    match entry.entry:
        case OffsetEntry(_, topic, partition, None):
            return f"{topic}-{partition}: removed"
        case OffsetEntry(_, topic, partition, CommittedOffset() as value):
            return f"{topic}-{partition}: {value.offset}" + (f" ({value.metadata})" if value.metadata else "")
        case GroupEntry(_, None):
            return "removed"
        case GroupEntry(_, GroupMetadata() as group):
            owned = owned_in(group)
            names = [one.instance_id or one.member_id for one in group.members.values()]
            members = "; ".join(f"{name} {owned[name]}" if name in owned else name for name in names)
            named = f", {group.protocol_name}: {members}" if members else ""
            return f"generation {group.generation_id}, {group.state}{named}"
        case Claim(term, instance) as claim:
            return f"term {term}, claimed by instance {instance} for {claim.of_tree}"
        case Heard(term, left_ms):
            others = [(group, one, left) for (group, one), left in left_ms.items() if left is not None]
            heard = f"term {term} has heard {counted(len(left_ms) - len(others), 'member')}"
            named = ", ".join(f"{one} of {group} ({left / 1000:.0f} s left)" for group, one, left in others)
            return f"{heard}, but not {named}" if others else heard
        case GoneEntry(topic, since_ms):
            return f"{topic} does not exist" if since_ms is not None else f"{topic} exists again, or no offset is left"
        case _:
            return entry.problem or ("" if entry.kind is EntryKind.KEEP_ALIVE else "unknown kind of record")
