"""``groups list``, ``groups describe``, ``groups match`` and ``groups history``: show groups, the topics that a pattern
matches, and the latest decisions and operator actions for a group. ``topics describe``: shows who reads a topic.
``search``: finds names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import click

from kafka_coord.cli.connection import connection_options, open_store
from kafka_coord.cli.opening import lag_service, open_cluster, open_groups
from kafka_coord.cli.options import (
    ANY_GROUP,
    any_group_argument,
    kind_option,
    last_option,
    output_option,
    partitions_option,
)
from kafka_coord.cli.output import ACTIONS, Column, Format, Section, cell, columns, duration, note, note_earlier, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import BrokerError, KafkaCoordError, NotFound, SettingsError
from kafka_coord.groups.cluster import Cluster, read_cluster
from kafka_coord.groups.directory import SORTS, GroupDirectory, read_topic, selected
from kafka_coord.groups.directory import search as find_names
from kafka_coord.groups.group import (
    ActionDocument,
    DecisionDocument,
    GroupDescription,
    GroupDocument,
    LagTotal,
    MemberRow,
    OffsetRow,
    QueuedRequest,
    iso_time,
    paused_by,
)
from kafka_coord.groups.group import counted as counted_rows
from kafka_coord.groups.instances import read_presences
from kafka_coord.groups.offsets import Scope, parse_scope
from kafka_coord.groups.requests import read_requests
from kafka_coord.model import GroupSettings, Subscription, Unreadable
from kafka_coord.model.offsets import gone_text
from kafka_coord.model.operations import MAX_MOVES
from kafka_coord.model.sequences import grouped
from kafka_coord.zk.store import Store

_LIST = columns("group state #generation #members #partitions assignor #pending #unreadable kind #coordinator")

_LAG = columns("#lag #lag_s lag_s_by=BY #worst_lag #lag_unknown=UNKNOWN #gone")

_OFFSETS = columns(
    "topic #partition owner holding #committed_offset=COMMITTED #start_offset=START #end_offset=END #lag #lag_s "
    "lag_s_by=BY #gone"
)

_MEMBERS = columns("consumer host client channel #heard since owned stopping pending")

_MEMBERS_VERBOSE = columns(
    "consumer registered host client channel address software protocol #epoch #held #heard #incarnation since "
    "subscription mode #capacity rack #rejoin_grace_ms=GRACE-MS owned stopping target pending"
)

_READERS = columns("group kind #lag #lag_s lag_s_by=BY #worst_lag #lag_unknown=UNKNOWN #gone")

_READ = columns("#partition group owner holding #committed_offset=COMMITTED #lag #lag_s lag_s_by=BY #gone")

_ENDS = columns("#partition #start_offset=START #end_offset=END")

_FACTS = columns("fact value")

_TOPICS = columns("topic #partitions")

_ALL = {"most": 5_000, "within_s": 10.0}
"""A command reads the next records of this many partitions, and for this many seconds, at most."""

_STATES = (GroupState.STABLE, GroupState.REBALANCING, GroupState.PAUSED, GroupState.EMPTY)
"""The states that a listed group can have. A dead group is not listed."""


@click.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice([str(one) for one in _STATES], case_sensitive=False),
    multiple=True,
    help="Show only groups in this state; repeatable.",
)
@click.option("--lag", "with_lag", is_flag=True, help="Query the brokers, and show each group's lag, largest first.")
@click.option("--name", default="", metavar="TEXT", help="Show only groups whose name contains the text.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), help="The order; lag and lag-s imply --lag. [default: lag, then name]"
)
@output_option
@connection_options
def list_command(states: tuple[str, ...], with_lag: bool, name: str, sort: str | None, output: Format) -> None:
    """List all groups with their state. KIND is managed if the coordinator assigns the partitions, and client-assigned
    if stock Kafka clients do. COORDINATOR is the broker id of the instance that coordinates the group.

    \b
    Stable        every member owns its target, and every command is acknowledged
    Rebalancing   some partitions or commands are outstanding
    Paused        an operator paused rebalances
    Empty         no members; the offsets are kept for the retention time

    LAG is the sum of the known lags, WORST-LAG is the largest lag of a partition, and UNKNOWN is the number of
    partitions whose lag is unknown, because nothing is committed or the broker did not respond. GONE is the number of
    records that were deleted before the group read them. LAG-S is how many seconds ago the oldest record that waits was
    written, BY its timestamp, which needs READ on the topic, or by the rate at which the log grows.

    \b
    kafka-coord groups list
    kafka-coord groups list --sort lag-s --name etl-
    kafka-coord groups list --state Rebalancing -o tsv
    """
    with open_cluster() as (instances, brokers):
        directory = GroupDirectory(instances)
        with_lag = with_lag or sort in {"lag", "lag-s"}
        service = lag_service(instances, **_ALL)
        listing = service.listed(directory, brokers.known_ranges) if with_lag else directory.list()
    documents = selected(listing.rows, name, states, sort or "lag")
    rows = [one.row() for one in documents]
    show(output, documents, [Section("groups", (*_LIST, *_LAG) if with_lag else _LIST, rows)])
    if listing.lag_note:
        note(listing.lag_note)
    if not listing.cluster.initialised:
        note("/consumers/groups does not exist below this chroot, so no coordinator has ever run here")
    report_unreadable(listing.cluster.unreadable)
    for sentence in listing.missing:
        note(sentence)
    if listing.cluster.undecided and listing.cluster.initialised:
        note(no_coordinator_warning(listing.cluster))


@click.command()
@click.argument("groups", type=ANY_GROUP, nargs=-1, metavar="GROUP…")
@click.option("--all-groups", is_flag=True, help="Show every group.")
@kind_option
@click.option("--members", is_flag=True, help="Show the members and their partitions.")
@click.option("--offsets", is_flag=True, help="Show owner, committed offset, end offset and lag of each partition.")
@click.option("--state", is_flag=True, help="Show state, generation, coordinator, assignor and settings.")
@partitions_option("Show only the offsets of a topic; repeatable.")
@click.option("--by-lag", is_flag=True, help="Show the partitions with the largest lag first.")
@click.option("--verbose", "-v", is_flag=True, help="Show everything known about each member.")
@output_option
@connection_options
def describe(
    groups: tuple[str, ...],
    all_groups: bool,
    kind: str | None,
    members: bool,
    offsets: bool,
    state: bool,
    topics: tuple[str, ...],
    by_lag: bool,
    verbose: bool,
    output: Format,
) -> None:
    """Show groups: their state, members, and offsets with their lag. Without an option, show all three. --topic and
    --by-lag alone show only offsets. LAG is the number of records after the committed offset that the log still holds,
    and GONE the number of those that were deleted. Both are unknown (json: null) if nothing is committed or the broker
    does not respond.

    With several groups or --all-groups, every row begins with its group, and json is a list. If a group does not exist
    or cannot be read, the command shows the others before the error. With --topic, --all-groups skips the groups that
    do not use the topic.

    \b
    kafka-coord groups describe delays
    kafka-coord groups describe delays --members --verbose
    kafka-coord groups describe delays --offsets -o json
    kafka-coord groups describe --all-groups --topic flights --by-lag
    """
    if bool(groups) is all_groups:
        raise SettingsError(
            "either name groups or give --all-groups" if groups else "name groups, or give --all-groups"
        )
    chosen = {"state": state, "members": members, "offsets": offsets or bool(topics) or by_lag}
    if not any(chosen.values()):
        chosen = dict.fromkeys(chosen, True)
    scope = parse_scope(topics, all_topics=False) if topics else None
    with open_cluster() as (instances, brokers):
        found, absent = GroupDirectory(instances).describe(
            groups,
            kind,
            brokers.known_ranges if chosen["offsets"] else None,
            cache(read_presences) if chosen["members"] else None,
        )
        if chosen["offsets"]:
            now_ms = round(instances.store.clock.time() * 1000)
            found = lag_service(instances, **_ALL).described(found, now_ms)
        requests = _waiting_requests(instances.store) if chosen["state"] else {}
    if not groups:
        for sentence in dict.fromkeys(map(str, absent)):
            note(sentence)
    elif absent and not found:
        raise _all_of(absent)
    if scope is not None:
        found = _within(found, scope, must_be_there=bool(groups))
    if by_lag:
        found = [replace(one, offsets=tuple(sorted(one.offsets, key=lambda row: -(row.lag or 0)))) for one in found]
    documents = [GroupDocument.of(one, requests.get(one.group, ())) for one in found]
    alone = len(groups) == 1
    parts = [_sections(one, requests.get(one.group, ()), chosen, verbose=verbose) for one in found]
    sections = parts[0] if alone else _together(found, parts)
    if by_lag and not alone:
        sections[-1] = replace(sections[-1], rows=sorted(sections[-1].rows, key=lambda row: -(row["lag"] or 0)))
    shown = [one.only(chosen) for one in documents]
    show(output, shown[0] if alone else shown, sections)
    if chosen["offsets"] and output is Format.TABLE:
        note(_total(found))
    for sentence in _notes(found, scope, of_offsets=chosen["offsets"]):
        note(sentence)
    report_unreadable(tuple(unreadable for one in found for unreadable in one.unreadable))
    if absent and groups:
        raise _all_of(absent)


def _all_of(errors: Sequence[KafkaCoordError]) -> KafkaCoordError:
    """Returns one error in the place of all: a group that cannot be read may exist."""
    kind = NotFound if all(isinstance(one, NotFound) for one in errors) else BrokerError
    return kind("; ".join(map(str, errors)))


def _notes(found: Sequence[GroupDescription], scope: Scope | None, *, of_offsets: bool) -> dict[str, None]:
    """Returns the notes below the human-readable output, without duplicates."""
    earlier = "not counted, because the topic has been deleted or recreated: "
    used = {(row.topic, row.partition) for one in found for row in one.offsets}
    unused = scope.unused(used) if scope is not None else []
    return dict.fromkeys(
        [
            *(one.lag_note for one in found if one.lag_note),
            *(f"{earlier}{one.of_earlier_topic}" for one in found if of_offsets and one.of_earlier_topic),
            *(one.heard_note for one in found if one.heard_note),
            *([f"not used by what is shown: {', '.join(unused)}"] if unused else []),
        ]
    )


def _waiting_requests(store: Store) -> dict[str, list[QueuedRequest]]:
    queued, _ = read_requests(store)
    return grouped((one for one in queued if not one.answered), lambda one: one.group or "")


def _within(found: Sequence[GroupDescription], scope: Scope, *, must_be_there: bool) -> list[GroupDescription]:
    """Restricts the offsets of each group to the scope. Leaves out groups without offsets in the scope or, with
    ``must_be_there``, raises :class:`NotFound` for the first."""
    cut = [replace(one, offsets=tuple(row for row in one.offsets if _is_in(row, scope))) for one in found]
    absent = [one.group for one in cut if not one.offsets]
    if must_be_there and absent:
        raise NotFound(f"group {absent[0]!r} does not use any of the given partitions of {', '.join(scope.topics)}")
    return [one for one in cut if one.offsets]


def _is_in(row: OffsetRow, scope: Scope) -> bool:
    numbers = scope.topics.get(row.topic, frozenset())
    return numbers is None or row.partition in numbers


def _together(found: Sequence[GroupDescription], parts: Sequence[Sequence[Section]]) -> list[Section]:
    """Merges the sections of several groups, with the group in the first column."""
    if not found:
        return [Section("groups", _LIST, [])]
    return [
        Section(
            same[0].name,
            (Column("group"), *same[0].columns),
            [{**row, "group": one.group} for one, section in zip(found, same, strict=True) for row in section.rows],
        )
        for same in zip(*parts, strict=True)
    ]


def _total(found: Sequence[GroupDescription]) -> str:
    rows = counted_rows(row for one in found for row in one.offsets)
    total, partitions = LagTotal.of_rows(rows), counted(len(rows), "partition")
    unknown = f"; unknown for {total.lag_unknown}" if total.lag_unknown else ""
    gone = f"; {gone_text(total.gone)}" if total.gone else ""
    age = f"; {duration(round(1000 * total.lag_s))} behind, by the {total.lag_s_by}" if total.lag_s else ""
    return (
        f"lag: {cell(total.lag)} in {partitions}, at most {cell(total.worst_lag)} in one partition{unknown}{age}{gone}"
    )


def _sections(
    found: GroupDescription, requests: Sequence[QueuedRequest], chosen: dict[str, bool], *, verbose: bool
) -> list[Section]:
    sections = []
    if chosen["state"]:
        sections.append(Section("state", _FACTS, _facts(found, requests)))
    if chosen["members"]:
        columns = _MEMBERS_VERBOSE if verbose else _MEMBERS
        rows = [_member_cells(one) for one in found.members]
        sections.append(Section("members", columns, rows))
    if chosen["offsets"]:
        sections.append(Section("offsets", _OFFSETS, [one.row() for one in found.offsets]))
    return sections


def _retention(settings: GroupSettings) -> str | None:
    own_ms = settings.offsets_retention_ms
    return "as the brokers" if own_ms is None else duration(own_ms)


def _facts(found: GroupDescription, requests: Sequence[QueuedRequest]) -> list[dict[str, Any]]:
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
        "offsets retention": _retention(found.settings) if found.settings else None,
    }
    if found.pause is not None:
        where = "everywhere" if found.paused_everywhere else "this group"
        facts["paused"] = f"{where}, {paused_by(found.pause)}"
    if requests:
        facts["waiting requests"] = "; ".join(
            f"{one.type} by {one.by or 'unknown'} since {one.since_ms} ({one.request})" for one in requests
        )
    return [{"fact": name, "value": value} for name, value in facts.items()]


def _member_cells(member: MemberRow) -> dict[str, Any]:
    pending = [f"{one.type.split('-')[0]} {one.partitions} since {one.since_ms}" for one in member.pending]
    return member.row(
        channel=channel(member),
        held=duration(member.held_ms),
        heard=f"{ago} ago" if (ago := duration(member.heard_ms_ago)) else None,
        since=member.since_ms or (None if member.registered else "gone"),
        owned=str(member.owned),
        stopping=str(member.stopping) if member.stopping else None,
        target=str(member.target),
        pending="; ".join(pending),
    )


def no_coordinator_warning(cluster: Cluster) -> str:
    """Returns the warning that commands show while no instance can make decisions about groups."""
    return f"NO WORKING COORDINATOR: {cluster.undecided}; kafka-coord doctor suggests a remedy"


def channel(member: MemberRow) -> str:
    """Returns how the member is connected: through ZooKeeper, over a socket to an instance, or as a Kafka client."""
    return member.channel if member.gateway is None else f"{member.channel} via {member.gateway}"


def report_unreadable(unreadable: tuple[Unreadable, ...]) -> None:
    """Prints the unreadable znodes on standard error."""
    for one in unreadable[:20]:
        note(f"unreadable: {one.path}: {one.reason}")
    if len(unreadable) > 20:
        note(f"unreadable: {len(unreadable) - 20} more znodes; kafka-coord doctor lists all")


@click.command()
@click.argument("regex")
@click.option("--exclude", is_flag=True, help="Show the topics that do not match, like `consume --exclude REGEX`.")
@output_option
@connection_options
def match(regex: str, exclude: bool, output: Format) -> None:
    """Show the topics whose full name matches the pattern, like `consume --include REGEX`.

    \b
    kafka-coord groups match 'fl.*'
    kafka-coord groups match 'flights|routes' --exclude
    """
    subscription = Subscription.matching(regex, exclude=exclude)
    with open_store() as store:
        topics = read_cluster(store).topics
    taken = [
        {"topic": name, "partitions": len(info.partitions)}
        for name, info in sorted(topics.items())
        if subscription.wants(name)
    ]
    show(output, taken, [Section("topics", _TOPICS, taken)])
    note(f"{len(taken)} of {counted(len(topics), 'topic')}")


@click.group()
def topics() -> None:
    """Show who reads a topic, and how far behind.

    \b
    kafka-coord topics describe flights
    """


@topics.command("describe")
@click.argument("topic")
@output_option
@connection_options
def describe_topic(topic: str, output: Format) -> None:
    """Show a topic's partitions and the groups of every kind that read it, those furthest behind in time first. HOLDING
    is `not subscribed` if a group has offsets of the topic, but no member subscribes to it.

    \b
    kafka-coord topics describe flights
    kafka-coord topics describe flights -o json
    """
    with open_cluster() as (instances, brokers):
        directory, service = GroupDirectory(instances), lag_service(instances, **_ALL)
        found = read_topic(directory, topic, brokers.known_ranges, service)
    offsets = [(group.group, one) for group in found.groups for one in group.offsets]
    offsets.sort(key=lambda one: (one[1].partition, one[0]))
    sections = [
        Section("groups", _READERS, [one.row() for one in found.groups], empty="no group reads this topic"),
        Section("readers", _READ, [one.row(group=group) for group, one in offsets]),
        Section("partitions", _ENDS, [one.row() for one in found.partitions]),
    ]
    show(output, found, sections)
    for sentence in found.notes:
        note(sentence)


@click.command()
@click.argument("text")
@output_option
@connection_options
def search(text: str, output: Format) -> None:
    """Show the groups of every kind, the topics, and the consumers whose name, host or client id contains TEXT, in any
    case.

    \b
    kafka-coord search kafka-7.example.org
    """
    with open_groups() as directory:
        found = find_names(directory, text)
    named = {"groups": found.groups, "topics": found.topics}
    sections = [Section(what, columns(what[:-1]), [{what[:-1]: one} for one in names]) for what, names in named.items()]
    consumers = Section("consumers", columns("group consumer host client"), [one.row() for one in found.consumers])
    show(output, found, [*sections, consumers])
    for sentence in found.notes:
        note(sentence)


_COLUMNS = columns(
    "#generation=GEN #epoch decided_at=DECIDED reason assignor #members #partitions #moved "
    "stopped_after=STOPPED settled_after=SETTLED"
)
_MOVES = columns("#generation=GEN consumer gained lost")


@click.command()
@any_group_argument
@kind_option
@last_option("The number of decisions to show.")
@click.option("--verbose", "-v", is_flag=True, help="Also show what each consumer gained and lost.")
@click.option("--actions", "only_actions", is_flag=True, help="Show only the operator actions.")
@output_option
@connection_options
def history(group: str, kind: str | None, last: int, verbose: bool, only_actions: bool, output: Format) -> None:
    """Show the latest decisions about a group, oldest first: when and why each was made, how many partitions moved, and
    how long that took. A second table shows the operator actions; formats other than table show them only with
    --actions.

    STOPPED is the time from the decision until every stop-fetcher was acknowledged. SETTLED is the time until every
    partition had its owner.

    The history of a client-assigned group is read from its records in the groups log, which goes back only as far as
    compaction allows. EPOCH is then the term of the log's partition, and STOPPED and SETTLED are unknown.

    \b
    kafka-coord groups history delays --last 5 --verbose
    kafka-coord groups history delays --actions -o json
    """
    with open_groups() as directory:
        trail = directory.find(group, kind).history(group, note)
    report_unreadable(trail.unreadable)
    decisions, done = trail.decisions[-last:], [ActionDocument.of(one) for one in trail.actions[-last:]]
    shows_actions = only_actions or output is Format.TABLE
    note_earlier(last, actions=len(trail.actions) if shows_actions else 0)
    note_earlier(last, decisions=0 if only_actions else len(trail.decisions))
    shown = Section("actions", ACTIONS, [one.row() for one in done])
    if only_actions:
        show(output, done, [shown])
        return
    documents = [DecisionDocument.of(decision) for decision in decisions]
    rows = [
        one.row(stopped_after=duration(one.stopped_ms), settled_after=duration(one.settled_ms)) for one in documents
    ]
    sections = [Section("decisions", _COLUMNS, rows)]
    if done and output is Format.TABLE:
        sections.append(shown)
    if verbose:
        moves = [
            {
                "generation": one.generation,
                "consumer": consumer,
                "gained": moved.get("gained"),
                "lost": moved.get("lost"),
            }
            for one in decisions
            for consumer, moved in one.moves.items()
        ]
        sections.append(Section("moves", _MOVES, moves))
        if cut := [str(one.generation) for one in decisions if len(one.moves) == MAX_MOVES]:
            note(f"of {MAX_MOVES} consumers at most, the history has what they gained and lost: {', '.join(cut)}")
    show(output, documents, sections)
