"""Everything that stops coordination is reported in status, listings, health and doctor."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial

import pytest

from kafka_coord.model import Subscription
from kafka_coord.monitor.metrics import MetricsServer
from kafka_coord.zk import layout
from tests.cli.running import Ran, Run, run
from tests.coordinator.harness import Instance, World
from tests.trouble.conftest import put
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

OFFSET = layout.offset("delays", "flights", 0)


@pytest.fixture
def coord(world: World) -> Run:
    return partial(run, zookeeper=world.hosts)


@pytest.fixture
def elected(world: World) -> Instance:
    return world.instance(1).start_elected()


@pytest.fixture
def served(elected: Instance) -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1:0", elected.service, elected.store)
    yield server
    server.close()


def findings(coord: Run, path: str) -> list[dict[str, str]]:
    """The doctor's errors that name ``path``. Also checks the doctor's exit code."""
    ran = coord("doctor", "-o", "json")
    found = [one for one in json.loads(ran.out) if one["severity"] == "error" and path in one["what"]]
    assert ran.code == 10 or not found
    return found


def healthy(served: MetricsServer) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/health", timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused as answer:
            return answer.code, json.loads(answer.read())


def in_list(ran: Ran, group: str = "delays") -> dict[str, object]:
    return next(row for row in ran.json() if row["group"] == group)


def test_an_unreadable_offset_is_reported_everywhere_with_a_remedy(world: World, elected: Instance, coord: Run) -> None:
    world.store.ensure_path(layout.group("delays"))
    put(world, OFFSET, b"x")
    assert in_list(coord("groups", "list", "-o", "json"))["unreadable"] == 1  # even before a consumer needs it
    world.consumer("c1").join()
    eventually(lambda: in_list(coord("groups", "list", "-o", "json"))["partitions"] == 3)

    (found,) = findings(coord, OFFSET)

    assert f"{OFFSET}: b'x' is not an offset" in found["what"]
    assert "kafka-coord groups reset-offsets delays --topic flights:0 --to-offset N --execute" in found["todo"]
    assert in_list(coord("groups", "list", "-o", "json"))["unreadable"] == 1
    described = coord("groups", "describe", "delays", "-o", "json").json()
    assert [one["path"] for one in described["unreadable"]] == [OFFSET]
    assert f"unreadable: {OFFSET}" in coord("groups", "describe", "delays").err


def test_an_unreadable_offset_can_be_deleted_with_a_command(world: World, elected: Instance, coord: Run) -> None:
    world.store.ensure_path(layout.group("delays"))
    put(world, OFFSET, b"x")
    ran = coord("groups", "delete-offsets", "delays", "--topic", "flights:0", "--yes")
    assert ran.code == 0, ran.err
    assert world.node(OFFSET) is None


def test_offsets_without_a_readable_topic_identity_are_reported(world: World, elected: Instance, coord: Run) -> None:
    world.store.ensure_path(layout.group("delays"))
    put(world, OFFSET, b"3")
    path = layout.topic_offsets("delays", "flights")
    world.store.set(path, b"not an identity!")
    (found,) = findings(coord, path)
    identity = re.search(r"set it to '([^']+)'", found["what"])
    assert identity is not None
    world.store.set(path, identity[1].encode())
    assert findings(coord, path) == []


@pytest.mark.parametrize("written", [b"garbage", b"", b"-3", b"9" * 40, b"\xff"])
def test_an_unreadable_epoch_is_reported_within_seconds_and_its_remedy_works(
    world: World, elected: Instance, served: MetricsServer, coord: Run, written: bytes
) -> None:
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    assert healthy(served)[0] == 200
    assert coord("coordinator", "status").code == 0

    world.store.set(layout.COORDINATOR_EPOCH, written)  # no other event follows

    status, said = eventually(lambda: (found := healthy(served))[0] == 503 and found)
    assert status == 503
    assert "cannot elect anyone" in str(said["problems"])
    asked = coord("coordinator", "status")
    assert asked.code == 7
    assert "NO WORKING COORDINATOR" in asked.out
    assert "NO WORKING COORDINATOR: /consumers/coordinator_epoch" in asked.err
    assert "NO WORKING COORDINATOR" in coord("groups", "list").err
    assert "NO WORKING COORDINATOR" in coord("watch", "--count", "1", "--no-lag").out
    (found,) = findings(coord, layout.COORDINATOR_EPOCH)
    remedy = re.search(rf"zkCli\.sh -server {world.hosts} set (\S+) (\d+)$", found["todo"])
    assert remedy is not None

    world.store.set(remedy[1], remedy[2].encode())

    eventually(lambda: elected.service.leads)
    eventually(lambda: healthy(served)[0] == 200)
    assert findings(coord, layout.COORDINATOR_EPOCH) == []
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)


def test_an_epoch_that_was_set_back_by_hand_is_not_used_again(world: World, elected: Instance) -> None:
    for _ in range(3):
        world.store.delete(layout.COORDINATOR)
        eventually(lambda: elected.service.leads and world.node(layout.COORDINATOR) is not None)
    highest = world.value(layout.COORDINATOR)["epoch"]
    world.store.set(layout.COORDINATOR_EPOCH, b"1")
    eventually(lambda: (node := world.node(layout.COORDINATOR_EPOCH)) is not None and int(node.data) > highest)
    eventually(lambda: elected.service.leads)
    assert world.value(layout.COORDINATOR)["epoch"] > highest


@pytest.mark.parametrize("written", [b"", b"\xff", b"[]", b'{"version":1,"brokerid":2}'])
def test_an_instance_restores_its_own_znode_after_another_client_changed_it(
    world: World, elected: Instance, written: bytes
) -> None:
    path = layout.instance(1)
    before = world.value(path)
    world.store.set(path, written)
    eventually(lambda: (node := world.node(path)) is not None and node.data != written)
    assert world.value(path) | {"timestamp": ""} == before | {"timestamp": ""}


def test_a_damaged_command_is_counted_and_reported(world: World, elected: Instance, coord: Run) -> None:
    world.consumer("c1", obedient=False).join()
    (name,) = eventually(lambda: world.children(layout.channel("delays", "c1")))
    path = layout.command("delays", "c1", name)
    world.store.set(path, b"{")
    assert in_list(coord("groups", "list", "-o", "json"))["unreadable"] == 1
    (found,) = findings(coord, path)
    assert found["todo"]


def test_unreadable_settings_are_not_shown_as_the_defaults(world: World, elected: Instance, coord: Run) -> None:
    put(world, layout.group("delays"), b'{"version":9}')
    shown = coord("groups", "settings", "delays")
    assert shown.code == 3
    assert shown.out == ""
    remedy = re.search(r"kafka-coord (groups settings delays \S+ \d+)", shown.err)
    assert remedy is not None
    assert coord(*remedy[1].split()).code == 0
    assert coord("groups", "settings", "delays").code == 0


def test_the_remedy_for_an_illegal_group_name_names_no_command(world: World, elected: Instance, coord: Run) -> None:
    path = f"{layout.GROUPS}/no such group"
    put(world, path, b"")
    (found,) = findings(coord, path)
    assert "kafka-coord" not in found["todo"]
    assert "delete the znode with everything below it" in found["todo"]


def test_an_unknown_group_and_an_unknown_state_are_errors(world: World, elected: Instance, coord: Run) -> None:
    watched = coord("watch", "nope", "--count", "1")
    assert watched.code == 7
    assert "no group 'nope'" in watched.err
    listed = coord("groups", "list", "--state", "bogus")
    assert listed.code == 2
    assert "rebalancing" in listed.err.lower()
    assert coord("groups", "list", "--state", "stable").code == 0


def test_a_partition_without_an_owner_for_longer_than_a_session_is_an_error(world: World, coord: Run) -> None:
    """No coordinator has run since a member registered, so the doctor uses only the contents of ZooKeeper."""
    world.store.ensure_path(layout.REQUESTS)
    world.consumer("c1", subscription=Subscription.to(["flights"])).join()
    within = coord("doctor", "-o", "json")
    assert "NO ONE OWNS" not in within.out
    found = eventually(lambda: findings(coord, "group delays: NO ONE OWNS flights[0-3]"), every_s=1.0)
    assert len(found) == 1
