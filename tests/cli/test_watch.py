"""Tests of ``watch`` on a terminal, in a pipe, and while ZooKeeper is unreachable."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from kafka_coord.cli.watch import _fitting, ordered
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.groups.directory import Overview, OwnerRow, read_overview
from kafka_coord.groups.group import GroupRow, LagTotal
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.lag import LagService
from kafka_coord.model import GroupKind, PartitionSet
from tests.cli.running import PROGRAM, Run, environment, started
from tests.coordinator.harness import World
from tests.monitor.written import Tree
from tests.waiting import eventually


def test_a_pipe_gets_one_view_after_the_other(world: World, coord: Run) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    out = coord("watch", "--count", "2", "--interval", "0.1").out
    assert out.count("broker 1 coordinates, epoch 1; 1 group\n") == 2
    assert out.count("flights[0-3]") == 2
    lines = coord("watch", "--count", "1", "-o", "csv").out.splitlines()
    assert {"# groups", "# owners", "group,state,generation,members,partitions,pending,lag,lag_s,lag_s_by,gone"} < {
        *lines
    }


def test_with_json_each_line_is_one_object(world: World, coord: Run) -> None:
    world.instance(1).start_elected()
    world.consumer("c1", obedient=False).join()
    eventually(world.outstanding)
    lines = coord("watch", "--count", "2", "--interval", "0.1", "-o", "json").out.splitlines()
    first, _ = (json.loads(line) for line in lines)
    assert first["groups"][0]["state"] == "Rebalancing"
    assert first["owners"][0] == {
        "group": "delays",
        "consumer": "c1",
        "owned": {"flights": "0-3"},
        "stopping": {},
        "pending": 1,
        "lag": None,
        "worst_lag": None,
        "lag_unknown": 4,
        "gone": None,
        "lag_s": None,
        "lag_s_by": None,
    }
    assert first["left_out"] == 0
    assert first["commands"][0]["type"] == "start-fetcher"
    assert "no live broker" in first["lag_note"]


def test_groups_that_do_not_fit_are_counted(tree: Tree, coord: Run) -> None:
    tree.coordinator()
    for number in range(27):
        tree.group(f"group-{number:02}")
    left_out = "27 groups; owners and lag of 7 of them are not shown: name up to 20 groups"
    assert left_out in coord("watch", "--count", "1").out
    frame = json.loads(coord("watch", "--count", "1", "-o", "json").out)
    assert (len(frame["groups"]), frame["left_out"]) == (27, 7)
    assert left_out not in coord("watch", "group-00", "--count", "1").out

    overview = read_overview(AskedInstances(tree.store, {}), [], None, LagService())
    for height, shown in ((60, 27), (20, 12), (12, 4), (4, 0)):
        lines = screen(overview, 250, height)
        assert len(lines) <= height
        assert sum(" Empty " in line for line in lines) == shown
        assert (f" {27 - shown} more groups below" in lines) is (shown < 27)


def test_the_screen_is_filled_with_the_worst_first_and_says_how_many_are_below() -> None:
    def group(number: int) -> GroupRow:
        name, kind = f"group-{number:02}", GroupKind.MANAGED
        return GroupRow(
            group=name, state=GroupState.STABLE, members=1, partitions=3, assignor="sticky", kind=kind, coordinator=None
        )

    def owner(group: str, lag: LagTotal) -> OwnerRow:
        owned = PartitionSet({"flights": [0, 1, 2]})
        return OwnerRow(
            **lag.fields(), group=group, consumer=f"{group}-c", owned=owned, stopping=PartitionSet({}), pending=0
        )

    cluster: Any = SimpleNamespace(coordinator=None, undecided="", pause=None)
    lags = {f"group-{at:02}": LagTotal(10_000 - at, None, 0, None, float(at) if at else None, None) for at in range(12)}
    owners = tuple(owner(group, lag) for group, lag in lags.items())
    read = Overview(cluster, tuple(map(group, range(20))), lags, owners[:4], (), "")
    by_name = sorted(f"group-{number:02}" for number in range(20))
    assert [row.group for row in ordered(read, "name").groups] == by_name
    assert [row.group for row in ordered(read, "lag").groups][:12] == by_name[:12], "the most records first"
    assert [row.consumer for row in ordered(read, "lag").owners] == [row.consumer for row in owners[:4]]
    overview = ordered(read, "lag-s")
    for width, height in ((80, 24), (80, 40), (120, 12), (80, 60)):
        lines = screen(overview, width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        told = [line.split()[0] for line in lines if " Stable " in line]
        assert told == [f"group-{number:02}" for number in (*range(11, 0, -1), 0, *range(12, 20))][: len(told)]
        assert (f" {20 - len(told)} more groups below" in lines) is (len(told) < 20)
        assert len(told) == 20 or height - len(lines) <= 1, "the screen is full"
    assert [line.split()[1] for line in lines if "-c " in line] == [f"group-{number:02}-c" for number in (3, 2, 1, 0)]


def screen(overview: Overview, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(_fitting(overview, console))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_terminal_gets_a_live_view_and_its_screen_is_restored(world: World, zk_hosts: str) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "watch", "--interval", "0.1", "-z", zk_hosts],
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm-256color", COLUMNS="100", LINES="40"),
    )
    os.close(theirs)
    try:
        shown = b""
        while b"flights[0-3]" not in shown or b"Stable" not in shown:
            shown += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # EIO means that the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"\x1b[?1049h" in shown, "the view must use the alternate screen"
    assert b"\x1b[?1049l" in shown, "the view must restore the screen"


def test_the_view_continues_after_a_zookeeper_outage(zookeeper_server_factory: Callable[..., ZooKeeperServer]) -> None:
    server = zookeeper_server_factory()
    arguments = ("watch", "--no-lag", "--interval", "0.1", "-o", "json", "-z", server.connect_string)
    with started(*arguments, KAFKA_COORD_ZOOKEEPER_SESSION_TIMEOUT_MS="6000") as process:
        assert "groups" in json.loads(process.line())
        server.kill()
        while "error" not in (found := json.loads(process.line())):
            pass
        assert found["error"].startswith("ZooKeeper does not respond: ")
        server.start()
        while "groups" not in json.loads(process.line()):
            pass
        ran = process.ended(by=signal.SIGINT)
    assert ran.code == 130
    assert "Traceback" not in ran.err
