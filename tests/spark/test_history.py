"""Tests of the job ``history``, with input from real coordinators and consumers, and with evidence written by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import MalformedValue, NotFound
from kafka_coord.groups.managed import read_trail
from kafka_coord.model import Cause, Request, RequestType
from kafka_coord.spark.jobs import DecidedAt, Evidence, HeldPartition, read_evidence, write_history
from kafka_coord.zk.session import connect
from kafka_coord.zk.store import Store
from tests.audit.conftest import logged_server, world
from tests.cli.running import run
from tests.coordinator.conftest import expire
from tests.coordinator.harness import World
from tests.waiting import eventually

__all__ = ["expire", "logged_server", "world"]


def test_zookeepers_log_has_the_decisions_and_the_owners(
    world: World,
    logged_server: ZooKeeperServer,
    expire: Callable[[Store], None],
):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c2 = world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    expire(c2.store)
    world.settles("c1", partitions=4)
    world.ask(Request(RequestType.REBALANCE, group="delays", reason="tidy", by="me"))
    world.consumer("c3").join()
    world.settles("c1", "c3", partitions=4)
    world.ask(Request(RequestType.EVICT, group="delays", consumer="c1", reason="too slow", by="me"))
    world.settles("c3", partitions=4)
    eventually(lambda: world.history()[-1].settled_ms is not None)  # set after the rebalance has ended

    found = read_evidence([Path(logged_server.directory)], chroot=f"/{world.hosts.partition('/')[2]}")

    store = connect(world.hosts)
    try:
        kept = read_trail(store, "delays").decisions
    finally:
        store.close()
    assert [(one.generation, one.reason, one.causes, one.settled_ms) for one in found.decisions] == [
        (one.generation, one.reason, one.causes, one.settled_ms) for one in kept
    ]
    assert all(one.causes for one in found.decisions)
    assert len(kept) >= 5
    endings = Counter((held.consumer, held.ending) for held in found.holds)
    # c1 gives two partitions each to c2 and c3, and loses the rest when it is evicted
    assert endings == {
        ("c1", "stopped"): 4,
        ("c1", "evicted"): 2,
        ("c2", "session ended"): 2,
        ("c3", "held at the end"): 4,
    }
    assert all(held.end_ms is None or held.end_ms >= held.begin_ms for held in found.holds)
    assert found.unreadable == 0


def test_the_reports_sums_match_the_evidence(spark, tmp_path):
    def decided(generation: int, causes: tuple[str, ...], settled_ms: int | None, moved: int = 0) -> DecidedAt:
        at_ms, reason = generation * 1000, "member c3 left: what a sentence says decides nothing"
        return DecidedAt("run", "delays", generation, 1, at_ms, reason, causes, "sticky", 2, 4, moved, None, settled_ms)

    def held(
        partition: int, consumer: str, begin: int, end: int | None, ending: str = "stopped", left: int = 1
    ) -> HeldPartition:
        return HeldPartition("run", "delays", "flights", partition, consumer, begin, end, ending, left)

    evidence = Evidence(
        decisions=[
            decided(1, (Cause.MEMBER_JOINED,), 100),
            decided(2, (Cause.MEMBER_JOINED, Cause.MEMBER_LEFT), 300, moved=2),
            decided(3, (Cause.OPERATOR,), None),
            decided(4, (Cause.TOPIC_CHANGED,), 50),
            decided(5, (), 10),
            decided(6, (Cause.MEMBER_LEFT,), 5),
        ],
        holds=[
            held(0, "c1", 0, 10_000),
            held(0, "c2", 10_040, 25_000, "session ended"),
            held(0, "c1", 31_000, None),
            held(1, "c1", 0, 500, left=0),
            held(2, "c2", 0, 700),
        ],
        unreadable=1,
    )
    report = write_history(spark, evidence, str(tmp_path))

    rebalances = {row["cause"]: row for row in report.read("rebalances").to_pylist()}
    assert {cause: row["decisions"] for cause, row in rebalances.items()} == {
        Cause.MEMBER_JOINED: 2,
        Cause.MEMBER_LEFT: 2,
        Cause.OPERATOR: 1,
        Cause.TOPIC_CHANGED: 1,
        "unknown": 1,
    }
    joined = rebalances[Cause.MEMBER_JOINED]
    assert (joined["moved"], joined["settled_max_ms"]) == (2, 300)
    assert rebalances[Cause.OPERATOR]["settled"] == 0

    gaps = {row["ending"]: row for row in report.read("without_owner").to_pylist()}
    assert (gaps["stopped"]["times"], gaps["stopped"]["max_ms"], gaps["stopped"]["not_taken_up"]) == (1, 40, 1)
    assert (gaps["session ended"]["times"], gaps["session ended"]["total_ms"]) == (1, 6_000)
    assert gaps["the last member was gone"]["not_taken_up"] == 1

    assert (report.decisions, report.holds, report.unreadable) == (6, 5, 1)

    empty = write_history(spark, Evidence(), str(tmp_path))
    assert all(empty.read(part).num_rows == 0 for part in ("rebalances", "without_owner"))


def test_printed_histories_and_history_znodes_are_both_read(tmp_path):
    decision = {"generation": 3, "decided_at": "2026-01-31T12:00:00.123Z", "epoch": 1, "reason": "member c1 joined"}
    printed, znode = tmp_path / "delays.json", tmp_path / "fares.json"
    printed.write_text(json.dumps([decision]))
    znode.write_text(json.dumps({"version": 1, "decisions": [decision | {"decided_at_ms": 5}]}))
    found = read_evidence([printed, znode])
    assert [(one.group, one.generation, one.at_ms) for one in found.decisions] == [
        ("delays", 3, 1_769_860_800_123),
        ("fares", 3, 5),
    ]


@pytest.mark.parametrize("content", ["", "{", "[1]", '"x"', '{"version": 9}', '[{"generation": "x"}]', "[[[[" * 99_999])
def test_a_file_without_evidence_is_refused(content, tmp_path):
    path = tmp_path / "delays.json"
    path.write_text(content)
    with pytest.raises(MalformedValue, match=r"delays\.json"):
        read_evidence([path])
    with pytest.raises(NotFound):
        read_evidence([tmp_path / "nowhere"])


def test_the_command_reports_missing_arguments_and_files(tmp_path):
    ran = run("pipeline", "run", "history", "--output", str(tmp_path))
    assert ran.code == 2
    assert "give a PATH or a --group" in ran.err
    ran = run("pipeline", "run", "history", "--output", str(tmp_path), str(tmp_path / "nowhere"))
    assert ran.code == 7
