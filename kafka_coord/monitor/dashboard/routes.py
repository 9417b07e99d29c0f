"""Lists the API's documents, each with its path, reader, interval and watches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from kafka_coord.errors import NotFound
from kafka_coord.model.names import is_legal
from kafka_coord.monitor.dashboard.sources import Sources
from kafka_coord.zk import layout

PREFIX = "/api/v1"

Watched = tuple[tuple[str, ...], tuple[str, ...]]
"""Paths whose children are watched, and paths whose creation, change and deletion are watched."""


@dataclass(frozen=True, slots=True)
class Route:
    """How to read a document. ``path`` contains ``{parameters}``, and ``query`` lists the optional parameters. ``read``
    is annotated with the document's type, and ``summary`` says what it contains: ``openapi.json`` shows both. ``lane``
    is the thread that reads the document, and ``also`` lists the documents and tasks that it needs. With ``of_rows``,
    the document depends on the rows of all groups, so it is reread when some of them have been read."""

    path: str
    read: Callable[..., Any]
    summary: str = ""
    every_s: float = 5.0
    lane: str = "state"
    watched: Callable[..., Watched] = lambda **_: ((), ())
    query: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    of_rows: bool = False


def _of_group(group: str, **_: str) -> Watched:
    if not is_legal(group):
        return (), ()
    children = (layout.ids(group), layout.owners(group))
    return children, (layout.group(group), layout.history(group), layout.assignment(group), layout.paused(group))


def _of_actions(group: str) -> Watched:
    children, data = _of_group(group)
    return children, (*data, layout.HISTORY)  # this history contains the actions on client-assigned groups


def _of_cluster() -> Watched:
    children = (layout.COORDINATORS, layout.GROUPS, layout.BROKER_IDS)
    return children, (layout.COORDINATOR, layout.COORDINATOR_EPOCH, layout.PAUSED)


ROWS, LAGS, CLIENTS = "rows", "lags", "clients"
TASKS = {
    ROWS: Route(ROWS, Sources.read_rows, every_s=1.0),
    LAGS: Route(LAGS, Sources.read_lags, lane="lag"),
    CLIENTS: Route(CLIENTS, Sources.read_clients, every_s=5.0, lane="lag"),
}
"""The reads shared by several documents."""

ROUTES = (
    Route(
        "/overview",
        Sources.overview,
        "What the overview page shows",
        every_s=2.0,
        also=("/cluster", ROWS, LAGS, CLIENTS),
        of_rows=True,
    ),
    Route("/cluster", Sources.cluster, "The coordinator and the instances", watched=_of_cluster),
    Route(
        "/cluster/history",
        Sources.cluster_history,
        "Elections, and operator actions that do not concern a single managed group",
        watched=lambda: ((), (layout.HISTORY,)),
    ),
    Route(
        "/cluster/requests",
        Sources.requests,
        "Requests that the coordinator has not answered",
        every_s=2.0,
        watched=lambda: ((layout.REQUESTS,), ()),
    ),
    Route(
        "/cluster/unassigned",
        Sources.unassigned,
        "The partitions that no live member owns",
        also=("/cluster", ROWS, CLIENTS),
        of_rows=True,
    ),
    Route("/cluster/findings", Sources.findings, "The doctor's findings", every_s=30.0, lane="doctor"),
    Route("/topics", Sources.topics, "All topics", also=("/cluster",)),
    Route(
        "/topics/{topic}",
        Sources.topic,
        "The partitions of a topic, and the groups of every kind that read it",
        lane="lag",
        also=("/cluster", ROWS, LAGS, CLIENTS),
    ),
    Route(
        "/groups",
        Sources.groups,
        "Matching groups (100, or limit) after those to skip, sorted by name, state, members, lag or lag-s",
        query=("search", "state", "sort", "skip", "limit"),
        every_s=2.0,
        also=("/cluster", ROWS, LAGS, CLIENTS),
        of_rows=True,
    ),
    Route(
        "/search",
        Sources.search,
        "The groups, topics and consumers whose names, hosts or client ids contain a text",
        query=("search",),
        also=("/cluster", ROWS, LAGS, CLIENTS),
        of_rows=True,
    ),
    Route("/groups/{group}", Sources.group, "Everything about a group", watched=_of_group),
    Route(
        "/groups/{group}/history",
        Sources.history,
        "The last rebalances of the group, oldest first",
        every_s=30.0,
        watched=_of_group,
    ),
    Route(
        "/groups/{group}/actions",
        Sources.actions,
        "The operator actions on the group, oldest first",
        every_s=30.0,
        watched=_of_actions,
    ),
    Route(
        "/groups/{group}/timeline",
        Sources.timeline,
        "The owners of each partition over time",
        every_s=10.0,
        watched=_of_group,
    ),
    Route(
        "/groups/{group}/lag",
        Sources.lag,
        "The lag of the group over time, and the verdict on each partition",
        lane="lag",
    ),
    Route(
        "/groups/{group}/findings",
        Sources.group_findings,
        "The doctor's findings about the group",
        every_s=10.0,
        lane="doctor",
        watched=_of_group,
    ),
    Route(
        "/groups/{group}/partitions/{topic}/{partition}",
        Sources.partition,
        "One partition of a group",
        watched=_of_group,
        also=("/groups/{group}/lag",),
    ),
)

_MATCHED = [(re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(one.path))), one) for one in ROUTES]


def found(written: str) -> tuple[Route, Mapping[str, str]]:
    """Returns the route and the parameters of a percent-encoded path and query below :data:`PREFIX`. Raises
    :class:`NotFound`."""
    path, _, query = written.partition("?")
    for pattern, route in _MATCHED:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        parameters = {name: unquote(value) for name, value in match.groupdict().items()}
        given = dict(parse_qsl(query, max_num_fields=10))
        return route, parameters | {name: value for name, value in given.items() if name in route.query}
    raise NotFound(f"there is nothing at {PREFIX}{path[:200]}; {PREFIX}/openapi.json lists the paths")
