"""Tests of the dashboard over HTTP, with a real ZooKeeper and a real coordinator: documents, stream and refusals."""

from __future__ import annotations

import csv
import gzip
import json
from functools import reduce
from typing import Any

import pytest

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.monitor.dashboard import live, site, sources
from kafka_coord.monitor.dashboard.routes import ROUTES
from kafka_coord.monitor.dashboard.site import csv_of, exported, table_of
from kafka_coord.zk import layout
from kafka_coord.zk.acl import Grant, Identity, Permission
from kafka_coord.zk.acl_tree import AclChange, AclStore
from tests.coordinator.harness import World
from tests.monitor.dashboard.served import OPENAPI, Served, serving, valid
from tests.waiting import eventually

GROUP = "/groups/delays"
NAMES = {"{group}": "delays", "{topic}": "flights", "{partition}": "2"}


def owners(document: Any) -> set[str | None]:
    return {row["owner"] for row in document["offsets"]}


def test_every_paths_document_matches_the_api_description(world: World, served: Served) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.ask(Request(RequestType.REBALANCE, group="delays", reason="to see it", by="alice@here"))

    read = {path: one["get"] for path, one in OPENAPI["paths"].items() if "get" in one}
    assert set(read) == {route.path for route in ROUTES} | {"/events", "/session"}
    assert json.loads(served.ask("/api/v1/openapi.json")[2]) == OPENAPI
    assert [row["group"] for row in served.document("/groups")] == ["delays"]
    for path, described in read.items():
        if path == "/events":
            continue
        there = reduce(lambda made, name: made.replace(name, NAMES[name]), NAMES, path)
        answers = described["responses"]
        valid(served.document(there), answers["200"]["content"]["application/json"]["schema"])
    (row,) = served.document("/groups?search=LAY&state=stable")
    assert (row["group"], row["members"], row["partitions"]) == ("delays", 1, 4)
    assert served.document("/groups?search=nothing") == []
    assert served.document("/groups?sort=lag-s&skip=1") == []
    assert [row["group"] for row in served.document("/groups?sort=lag-s&skip=odd&limit=1")] == ["delays"]
    assert served.document("/search?search=flig")["topics"] == ["flights"]
    eventually(lambda: served.document("/topics/flights")["unmeasured"] == 0)
    (reader,) = served.document("/topics/flights")["groups"]
    assert (reader["group"], {one["owner"] for one in reader["offsets"]}) == ("delays", {"c1"})
    (member,) = served.document("/search?search=c1")["consumers"]
    assert (member["group"], member["consumer"]) == ("delays", "c1")
    assert [one["by"] for one in served.document(f"{GROUP}/actions")] == ["alice@here"]


def test_every_table_is_served_as_csv_and_as_json(world: World, served: Served) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    status, headers, body = served.ask(f"/api/v1{GROUP}?format=csv&table=offsets")
    names, *rows = csv.reader(body.decode().splitlines())
    assert (status, headers["content-type"], headers["content-disposition"]) == (
        *(200, "text/csv; charset=utf-8"),
        "attachment",
    )
    assert [dict(zip(names, row, strict=True))["owner"] for row in rows] == ["c1"] * 4
    assert [row["partition"] for row in served.document(f"{GROUP}?table=offsets")] == [0, 1, 2, 3]
    assert served.document("/groups?format=json&table=&search=delays")[0]["group"] == "delays"
    assert served.ask("/api/v1/groups?format=csv&search=nothing")[2] == b""
    for wrong in (f"{GROUP}?format=csv", f"{GROUP}?table=state", f"{GROUP}?table=none", "/groups?table=offsets"):
        assert served.ask(f"/api/v1{wrong}")[0] == 404, wrong
    assert served.ask("/api/v1/groups/none?format=csv")[0] == 404


def test_rows_become_csv_that_no_spreadsheet_runs() -> None:
    rows = [{"group": "=cmd()", "lag": -1, "owned": {"t": "0-3"}, "paused": None}, {"group": 'a,"b"\n', "up": True}]
    assert csv_of(rows).decode() == (
        'group,lag,owned,paused,up\n\'=cmd(),-1,"{""t"":""0-3""}",,\n"a,""b""\n","","","","true"\n'
    )
    topic = {"groups": [{"group": "g", "kind": "managed", "offsets": [{"partition": 0}, {"partition": 1}]}]}
    assert table_of(topic, "groups.offsets") == [{"group": "g", "partition": 0}, {"group": "g", "partition": 1}]
    assert table_of(topic, "groups.kind") is table_of([1], "") is table_of({}, "") is None
    assert exported("/groups?search=a%26b&format=csv") == ("/groups?search=a%26b", {"format": "csv"})
    assert exported("/groups?search=a") == ("/groups?search=a", None)


def test_the_pages_files_are_compressed_if_the_browser_can_read_that(served: Served) -> None:
    files = (
        "",
        "app.js",
        "actions.js",
        "charts.js",
        "dom.js",
        "live.js",
        "views.js",
        "uPlot.js",
        "style.css",
        "uPlot.css",
    )
    packed = 0
    for file in files:
        _, headers, body = served.ask(f"/dashboard/{file}", headers={"Accept-Encoding": "gzip, br"})
        _, plain_headers, plain = served.ask(f"/dashboard/{file}")
        assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
        assert "content-encoding" not in plain_headers
        assert gzip.decompress(body) == plain
        packed += len(body)
    assert packed < 60_000


def test_a_stream_shows_a_rebalance_at_once_and_sends_only_what_changed(world: World, served: Served) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    with served.follow(GROUP, f"{GROUP}/history", f"{GROUP}/timeline") as page:
        page.until(lambda known: len(known) == 3)
        assert owners(page.documents[GROUP]) == {"c1"}
        page.sizes.clear()
        world.consumer("c2").join()
        world.settles("c1", "c2", partitions=4)
        page.until(lambda known: owners(known[GROUP]) == {"c1", "c2"})
        page.until(lambda known: len(known[f"{GROUP}/history"]) == 2)
        page.until(lambda known: any(len(one["spans"]) == 2 for one in known[f"{GROUP}/timeline"]["partitions"]))
        assert page.sizes["change"] > 0
        assert "document" not in page.sizes


def test_the_overview_follows_groups_and_coordinators(world: World, served: Served) -> None:
    first = world.instance(1).start_elected()
    world.instance(2).start()
    with served.follow("/overview") as page:
        page.until(lambda known: "/overview" in known)
        assert page.documents["/overview"]["coordinator"] == 1
        world.consumer("c1").join()
        page.until(lambda known: known["/overview"]["states"] == {"Stable": 1})
        page.until(lambda known: sum(many for _, many in known["/overview"]["rebalances"]) == 1)
        first.stop()
        world.instances.remove(first)
        page.until(lambda known: known["/overview"]["coordinator"] == 2)
        assert page.documents["/overview"]["epoch"] == 2


def test_the_cluster_page_lists_partitions_without_a_live_owner_and_the_reasons(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.instance(1).start_elected()
    gone = world.consumer("gone", group="left").join()
    world.settles("gone", group="left", partitions=4)
    gone.position[TopicPartition("flights", 2)] = 5
    gone.leave()
    world.store.ensure_path(layout.topic_offsets("delays", "flights"))
    world.store.create(layout.offset("delays", "flights", 1), b"garbage")
    world.consumer("c1").join()
    world.consumer("c1", group="well").join()
    world.settles("c1", group="well", partitions=4)

    def told() -> Any:
        groups = served.document("/cluster/unassigned")["groups"]
        return [one["group"] for one in groups] == ["delays", "left"] and groups[0]["count"] == 1 and groups

    damaged, left = eventually(told)
    assert damaged["partitions"] == {"flights": "1"}
    assert "cannot start flights[1]: /consumers/groups/delays/offsets/flights/1 is unreadable" in damaged["why"]
    assert (left["partitions"], left["why"], left["state"]) == ({"flights": "0-3"}, "no members", "Empty")
    assert left["since"] is not None

    monkeypatch.setattr(sources, "MAX_ROWS", 1)
    eventually(lambda: served.document("/cluster/unassigned")["left_out"] == 1)
    assert served.document("/cluster/unassigned")["partitions"] == 1


def test_pages_share_reads_and_without_a_page_no_zookeeper_session_is_open(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    monkeypatch.setattr(live, "LINGER_S", 0.1)
    monkeypatch.setattr(site, "BEAT_S", 0.1)  # the server notices a closed page at its next write
    with served.follow(GROUP) as page, served.follow(GROUP) as other:
        page.until(lambda known: known)
        other.until(lambda known: known)
        assert list(served.live._documents) == [GROUP]
        assert served.live._sources is not None
    eventually(lambda: served.live._sources is None)
    assert list(served.live._documents) == []


def test_a_reader_that_is_too_slow_is_disconnected(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_WAITING", 2)
    reader = live.Reader()
    event = live.PageEvent("change", GROUP, "[]")
    for _ in range(3):
        reader.put(event)
    assert reader.over
    assert reader.next(0.0) is None


def test_unknown_paths_and_groups_are_answered_not_found(world: World, served: Served) -> None:
    world.instance(1).start_elected()
    for path in ("/api/v1/nowhere", "/api/v1/groups/none", "/dashboard/../settings.py", "/dashboard/no.js", "/nowhere"):
        status, headers, body = served.ask(path)
        assert status == 404, path
        assert headers["x-content-type-options"] == "nosniff"
        assert b"Traceback" not in body
    assert json.loads(served.ask("/api/v1/groups/none")[2]) == {"error": "no group 'none'; there are no groups"}
    assert json.loads(served.ask("/api/v1/groups/%3Cscript%3E%2F..%2Fx")[2])["error"].startswith(
        "group name '<script>/../x' is not legal"
    )
    assert served.ask("/api/v1/events")[0] == 400
    assert served.ask("/api/v1/events?path=/nowhere")[0] == 404


def test_a_group_that_an_acl_hides_is_reported_and_others_are_shown(world: World, served: Served) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.store.create(f"{layout.GROUPS}/other")
    assert isinstance(world.store, AclStore)
    theirs = (Grant(Identity("digest", "somebody:else"), Permission.ALL),)
    world.store.write_acls([AclChange(layout.owners("delays"), theirs, -1)])
    found = served.document(GROUP)
    assert found["status"].startswith(
        f"cannot decide, because {layout.owners('delays')} is unreadable: its ACL forbids"
    )
    (told,) = [one for one in served.document(f"{GROUP}/findings") if one["check"] == "unreadable znodes"]
    assert f"setAcl {layout.owners('delays')}" in told["todo"]
    assert {row["group"] for row in served.document("/groups")} == {"delays", "other"}


def test_only_get_requests_are_accepted(served: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert served.ask("/api/v1/groups/delays", method)[0] in {405, 501}


def test_the_page_may_only_load_from_and_connect_to_its_own_server(world: World, served: Served) -> None:
    world.instance(1).start_elected()
    status, headers, body = served.ask("/")
    assert (status, headers["location"]) == (302, "/dashboard/")
    status, headers, body = served.ask("/dashboard/")
    assert status == 200
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"].strip() == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert b"http:" not in body, "the page may load nothing from other sites"
    assert b"style=" not in body
    for name in ("app.js", "views.js", "live.js", "dom.js", "charts.js", "style.css", "uPlot.js", "uPlot.css"):
        assert served.ask(f"/dashboard/{name}")[0] == 200
    assert b"MIT" in served.ask("/dashboard/uPlot.LICENSE.txt")[2]


def test_without_zookeeper_the_page_opens_and_shows_the_error() -> None:
    with serving(f"127.0.0.1:{free_port()}") as served:
        assert served.ask("/dashboard/")[0] == 200
        status, _, body = served.ask("/api/v1/cluster")
        assert status == 503
        assert "no ZooKeeper at" in json.loads(body)["error"]
