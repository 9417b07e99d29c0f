"""Tests of dry runs and confirmations over HTTP, on a simulated ZooKeeper without a coordinator."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.dashboard.logins import Logins, OperatorsFile
from kafka_coord.monitor.dashboard.operating import Operating
from kafka_coord.zk import layout
from tests.monitor.dashboard.served import operators_file
from tests.simulation.store import SimulatedStore, connected_store

TOKEN = "a long token"  # noqa: S105
Post = Callable[..., tuple[int, Any]]


@pytest.fixture
def store() -> SimulatedStore:
    made = connected_store()
    for path in (layout.BROKER_TOPICS, layout.BROKER_IDS, layout.group("delays"), layout.group("etl")):
        made.ensure_path(path)
    return made


@pytest.fixture
def post(store: SimulatedStore, tmp_path: Path) -> Post:
    logins = Logins(OperatorsFile(operators_file(tmp_path, alice=TOKEN)).newest)
    operating = Operating(logins, lambda: nullcontext(store), {})

    def posted(path: str, **body: Any) -> tuple[int, Any]:
        raw = json.dumps(body).encode()
        environ = {
            "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(raw)),
            "REMOTE_ADDR": "192.0.2.7",
            "wsgi.input": io.BytesIO(raw),
            "kafka_coord.lasts": lambda: None,
        }
        status, document, _ = operating.answer(environ, f"/api/v1{path}")
        return int(status), to_builtins(document)

    return posted


def stored(store: SimulatedStore, path: str) -> Any:
    return fields.load(store.get(path).data, path)


def test_several_groups_are_shown_and_then_paused(store: SimulatedStore, post: Post) -> None:
    assert post("/groups/delays/pause", reason="mine")[0] == 200
    _, shown = post("/actions/pause", reason="disks", groups=["delays", "etl", "etl"], dry_run=True)
    assert shown["effects"] == [
        "paused already (this pause replaces the other): 1 group (delays)",
        "paused: 1 group (etl)",
    ]
    assert store.exists(layout.paused("etl")) is None
    _, told = post("/actions/pause", confirm=shown["confirm"])
    assert [(one["group"], one["result"]) for one in told["answers"]] == [("delays", "done"), ("etl", "done")]
    pause = stored(store, layout.paused("etl"))
    assert (pause["by"], pause["reason"]) == ("alice@192.0.2.7 over HTTP", "disks")
    assert post("/actions/pause", confirm=shown["confirm"])[0] == 409, "only once"
    post("/groups/etl/resume", reason="done")
    _, told = post("/actions/resume", reason="done", groups=["delays", "etl"])
    assert [(one["group"], one["result"]) for one in told["answers"]] == [("delays", "done"), ("etl", "refused")]


def test_null_restores_a_settings_default(store: SimulatedStore, post: Post) -> None:
    assert post("/groups/etl/settings", reason="x", assignor="range", rebalance_timeout_ms=5)[0] == 200
    _, shown = post("/groups/etl/settings", reason="x", assignor=None, rebalance_timeout_ms=None, dry_run=True)
    assert shown["effects"] == ["group etl: assignor: range → sticky, rebalance_timeout_ms: 5 → 60000"]
    assert stored(store, layout.group("etl"))["assignor"] == "range"
    assert post("/groups/etl/settings", confirm=shown["confirm"])[0] == 200
    assert stored(store, layout.group("etl")) == {"version": 1, "rebalance_timeout_ms": 60_000}
    for wrong in ({}, {"assignor": "none-such"}, {"rebalance_timeout_ms": 0}, {"lag_warning_ms": "1"}):
        assert post("/groups/etl/settings", reason="x", **wrong)[0] == 400, wrong
    assert post("/groups/etl/settings", assignor="range")[0] == 400, "without a reason"


@pytest.mark.parametrize("name", ["", "ETL", "delays"])
def test_a_deletion_needs_the_groups_name(store: SimulatedStore, post: Post, name: str) -> None:
    status, shown = post("/groups/etl/delete", reason="not used")
    assert (status, "answers" in shown) == (200, False), "never without a dry run"
    assert shown["effects"] == ["group etl is removed, with 0 committed offsets, its settings and its history"]
    status, told = post("/groups/etl/delete", confirm=shown["confirm"], name=name)
    assert (status, "type the group's name (name in the API), etl. Nothing was changed" in told["error"]) == (409, True)
    assert post("/groups/delays/delete", confirm=shown["confirm"], name="delays")[0] == 409, "shown for another group"
    assert post("/groups/etl/delete-offsets", confirm=shown["confirm"], name="etl")[0] == 409, "another action"
    assert store.exists(layout.REQUESTS) is None, "no request was written"
