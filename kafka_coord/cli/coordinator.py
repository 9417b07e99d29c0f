"""``kafka-coord coordinator``: shows the elected coordinator and its request queue, or makes it step down. And
``kafka-coord channel``: lists the commands that consumers have not acknowledged yet."""

from __future__ import annotations

import time

import click
from msgspec.structs import replace

from kafka_coord.cli.connection import connection_options, open_store
from kafka_coord.cli.groups.show import no_coordinator_warning, report_unreadable
from kafka_coord.cli.options import (
    CONSUMER,
    GROUP,
    asking_options,
    group_argument,
    known_requests,
    last_option,
    offering,
    output_option,
    reason_option,
    running_instances,
    show_answers,
    who,
)
from kafka_coord.cli.output import Column, Format, Section, columns, duration, note, note_earlier, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import NotFound
from kafka_coord.groups.cluster import Cluster, ClusterDocument, read_cluster, read_cluster_history
from kafka_coord.groups.group import (
    ActionDocument,
    AnswerDocument,
    ClusterHistoryDocument,
    ElectionDocument,
    QueuedRequest,
    WaitingCommand,
    paused_by,
)
from kafka_coord.groups.managed import snapshot_of
from kafka_coord.groups.requests import ask, await_successor, read_requests, withdraw
from kafka_coord.groups.state import Waiting, read_groups, read_waiting
from kafka_coord.model import CoordinatorInfo, Request, RequestType
from kafka_coord.zk.root import read_mirror_trouble

_INSTANCES = columns("#broker_id=BROKER elected broker_up ready host #pid release #up endpoints waiting_for")
_ELECTIONS = columns("#epoch #broker_id=BROKER host elected ended why")
_ACTIONS = columns("at by action group reason change")
_REQUESTS = columns("request type group consumer by since age result reason")


_COMMANDS = columns("group consumer command waits_for=WAITS for_live=LIVE partitions")
_COMMANDS_IN_FULL = columns(
    "consumer command waits_for=WAITS generation epoch incarnation for_live=LIVE partitions reason"
)
_UNKNOWN = "an instance is elected, but its znode cannot be read"


class ListedRequest(QueuedRequest, kw_only=True, frozen=True):
    """``kafka-coord coordinator requests -o json``"""

    age_ms: int


@click.group()
def coordinator() -> None:
    """Show the coordinator and the unanswered requests, or make it step down.

    \b
    kafka-coord coordinator status
    kafka-coord coordinator resign --reason "host goes down"
    kafka-coord coordinator history
    kafka-coord coordinator requests
    """


@coordinator.command()
@output_option
@connection_options
def status(output: Format) -> None:
    """Show the elected coordinator and every running instance. The exit code is 7 if no instance can make decisions.

    \b
    kafka-coord coordinator status -o json
    """
    with open_store() as store:
        cluster = read_cluster(store)
    document = ClusterDocument.of(cluster)
    now_ms = round(time.time() * 1000)
    rows = [one.row(up=_up(cluster.instances[one.broker_id], now_ms)) for one in document.instances]
    show(output, document, [Section("instances", _INSTANCES, rows)], summary=[_sentence(cluster)])
    report_unreadable(tuple(one for one in cluster.unreadable if one.path.startswith("/consumers/coord")))
    if cluster.undecided:
        raise NotFound(no_coordinator_warning(cluster))
    if cluster.coordinator is None:
        raise NotFound(_UNKNOWN)


@coordinator.command(short_help="Make the elected coordinator step down.")
@click.option(
    "--to",
    "successor",
    type=click.IntRange(0),
    metavar="BROKER",
    shell_complete=offering(running_instances),
    help="The instance to elect next.",
)
@reason_option
@asking_options
def resign(successor: int | None, reason: str, timeout_s: float, output: Format) -> None:
    """Make the elected coordinator step down, so that another instance is elected immediately.

    With --to, the other instances stay out of the election for 3 s, and the command waits for the outcome. The
    coordinator refuses the request if the named instance is not running.

    \b
    kafka-coord coordinator resign --reason "host goes down at noon"
    kafka-coord coordinator resign --to 2
    """
    change = "" if successor is None else f"to broker {successor}"
    request = Request(RequestType.RESIGN, reason=reason, by=who(), change=change, successor=successor)
    with open_store() as store:
        answer = AnswerDocument.of(ask(store, request, timeout_s, note))
        if successor is not None:
            answer = replace(answer, message=await_successor(store, successor, timeout_s))
    show_answers(output, [answer])


@coordinator.command(short_help="Read brokers and topics from Kafka's own znodes again.")
@click.argument("source", type=click.Choice(["zookeeper"]))
@reason_option
@asking_options
def metadata(source: str, reason: str, timeout_s: float, output: Format) -> None:
    """Read brokers and topics from Kafka's own znodes again, after a migration to KRaft was rolled back.

    Refused while a KRaft controller is active, and while no broker is registered in ZooKeeper. The change to the
    brokers needs no command: see docs/migrating.md.

    \b
    kafka-coord coordinator metadata zookeeper --reason "the migration was rolled back"
    """
    request = Request(RequestType.METADATA, reason=reason, by=who(), change=f"from {source}")
    with open_store() as store:
        answer = AnswerDocument.of(ask(store, request, timeout_s, note))
    show_answers(output, [answer])


@coordinator.command("let-go", short_help="Remove topics that the mirror of the metadata holds back.")
@click.option("--execute", is_flag=True, help="Remove the topics from the mirror.")
@reason_option
@asking_options
def let_go(execute: bool, reason: str, timeout_s: float, output: Format) -> None:
    """Remove the topics that seem to be gone and that the mirror holds back, because they are more than half of all.

    Consumers then lose their partitions of these topics. Topics that a broker knows stay. Without --execute, only shows
    the topics.

    \b
    kafka-coord coordinator let-go
    kafka-coord coordinator let-go --execute --reason "the test topics were deleted"
    """
    with open_store() as store:
        trouble = read_mirror_trouble(store)
        held = trouble.held if trouble is not None else ()
        if not execute or trouble is None or not held:
            show(output, list(held), [Section("topics", columns("topic"), [{"topic": one} for one in held])])
            lets_go = f"nothing was changed; --execute lets {counted(len(held), 'topic')} go"
            note(lets_go if held else "no topic is held back")
            return
        change = f"{counted(len(held), 'topic')}: {', '.join(held)}"
        request = Request(RequestType.LET_GO, reason=reason, by=who(), change=change, unchanged_since=trouble.zxid)
        answer = AnswerDocument.of(ask(store, request, timeout_s, note))
    show_answers(output, [answer])


@coordinator.command(short_help="Show past elections and operator actions.")
@last_option("Show the last N elections and the last N actions.")
@click.option("--verbose", "-v", is_flag=True, help="Show an action on several groups as one line for each.")
@output_option
@connection_options
def history(last: int, verbose: bool, output: Format) -> None:
    """Show past elections, oldest first: which instance was elected, when, and why its term ended.

    A second table lists the operator actions that no group's history records: resignations, pauses of all groups,
    removals of groups, and actions on client-assigned groups. One command on several groups is one line, unless
    --verbose is given.

    \b
    kafka-coord coordinator history
    """
    with open_store() as store:
        cluster_history = read_cluster_history(store)
    actions = ActionDocument.of_cluster(cluster_history.actions)
    document = ClusterHistoryDocument(
        elections=[ElectionDocument.of(one) for one in cluster_history.elections[-last:]], actions=actions[-last:]
    )
    note_earlier(last, elections=len(cluster_history.elections), actions=len(actions))
    lines = [part for one in document.actions for part in (one.unfolded if verbose else [one])]
    sections = [
        Section("elections", _ELECTIONS, [one.row() for one in document.elections]),
        Section("actions", _ACTIONS, [one.row() for one in lines]),
    ]
    show(output, document, sections)
    report_unreadable(cluster_history.unreadable)


@coordinator.command()
@click.option("--all", "answered_too", is_flag=True, help="Also list answered requests.")
@output_option
@connection_options
def requests(answered_too: bool, output: Format) -> None:
    """List the requests that the coordinator has not answered yet.

    \b
    kafka-coord coordinator requests --all
    """
    with open_store() as store:
        queued, unreadable = read_requests(store)
        now_ms = round(store.clock.time() * 1000)
    documents = [
        ListedRequest(**one.fields(), age_ms=one.waited_ms(now_ms))
        for one in queued
        if answered_too or not one.answered
    ]
    rows = [one.row(age=duration(one.age_ms)) for one in documents]
    show(output, documents, [Section("requests", _REQUESTS, rows)])
    report_unreadable(unreadable)


@coordinator.command("withdraw")
@click.argument("request", shell_complete=offering(known_requests))
@connection_options
def withdraw_command(request: str) -> None:
    """Withdraw an unanswered request. `coordinator requests` lists the ids.

    \b
    kafka-coord coordinator withdraw request-0000000012
    """
    prefix, _, digits = request.rpartition("-")
    if prefix != "request" or not digits.isdigit():
        raise NotFound(f"{request[:60]!r} is not a request id such as request-0000000012")
    with open_store() as store:
        if not withdraw(store, request):
            raise NotFound(f"no request {request}; it may already have been answered or withdrawn")
    click.echo(f"{request} withdrawn")


def _sentence(cluster: Cluster) -> str:
    elected = cluster.coordinator
    if cluster.undecided:
        running = len(cluster.instances)
        return f"NO WORKING COORDINATOR; {counted(running, 'instance')} {'is' if running == 1 else 'are'} running"
    if elected is None:
        return _UNKNOWN
    since = duration(max(0, round(time.time() * 1000) - (cluster.since_ms or 0)))
    sentence = (
        f"broker {elected.broker_id} coordinates, epoch {elected.epoch}, for {since}; groups: {len(cluster.groups)}"
    )
    if cluster.pause:
        sentence += f"; all groups are paused {paused_by(cluster.pause)}"
    return sentence


def _up(info: CoordinatorInfo, now_ms: int) -> str | None:
    return duration(max(0, now_ms - info.process.started_ms)) if info.process else None


class ListedCommand(WaitingCommand, kw_only=True, frozen=True):
    """``kafka-coord channel list -o json``"""

    age_ms: int


@click.group()
def channel() -> None:
    """List the commands that consumers have not acknowledged yet.

    If a command stays unacknowledged for long, its consumer is stuck or still working on a record. LIVE is `no` if the
    command was meant for an earlier incarnation of the consumer; such a command will be dropped.

    \b
    kafka-coord channel list
    kafka-coord channel show delays --consumer c1
    """


@channel.command("list")
@click.option("--group", type=GROUP, default=None, help="The group to show. [default: all groups]")
@output_option
@connection_options
def list_commands(group: str | None, output: Format) -> None:
    """List the unacknowledged commands of all groups.

    \b
    kafka-coord channel list -o tsv
    """
    with open_store() as store:
        cluster = read_cluster(store)
        if group is not None and group not in cluster.groups:
            raise NotFound(f"no group {group!r}")
        snapshots = read_groups(store, [group] if group else cluster.groups, cluster)
        waiting = read_waiting(store, snapshots)
        now_ms = round(store.clock.time() * 1000)
    _show_commands(output, waiting, now_ms, _COMMANDS)


@channel.command("show")
@group_argument
@click.option("--consumer", type=CONSUMER, default=None, help="The consumer to show. [default: all consumers]")
@output_option
@connection_options
def show_commands(group: str, consumer: str | None, output: Format) -> None:
    """Show one group's unacknowledged commands in full, in order of execution.

    \b
    kafka-coord channel show delays
    """
    with open_store() as store:
        _, snapshot = snapshot_of(store, group)
        if consumer is not None and consumer not in snapshot.observation.channels:
            known = ", ".join(sorted(snapshot.observation.channels)) or "none"
            raise NotFound(f"group {group!r} has no channel for {consumer!r}; its channels are for {known}")
        waiting = read_waiting(store, {group: snapshot})
        now_ms = round(store.clock.time() * 1000)
    if consumer is not None:
        waiting = Waiting(tuple(one for one in waiting.commands if one.consumer == consumer), waiting.unreadable)
    _show_commands(output, waiting, now_ms, _COMMANDS_IN_FULL)


def _show_commands(output: Format, waiting: Waiting, now_ms: int, columns: tuple[Column, ...]) -> None:
    documents = [ListedCommand(**one.fields(), age_ms=one.waited_ms(now_ms)) for one in waiting.commands]
    rows = [one.row(waits_for=duration(one.age_ms), partitions=str(one.partitions)) for one in documents]
    show(output, documents, [Section("commands", columns, rows, empty="no unacknowledged commands")])
    report_unreadable(waiting.unreadable)
