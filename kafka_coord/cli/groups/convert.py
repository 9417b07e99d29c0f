"""``groups convert``: makes a client-assigned group managed, or vice versa."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kafka_coord.cli.opening import open_instances
from kafka_coord.cli.options import any_group_argument, who
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.cli.requests import asked, asking_options, reason_option
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import RequestRefused, SettingsError, Timeout
from kafka_coord.groups import requests as operate
from kafka_coord.groups.client_assigned import read_client_group
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.managed import kind_of, snapshot_of
from kafka_coord.groups.offsets import read_committed
from kafka_coord.model import NO_PARTITIONS, GroupKind, PartitionSet, Request, RequestType, TopicPartition
from kafka_coord.model.names import legal

_COLUMNS = columns("group topic #partition #offset verdict")
_MOVES, _GONE = "moves", "does not move, because the topic was deleted or recreated"


@dataclass(frozen=True, slots=True)
class _ConvertedGroup:
    kind: GroupKind
    members: Sequence[str]
    members_rejoin: bool
    """Whether the group is managed and all its members are classic clients, which rejoin after the conversion."""
    offsets: Mapping[TopicPartition, int]
    gone: PartitionSet
    """The partitions whose offsets do not move."""


@click.command()
@any_group_argument
@click.option(
    "--to", "wanted", type=click.Choice([str(one) for one in GroupKind]), required=True, help="The kind to convert to."
)
@click.option("--dry-run", is_flag=True, help="Only show the offsets that would move. This is the default.")
@click.option("--execute", is_flag=True, help="Convert the group.")
@reason_option
@asking_options
def convert(
    group: str, wanted: str, dry_run: bool, execute: bool, reason: str, timeout_s: float, output: Format
) -> None:
    """Convert a client-assigned group to a managed group, or vice versa, with its committed offsets.

    The command refuses to convert a group that has members, with one exception: classic clients in a managed group,
    because they rejoin. The instance that coordinates the group converts it. If the conversion fails midway, no offset
    is lost; run the command again to finish it. A group that becomes client-assigned loses its settings and its
    history.

    \b
    kafka-coord groups convert delays --to managed
    kafka-coord groups convert delays --to managed --execute --reason "KIP-848 from today on"
    kafka-coord groups convert delays --to client-assigned --execute
    """
    if dry_run and execute:
        raise SettingsError("give either --dry-run or --execute")
    to = GroupKind(wanted)
    if to is GroupKind.MANAGED:
        legal("group", group)
    with open_instances() as instances:
        coordinator, _ = instances.directory().coordinator_of(group)
        found = _read(instances, group)
        rows = [] if found.kind is to else [*_rows(group, found)]
        show(output, rows, [Section("offsets", _COLUMNS, rows)])
        if found.members and not (found.members_rejoin and to is GroupKind.CLIENT_ASSIGNED):
            names = ", ".join(sorted(found.members))
            raise RequestRefused(f"group {group!r} has members ({names}); stop them first. Nothing was changed")
        if not execute:
            moving = sum(row["verdict"] == _MOVES for row in rows)
            members = counted(len(found.members), "member")
            evicted = f", and evicts {members}, so that they rejoin" if found.members else ""
            note(
                f"group {group} is {found.kind}; nothing was changed;"
                f" --execute moves {counted(moving, 'offset')}{evicted}"
            )
            return
        request = Request(RequestType.CONVERT_GROUP, group=group, to=to, reason=reason, by=who())
        try:
            answer = asked(instances.store, request, timeout_s)
        except Timeout as error:
            raise Timeout(f"{error}; instance {coordinator} coordinates the group and must convert it") from error
        # This direction deletes the group's history, so record the conversion elsewhere. In the other direction, the
        # group's history begins with the conversion.
        if to is GroupKind.CLIENT_ASSIGNED:
            operate.record(instances.store, "convert to client-assigned", group, by=who(), reason=reason)
    note(f"{answer.result}: {answer.message}")


def _read(instances: AskedInstances, group: str) -> _ConvertedGroup:
    """Reads the group's kind, members and offsets. Raises :class:`NotFound`, :class:`RequestRefused`,
    :class:`BrokerError`."""
    store = instances.store
    kind = kind_of(store, group)
    if kind is GroupKind.CLIENT_ASSIGNED:
        client, topics = read_client_group(instances, group), read_cluster(store).topics
        members, offsets, earlier = [one.consumer for one in client.members], client.committed, NO_PARTITIONS
        rejoin = False
    else:
        cluster, snapshot = snapshot_of(store, group)
        committed, topics = read_committed(store, group, cluster.topics), cluster.topics
        if committed.unreadable:
            raise RequestRefused(f"{committed.unreadable[0].path} cannot be read: {committed.unreadable[0].reason}")
        members, offsets, earlier = [*snapshot.registrations], committed.offsets, committed.of_earlier_topic
        readable = snapshot.observation.members
        rejoin = all(one in readable and readable[one].protocol == "classic" for one in members)
    return _ConvertedGroup(
        kind, members, rejoin, offsets, earlier | PartitionSet.of(tp for tp in offsets if tp.topic not in topics)
    )


def _rows(group: str, found: _ConvertedGroup) -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": found.offsets.get(tp),
            "verdict": _GONE if tp in found.gone else _MOVES,
        }
        for tp in PartitionSet.of(found.offsets) | found.gone
    ]
