"""``kafka-coord coordinator``: the elected coordinator, and the queue of requests."""

from __future__ import annotations

import time
from typing import Any

import click

from kafka_coord.cli.connection import connection_options, open_store
from kafka_coord.cli.documents import pause_document
from kafka_coord.cli.groups.show import nobody_decides, report_unreadable
from kafka_coord.cli.options import output_option, who
from kafka_coord.cli.output import Column, Format, Section, cell, duration, iso_time, number, show
from kafka_coord.cli.requests import asked, asking_options, reason_option, show_answers
from kafka_coord.errors import NotFound
from kafka_coord.model import Request, RequestType
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.requests import QueuedRequest, read_requests, withdraw

_INSTANCES = (number("broker_id", "BROKER"), Column("elected"), Column("broker_up"), Column("endpoints"))
_REQUESTS = (
    Column("request"),
    Column("type"),
    Column("group"),
    Column("consumer"),
    Column("by"),
    Column("since"),
    Column("age"),
    Column("result"),
    Column("reason"),
)


_UNKNOWN = "an instance is elected, but its znode cannot be read"


@click.group()
def coordinator() -> None:
    """Show the coordinator and the requests it has not answered.

    \b
    kafka-coord coordinator status
    kafka-coord coordinator resign --reason "host goes down"
    kafka-coord coordinator requests
    """


@coordinator.command()
@output_option
@connection_options
def status(output: Format) -> None:
    """Show the elected coordinator and every running instance. Exit code 7 if no instance can decide.

    \b
    kafka-coord coordinator status -o json
    """
    with open_store() as store:
        cluster = read_cluster(store)
    document = _status_document(cluster)
    show(output, document, [Section("instances", _INSTANCES, document["instances"])], summary=[_sentence(cluster)])
    report_unreadable(tuple(one for one in cluster.unreadable if one.path.startswith("/consumers/coord")))
    if cluster.undecided:
        raise NotFound(nobody_decides(cluster))
    if cluster.coordinator is None:
        raise NotFound(_UNKNOWN)


@coordinator.command()
@reason_option
@asking_options
def resign(reason: str, timeout_s: float, output: Format) -> None:
    """Make the elected coordinator step down, so that another instance is elected at once.

    \b
    kafka-coord coordinator resign --reason "host goes down at noon"
    """
    with open_store() as store:
        answer = asked(store, Request(RequestType.RESIGN, reason=reason, by=who()), timeout_s)
    show_answers(output, [answer])


@coordinator.command()
@click.option("--all", "answered_too", is_flag=True, help="Include answered requests.")
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
    documents = [_request_document(one, now_ms) for one in queued if answered_too or not one.request.answered]
    rows = [document | {"age": duration(document["age_ms"])} for document in documents]
    show(output, documents, [Section("requests", _REQUESTS, rows)])
    report_unreadable(unreadable)


@coordinator.command("withdraw")
@click.argument("request")
@connection_options
def withdraw_command(request: str) -> None:
    """Withdraw an unanswered request; `requests` shows its id.

    \b
    kafka-coord coordinator withdraw request-0000000012
    """
    prefix, _, digits = request.rpartition("-")
    if prefix != "request" or not digits.isdigit():
        raise NotFound(f"{request[:60]!r} is not a request id such as request-0000000012")
    with open_store() as store:
        if not withdraw(store, request):
            raise NotFound(f"no request {request}: it was answered and fetched, or withdrawn before")
    click.echo(f"{request} withdrawn")


def _sentence(cluster: Cluster) -> str:
    found = cluster.coordinator
    if cluster.undecided:
        return f"NOBODY DECIDES ANYTHING; {len(cluster.instances)} instances run"
    if found is None:
        return _UNKNOWN
    since = duration(max(0, round(time.time() * 1000) - (cluster.since_ms or 0)))
    sentence = f"broker {found.broker_id} coordinates, epoch {found.epoch}, for {since}; groups: {len(cluster.groups)}"
    if cluster.pause:
        sentence += f"; ALL GROUPS ARE PAUSED by {cell(cluster.pause.by)}: {cell(cluster.pause.reason)}"
    return sentence


def _status_document(cluster: Cluster) -> dict[str, Any]:
    elected = cluster.coordinator
    instances = [
        {
            "broker_id": broker_id,
            "elected": elected is not None and elected.broker_id == broker_id,
            "broker_up": broker_id in cluster.brokers,
            "endpoints": dict(info.endpoints),
        }
        for broker_id, info in cluster.instances.items()
    ]
    return {
        "coordinator": elected.broker_id if elected else None,
        "epoch": elected.epoch if elected else None,
        "since": iso_time(cluster.since_ms),
        "endpoints": dict(elected.endpoints) if elected else {},
        "instances": instances,
        "brokers": list(cluster.brokers),
        "groups": len(cluster.groups),
        "topics": len(cluster.topics),
        "paused": pause_document(cluster.pause) if cluster.pause else None,
        "undecided": cluster.undecided or None,
    }


def _request_document(one: QueuedRequest, now_ms: int) -> dict[str, Any]:
    request = one.request
    return {
        "request": request.request_id,
        "type": str(request.type),
        "group": request.group or None,
        "consumer": request.consumer or None,
        "by": request.by or None,
        "since": iso_time(one.since_ms),
        "age_ms": max(0, now_ms - one.since_ms),
        "result": request.result or None,
        "message": request.message or None,
        "reason": request.reason or None,
    }
