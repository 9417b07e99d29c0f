"""``groups list`` and ``groups describe``."""

from __future__ import annotations

from typing import Any

import click

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.documents import describe_document, group_document
from kafka_coord.cli.groups.kinds import any_group_argument, kind_of, kind_option
from kafka_coord.cli.lag import BrokerLog, end_offsets_reader
from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Column, Format, Section, cell, duration, iso_time, note, number, show
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import Unreadable
from kafka_coord.monitor.client_groups.asking import Instances
from kafka_coord.monitor.client_groups.groups import describe_client_group, list_client_groups
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.groups import GroupDescription, GroupKind, MemberRow, describe_group, list_groups
from kafka_coord.monitor.presence import read_presences

_LIST = (
    Column("group"),
    Column("state"),
    number("generation"),
    number("members"),
    number("partitions"),
    Column("assignor"),
    number("pending"),
    number("unreadable"),
    Column("kind"),
    number("coordinator"),
)

_OFFSETS = (
    Column("topic"),
    number("partition"),
    Column("owner"),
    Column("holding"),
    number("committed_offset", "COMMITTED"),
    number("end_offset", "END"),
    number("lag"),
)

_MEMBERS = (
    Column("consumer"),
    Column("host"),
    Column("client"),
    Column("channel"),
    number("heard"),
    Column("since"),
    Column("owned"),
    Column("stopping"),
    Column("pending"),
)

_MEMBERS_VERBOSE = (
    Column("consumer"),
    Column("registered"),
    Column("host"),
    Column("client"),
    Column("channel"),
    Column("address"),
    Column("software"),
    Column("protocol"),
    number("epoch"),
    number("held"),
    number("heard"),
    number("incarnation"),
    Column("since"),
    Column("subscription"),
    Column("mode"),
    number("capacity"),
    Column("rack"),
    number("rejoin_grace_ms", "GRACE-MS"),
    Column("owned"),
    Column("stopping"),
    Column("target"),
    Column("pending"),
)

_FACTS = (Column("fact"), Column("value"))

_STATES = (GroupState.STABLE, GroupState.REBALANCING, GroupState.PAUSED, GroupState.EMPTY)
"""The states that can be listed. A dead group is not listed."""


@click.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice([str(one) for one in _STATES], case_sensitive=False),
    multiple=True,
    help="Only groups in this state; repeatable.",
)
@output_option
@connection_options
def list_command(states: tuple[str, ...], output: Format) -> None:
    """List all groups with their state. KIND is managed if the coordinator assigns partitions, and client-assigned if
    the members, stock Kafka clients, assign them. COORDINATOR is the broker id of the instance that coordinates the
    group.

    \b
    Stable        every member owns its target, every command is acknowledged
    Rebalancing   something is still to be stopped, started or acknowledged
    Paused        an operator paused rebalances
    Empty         no members; offsets are kept for their retention

    \b
    kafka-coord groups list
    kafka-coord groups list --state Rebalancing -o tsv
    """
    settings = current_settings()
    with open_store(settings) as store:
        cluster, managed = list_groups(store)
        clients = list_client_groups(Instances(store, settings.kafka.properties))
    rows = sorted((*managed, *clients.rows), key=lambda row: (row.group, row.kind))
    wanted = {state.lower() for state in states}
    documents = [group_document(row) for row in rows if not wanted or row.state.lower() in wanted]
    show(output, documents, [Section("groups", _LIST, documents)])
    if not cluster.initialised:
        note("/consumers/groups does not exist below this chroot, so no coordinator has ever run here")
    report_unreadable(cluster.unreadable)
    for sentence in clients.missing:
        note(sentence)
    if cluster.undecided and cluster.initialised:
        note(nobody_decides(cluster))


@click.command()
@any_group_argument
@kind_option
@click.option("--members", is_flag=True, help="The members, and the partitions that each owns.")
@click.option("--offsets", is_flag=True, help="Owner, committed offset, end offset and lag of each partition.")
@click.option("--state", is_flag=True, help="State, generation, coordinator, assignor, settings.")
@click.option("--verbose", "-v", is_flag=True, help="Everything known about each member.")
@output_option
@connection_options
def describe(
    group: str, kind: str | None, members: bool, offsets: bool, state: bool, verbose: bool, output: Format
) -> None:
    """Show one group: its state, its members, and its offsets with their lag. Without an option, it shows all three.
    The lag is the distance to the brokers' current end offsets; it is unknown (json: null) if the broker does not
    answer.

    \b
    kafka-coord groups describe delays
    kafka-coord groups describe delays --members --verbose
    kafka-coord groups describe delays --offsets -o json
    """
    chosen = {"state": state, "members": members, "offsets": offsets}
    if not any(chosen.values()):
        chosen = dict.fromkeys(chosen, True)
    settings = current_settings()
    with open_store(settings) as store, BrokerLog(store, settings) as log:
        ends = end_offsets_reader(log) if chosen["offsets"] else None
        if kind_of(store, group, kind) is GroupKind.MANAGED:
            found = describe_group(store, group, ends, read_presences if chosen["members"] else None)
        else:
            found = describe_client_group(
                Instances(store, settings.kafka.properties), group, read_cluster(store).topics, ends
            )
    document = describe_document(found, chosen)
    show(output, document, _sections(found, document, chosen, verbose=verbose))
    if chosen["offsets"]:
        if found.lag_note:
            note(found.lag_note)
        if found.of_earlier_topic:
            note(f"not counted, because the topic has been deleted and recreated: {found.of_earlier_topic}")
    if found.heard_note:
        note(found.heard_note)
    report_unreadable(found.unreadable)


def _sections(found: GroupDescription, document: Any, chosen: dict[str, bool], *, verbose: bool) -> list[Section]:
    sections = []
    if chosen["state"]:
        sections.append(Section("state", _FACTS, _facts(found)))
    if chosen["members"]:
        columns = _MEMBERS_VERBOSE if verbose else _MEMBERS
        rows = [_member_cells(member) for member in found.members]
        sections.append(Section("members", columns, rows))
    if chosen["offsets"]:
        sections.append(Section("offsets", _OFFSETS, document["offsets"]))
    return sections


def _facts(found: GroupDescription) -> list[dict[str, Any]]:
    facts = {
        "group": found.group,
        "kind": str(found.kind),
        "state": str(found.state),
        "status": found.status,
        "generation": found.generation,
        "decided": iso_time(found.decided_at_ms),
        "reason": found.reason,
        "coordinator": found.coordinator,
        "log partition": found.log_partition,
        "assignor": found.assignor,
        "members": len([member for member in found.members if member.registered]),
        "pending commands": found.pending,
        "rebalance timeout": duration(found.settings.rebalance_timeout_ms) if found.settings else None,
        "offsets retention": duration(found.settings.offsets_retention_ms) if found.settings else None,
    }
    if found.pause is not None:
        where = "everywhere" if found.paused_everywhere else "this group"
        since = iso_time(found.pause.since_ms) or "unknown"
        facts["paused"] = f"{where}, by {cell(found.pause.by)} since {since}: {cell(found.pause.reason)}"
    return [{"fact": name, "value": value} for name, value in facts.items()]


def _member_cells(member: MemberRow) -> dict[str, Any]:
    pending = [f"{one.id.type.split('-')[0]} {one.partitions} since {iso_time(one.since_ms)}" for one in member.pending]
    return {
        "consumer": member.consumer,
        "registered": member.registered,
        "host": member.host,
        "client": member.client,
        "channel": channel(member),
        "address": member.address,
        "software": member.software,
        "protocol": member.protocol,
        "epoch": member.epoch,
        "held": duration(member.held_ms),
        "heard": f"{ago} ago" if (ago := duration(member.heard_ms_ago)) else None,
        "incarnation": member.incarnation,
        "since": iso_time(member.since_ms) or "gone",
        "subscription": member.subscription,
        "mode": member.mode,
        "capacity": member.capacity,
        "rack": member.rack,
        "rejoin_grace_ms": member.rejoin_grace_ms,
        "owned": str(member.owned),
        "stopping": str(member.stopping) if member.stopping else None,
        "target": str(member.target),
        "pending": "; ".join(pending),
    }


def nobody_decides(cluster: Cluster) -> str:
    """The warning that every command shows while no instance can decide about groups."""
    return f"NOBODY DECIDES ANYTHING: {cluster.undecided}; kafka-coord doctor suggests a remedy"


def channel(member: MemberRow) -> str:
    """How the member is connected: by its own ZooKeeper session, by a socket to an instance, or as a Kafka client."""
    return member.channel if member.gateway is None else f"{member.channel} via {member.gateway}"


def report_unreadable(unreadable: tuple[Unreadable, ...]) -> None:
    """Names the unreadable znodes."""
    for one in unreadable[:20]:
        note(f"unreadable: {one.path}: {one.reason}")
    if len(unreadable) > 20:
        note(f"unreadable: {len(unreadable) - 20} more znodes; kafka-coord doctor lists all")
