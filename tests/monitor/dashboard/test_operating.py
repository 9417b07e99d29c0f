"""Tests of actions over HTTP, with a real ZooKeeper and a real coordinator, and of hostile requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.monitor.dashboard import logins
from kafka_coord.monitor.dashboard.operating import MAX_BODY
from tests.coordinator.harness import ScriptedConsumer, World
from tests.monitor.dashboard.served import OPENAPI, Served, operators_file, serving, valid
from tests.waiting import eventually

TOKEN = "a long token"  # noqa: S105
JSON = {"Content-Type": "application/json"}
BEARER = {**JSON, "Authorization": f"Bearer {TOKEN}"}
PAUSE = "/api/v1/groups/delays/pause"
WHY = json.dumps({"reason": "moving disks"})


@pytest.fixture
def served(world: World, tmp_path: Path) -> Iterator[Served]:
    file = operators_file(tmp_path, alice=TOKEN)
    file.write_text(f'{file.read_text()}[operators.bob]\nsecret_sha256 = "{"0" * 64}"\ngroups = ["none"]\n')
    with serving(world.hosts, file) as made:
        yield made


def post(served: Served, path: str, body: Any, headers: dict[str, str] = BEARER) -> tuple[int, Any]:
    """Sends a POST. Returns the status and the document, after checking it against the API's description."""
    status, _, raw = served.ask(path, "POST", body if isinstance(body, str) else json.dumps(body), headers)
    told = json.loads(raw)
    described = OPENAPI["paths"].get(path.removeprefix("/api/v1").replace("/delays/", "/{group}/"), {})
    if "post" in described:
        answers = described["post"]["responses"]
        one = answers["200"] if status == 200 else OPENAPI["components"]["responses"]["Error"]
        valid(told, one["content"]["application/json"]["schema"])
    return status, told


def log_in(served: Served) -> dict[str, str]:
    """Logs in, and returns the headers that a page then sends."""
    assert post(served, "/api/v1/login", {"token": TOKEN}, JSON)[0] == 200
    status, headers, raw = served.ask("/api/v1/login", "POST", json.dumps({"token": TOKEN}), JSON)
    assert status == 200, raw
    cookie = headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} < set(cookie.split("; "))
    assert headers["cache-control"] == "no-store"
    return {**JSON, "Cookie": cookie.partition(";")[0], "X-CSRF-Token": json.loads(raw)["csrf"]}


def running(world: World) -> ScriptedConsumer:
    world.instance(1).start_elected()
    consumer = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    return consumer


def trail(served: Served, by: str) -> set[tuple[str, str]]:
    return {(one["action"], one["reason"]) for one in served.document("/groups/delays/actions") if one["by"] == by}


def test_an_operators_actions_are_carried_out_and_recorded(world: World, served: Served) -> None:
    running(world)
    page = log_in(served)
    assert json.loads(served.ask("/api/v1/session", headers=page)[2])["operator"] == "alice"
    assert post(served, PAUSE, WHY, page)[1]["answers"][0]["message"] == "group delays paused"
    status, told = post(served, "/api/v1/groups/delays/rebalance", WHY)
    assert status == 504
    assert "is pending, because group 'delays' is paused by alice@127.0.0.1" in told["error"]
    assert post(served, "/api/v1/groups/delays/resume", {"reason": "done"})[0] == 200
    assert (
        post(served, "/api/v1/groups/delays/rebalance", {"reason": "new memory"})[1]["answers"][0]["result"] == "done"
    )
    assert post(served, "/api/v1/groups/delays/evict", {"reason": "x", "consumers": ["c1", "nobody"]})[0] == 404
    assert post(served, "/api/v1/groups/delays/evict", {"reason": "stuck", "consumers": ["c1"]})[0] == 200
    by = "alice@127.0.0.1 over HTTP"
    wanted = {("pause", "moving disks"), ("resume", "done"), ("rebalance", "new memory"), ("evict", "stuck")}
    eventually(lambda: wanted <= trail(served, by))


def test_a_reset_is_previewed_and_then_executed_exactly_once(world: World, served: Served) -> None:
    consumer = running(world)
    consumer.position = {TopicPartition("flights", 0): 5}
    consumer.leave()
    path = "/api/v1/groups/delays/reset-offsets"
    asked = {"reason": "bug 17", "rule": "to-current", "topics": ["flights:0"]}
    for wrong, why in (
        ({"rule": "to-nowhere"}, "openapi.json describes it: Invalid enum value 'to-nowhere' - at `$.rule`"),
        ({"rule": "shift-by", "value": "many"}, "shift-by needs an integer as its value"),
        ({"rule": "to-time", "value": "noon"}, "'noon'"),
        ({"pause": "yes"}, "Expected `bool`, got `str` - at `$.pause`"),
    ):
        status, told = post(served, path, asked | wrong)
        assert (status, why in told["error"]) == (400, True), told
    assert post(served, path, {**asked, "topics": ["flights:99"]})[0] == 404
    shown = post(served, path, asked)[1]
    assert [(row["current_offset"], row["new_offset"]) for row in shown["rows"]] == [(5, 5)]
    assert shown["rule"] == "to-current"

    meanwhile = Request(RequestType.RESET_OFFSETS, "delays", offsets={TopicPartition("flights", 0): 9}, by="bob@there")
    assert world.ask(meanwhile).result == "done"
    confirm = {"confirm": shown["confirm"]}
    assert post(served, path.replace("delays", "another"), confirm)[0] in {404, 409}
    assert post(served, path, {"confirm": "invented"})[0] == 409
    status, told = post(served, path, confirm)
    assert (status, told["rows"][0]["current_offset"], told["rows"][0]["new_offset"]) == (200, 9, 5)
    assert post(served, path, confirm)[0] == 409
    last = served.document("/groups/delays/actions")[-1]
    assert (last["by"], last["reason"]) == ("alice@127.0.0.1 over HTTP", "bug 17")
    assert last["change"] == "to-current: flights 0: 9 → 5"


def confirmed(served: Served, path: str, body: Any, **more: Any) -> tuple[int, Any]:
    """Confirms the dry run of an action."""
    status, shown = post(served, path, {"reason": "bug 17", **body})
    assert (status, "answers" in shown) == (200, False), shown
    return post(served, path, {"confirm": shown["confirm"], **more})


def test_what_cannot_be_undone_is_shown_first_and_needs_the_groups_name(world: World, served: Served) -> None:
    consumer = running(world)
    consumer.position = {TopicPartition("flights", 0): 5, TopicPartition("flights", 1): 7}
    path = "/api/v1/groups/delays/delete"
    shown = post(served, path, {"reason": "not used"})[1]
    assert shown["effects"][-1] == "it has members (c1), so this is refused: stop them first"
    assert post(served, path, {"confirm": shown["confirm"], "name": "delays"})[0] == 409
    consumer.leave()

    of_offsets = "/api/v1/groups/delays/delete-offsets"
    status, told = confirmed(served, of_offsets, {"topics": ["flights:0"]})
    assert (status, "type the group's name (name in the API), delays. Nothing" in told["error"]) == (409, True)
    shown = post(served, of_offsets, {"reason": "bug 17", "topics": ["flights:0"]})[1]
    assert [(row["partition"], row["current_offset"], row["new_offset"]) for row in shown["rows"]] == [(0, 5, None)]
    assert shown["effects"] == ["group delays loses 1 committed offset; then auto.offset.reset applies"]
    confirm = {"confirm": shown["confirm"]}
    assert post(served, of_offsets, {**confirm, "name": "delay"})[0] == 409
    assert post(served, path, {**confirm, "name": "delays"})[0] == 409, "another action's token"
    assert post(served, of_offsets, {**confirm, "name": "delays"})[1]["answers"][0]["result"] == "done"
    assert post(served, of_offsets, {**confirm, "name": "delays"})[0] == 409
    last = served.document("/groups/delays/actions")[-1]
    assert (last["by"], last["reason"], last["change"]) == ("alice@127.0.0.1 over HTTP", "bug 17", "flights 0: 5 → -")

    assert confirmed(served, path, {}, name="delays")[0] == 200
    assert post(served, path, {"reason": "again"})[0] == 404
    eventually(lambda: any(one["action"] == "delete-group" for one in served.document("/cluster/history")["actions"]))


def test_an_eviction_says_what_it_means(world: World, served: Served) -> None:
    running(world)
    path, body = "/api/v1/groups/delays/evict", {"reason": "stuck", "consumers": ["c1"], "dry_run": True}
    shown = post(served, path, body)[1]
    assert shown["effects"] == [
        "c1 loses 4 partitions (flights[0-3])",
        "the partitions have no owner until a consumer registers again; there, what was read since the last commit will"
        " be read again (unknown for 4 partitions)",
    ]
    assert post(served, path, {**body, "consumers": ["nobody"]})[0] == 404
    assert post(served, path, {"confirm": shown["confirm"]})[1]["answers"][0]["result"] == "done"


def test_without_operators_no_action_is_possible(world: World) -> None:
    with serving(world.hosts) as served:
        for path in ("/api/v1/login", "/api/v1/logout", PAUSE):
            assert served.ask(path, "POST", WHY, BEARER)[0] == 405
        assert json.loads(served.ask("/api/v1/session")[2]) == {"actions": False, "operator": None, "groups": []}


HOSTILE = {
    "another site": ({"Origin": "https://evil.example.org"}, 403),
    "a sandboxed page": ({"Origin": "null"}, 403),
    "another port of this host": ({"Origin": "http://127.0.0.1:1"}, 403),
    "a rebound name": ({"Host": "evil.example.org", "Origin": "http://evil.example.org"}, 421),
    "a form": ({"Content-Type": "text/plain"}, 415),
    "another form": ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    "no token of the page": ({"X-CSRF-Token": ""}, 401),
    "an invented token of the page": ({"X-CSRF-Token": "x"}, 401),
    "no session": ({"Cookie": ""}, 401),
    "an invented session": ({"Cookie": "kafka-coord-1=x"}, 401),
    "a wrong bearer token beside a session": ({"Authorization": "Bearer wrong"}, 401),
    "an empty bearer token": ({"Authorization": "Bearer"}, 401),
}


def test_a_hostile_request_changes_nothing(world: World, served: Served) -> None:
    world.consumer("c1").join()
    page = log_in(served)
    for name, (headers, status) in HOSTILE.items():
        found, _, raw = served.ask(PAUSE, "POST", WHY, page | headers)
        assert found == status, name
        assert b"Traceback" not in raw
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        found, answer, _ = served.ask(PAUSE, method, WHY, page)
        assert found in {405, 501}
        assert "access-control-allow-origin" not in answer
    assert served.ask(PAUSE, headers=page)[0] == 404
    assert served.document("/groups/delays")["paused"] is None


def test_a_hostile_body_or_path_is_refused(world: World, served: Served) -> None:
    world.consumer("c1").join()
    for body in ("", "{", "[]", "null", '{"reason": 1}', '{"reason": "\\ud800"}', '{"reason": " "}', "[" * 60_000):
        assert post(served, PAUSE, body)[0] == 400, body[:20]
    assert post(served, PAUSE, {"reason": "x" * 1_001})[0] == 400
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as peer:
        lines = [
            f"POST {PAUSE} HTTP/1.1",
            *(f"{name}: {value}" for name, value in BEARER.items()),
            "Content-Length: 99",
        ]
        peer.sendall("\r\n".join([*lines, "", WHY]).encode())
        peer.shutdown(socket.SHUT_WR)
        assert b" 400 " in peer.recv(100), "a body that ends early must be refused"
    assert post(served, PAUSE, " " * (MAX_BODY + 1))[0] == 413
    for group in ("..", "%2e%2e", "..%2F..%2Fcoordinator", "%00", "a%0Ab", "nobody", "%20"):
        assert post(served, f"/api/v1/groups/{group}/pause", WHY)[0] in {400, 403, 404}, group
    for path in ("/api/v1/groups//pause", "/api/v1/groups/delays/destroy", "/api/v1/groups/delays", "/api/v1/events"):
        assert post(served, path, WHY)[0] == 404
    assert served.document("/groups/delays")["paused"] is None
    assert served.document("/cluster")["paused"] is None


@pytest.mark.usefixtures("renewed_at_once")
def test_an_operator_can_act_only_on_its_own_groups(world: World, served: Served, tmp_path: Path) -> None:
    world.consumer("c1").join()
    file = operators_file(tmp_path, alice=TOKEN)
    file.write_text(file.read_text().replace(".*", "other|elays"))
    status, told = post(served, PAUSE, WHY)
    assert (status, told["error"]) == (403, "operator alice is not allowed to act on group 'delays'")
    several = {"reason": "x", "groups": ["other", "delays"]}
    assert post(served, "/api/v1/actions/pause", several)[0] == 403


def test_a_session_ends_after_its_maximum_duration(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.consumer("c1").join()
    monkeypatch.setattr(logins, "SESSION_S", 0.0)
    assert post(served, PAUSE, WHY, log_in(served))[0] == 401
