"""Operates groups through a real coordinator: requests, answers, refusals, waiting."""

from __future__ import annotations

import signal
import threading

import pytest

from kafka_coord.model import Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.requests import read_requests
from kafka_coord.zk import layout
from tests.cli.running import Run, started
from tests.coordinator.harness import World
from tests.waiting import eventually


@pytest.fixture
def elected(world: World) -> World:
    world.instance(1).start_elected()
    return world


def stable(coord: Run, members: int, group: str = "delays") -> bool:
    found = coord("groups", "list", "-o", "json").json()
    return any(row["group"] == group and row["state"] == "Stable" and row["members"] == members for row in found)


def test_rebalance_makes_a_new_generation_and_waits_for_it(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    before = coord("groups", "describe", "delays", "-o", "json").json()["generation"]

    ran = coord("groups", "rebalance", "delays", "--reason", "more memory", "--wait", "-o", "json")

    (answer,) = ran.json()
    assert answer["result"] == "done"
    after = coord("groups", "describe", "delays", "-o", "json").json()
    assert after["generation"] == before + 1
    history = coord("groups", "history", "delays", "-o", "json").json()
    assert history[-1]["generation"] == before + 1
    assert "more memory" in history[-1]["reason"]
    assert read_requests(elected.store) == ((), ())


def test_history_lists_moves(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    out = coord("groups", "history", "delays", "--verbose").out
    assert "member c1 joined" in out
    assert "flights[0-3]" in out
    assert coord("groups", "history", "nobody").code == 7


def test_evict_takes_the_registration_and_the_partitions(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    elected.consumer("c2").join()
    eventually(lambda: stable(coord, 2))

    ran = coord("groups", "evict", "delays", "c2", "--reason", "stuck", "--wait")

    assert ran.code == 0, ran.err
    found = coord("groups", "describe", "delays", "--members", "-o", "json").json()["members"]
    assert [(row["consumer"], row["owned"]) for row in found] == [("c1", {"flights": "0-3"})]
    ran = coord("groups", "evict", "delays", "c2")
    assert ran.code == 6
    assert "not a member" in ran.err


def test_a_paused_group_stays_as_it_is_until_resumed(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))

    assert coord("groups", "pause", "delays", "--reason", "disks", "--wait").code == 0
    elected.consumer("c2").join()
    found = coord("groups", "describe", "delays", "--state", "-o", "json").json()
    assert found["state"] == "Paused"
    assert found["paused"]["reason"] == "disks"
    assert "@" in found["paused"]["by"]
    waited = coord("groups", "rebalance", "delays", "--timeout", "0.3")
    assert waited.code == 8

    assert coord("groups", "resume", "delays", "--wait").code == 0
    assert stable(coord, 2)
    again = coord("groups", "resume", "delays")
    assert again.code == 6
    assert "not paused; nothing was changed" in again.err


def test_all_groups_are_paused_and_resumed_at_once(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    assert coord("groups", "pause", "--all", "--reason", "upgrade", "--wait").code == 0
    elected.consumer("c1", group="second").join()
    assert coord("groups", "describe", "second", "-o", "json").json()["state"] == "Paused"
    assert "ALL GROUPS ARE PAUSED" in coord("coordinator", "status").out
    only = coord("groups", "resume", "delays")
    assert "lift that with: kafka-coord groups resume --all" in only.err
    assert coord("groups", "resume", "--all", "--wait").code == 0
    assert stable(coord, 1, "second")


def test_settings_are_changed_one_by_one_and_obeyed(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    elected.consumer("c2").join()
    eventually(lambda: stable(coord, 2))

    coord("groups", "settings", "delays", "--rebalance-timeout-ms", "30000")
    found = coord("groups", "settings", "delays", "--assignor", "range", "-o", "json").json()

    assert found == {
        "group": "delays",
        "assignor": "range",
        "rebalance_timeout_ms": 30_000,
        "offsets_retention_ms": 604_800_000,
    }
    eventually(lambda: coord("groups", "history", "delays", "-o", "json").json()[-1]["assignor"] == "range")
    assert coord("groups", "settings", "delays", "--assignor", "default", "-o", "json").json()["assignor"] is None
    assert coord("groups", "settings", "nobody", "--assignor", "range").code == 7
    assert coord("groups", "settings", "nobody", "--assignor", "range", "--create").code == 0


def test_a_group_is_deleted_only_without_members_and_when_confirmed(elected: World, coord: Run) -> None:
    consumer = elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    refused = coord("groups", "delete", "delays", "--yes")
    assert refused.code == 6
    consumer.leave()
    eventually(lambda: coord("groups", "list", "--state", "empty", "-o", "json").json())
    unasked = coord("groups", "delete", "delays")
    assert unasked.code == 6
    assert "Add --yes to confirm" in unasked.err

    assert coord("groups", "delete", "delays", "--yes").code == 0

    assert coord("groups", "describe", "delays").code == 7
    assert coord("groups", "delete", "delays", "--yes").code == 7


def test_offsets_are_deleted_only_where_nobody_owns_them(elected: World, coord: Run) -> None:
    consumer = elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    consumer.position.update(dict.fromkeys(consumer.owned, 9))
    refused = coord("groups", "delete-offsets", "delays", "--all-topics", "--yes")
    assert refused.code in {6, 7}
    consumer.leave()
    eventually(lambda: coord("groups", "list", "--state", "empty", "-o", "json").json())

    ran = coord("groups", "delete-offsets", "delays", "--topic", "flights:0-1,3", "--yes")

    assert ran.code == 0, ran.err
    left = coord("groups", "describe", "delays", "--offsets", "-o", "json").json()["offsets"]
    assert [row["partition"] for row in left if row["committed_offset"] is not None] == [2]
    assert coord("groups", "delete-offsets", "delays", "--topic", "flights:0", "--yes").code == 7


def test_resign_hands_over_to_the_other_instance(elected: World, coord: Run) -> None:
    elected.instance(2).start()
    eventually(lambda: len(coord("coordinator", "status", "-o", "json").json()["instances"]) == 2)

    ran = coord("coordinator", "resign", "--reason", "host goes down")

    assert ran.code == 0, ran.err
    eventually(lambda: coord("coordinator", "status", "-o", "json").out.startswith('{\n  "coordinator": 2,'))


def test_without_a_coordinator_a_request_stays_queued_and_says_so(world: World, coord: Run) -> None:
    world.store.ensure_path(layout.group("delays"))

    ran = coord("groups", "rebalance", "delays", "--timeout", "0.5")

    assert ran.code == 8
    assert "no coordinator is elected; request-0000000000 stays queued until one is" in ran.err
    assert "withdraw it: kafka-coord coordinator withdraw request-0000000000" in ran.err
    (queued,) = coord("coordinator", "requests", "-o", "json").json()
    assert (queued["request"], queued["type"], queued["group"]) == ("request-0000000000", "rebalance", "delays")
    status = coord("coordinator", "status")
    assert status.code == 7
    assert coord("coordinator", "withdraw", "request-0000000000").code == 0
    assert coord("coordinator", "withdraw", "request-0000000000").code == 7
    assert coord("coordinator", "requests", "-o", "json").json() == []


def test_a_queued_request_is_answered_by_who_is_elected_meanwhile(world: World, coord: Run) -> None:
    world.store.ensure_path(layout.group("delays"))
    later = threading.Thread(
        target=lambda: (eventually(lambda: read_requests(world.store)[0]), world.instance(1).start())
    )
    later.start()
    ran = coord("groups", "rebalance", "delays", "--timeout", "30")
    later.join()
    assert ran.code == 0, ran.err
    assert "done" in ran.out


def test_interrupted_while_waiting_the_request_stays_asked(world: World, zk_hosts: str) -> None:
    world.store.ensure_path(layout.group("delays"))
    with started("groups", "rebalance", "delays", "-z", zk_hosts) as process:
        eventually(lambda: read_requests(world.store)[0])
        ran = process.ended(by=signal.SIGINT)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    assert len(read_requests(world.store)[0]) == 1


def test_an_unreadable_request_in_the_queue_is_named_and_stops_nobody(elected: World, coord: Run) -> None:
    elected.store.ensure_path(f"{layout.REQUESTS}/request-9999999999")
    done = Request(RequestType.LOOK, group="g", result="done", message="looked")
    elected.store.create(layout.REQUEST_PREFIX, fields.dump(done.to_json()), sequence=True)
    ran = coord("coordinator", "requests", "--all")
    assert "looked" not in ran.out
    assert "look" in ran.out
    assert "unreadable: /consumers/requests/request-9999999999" in ran.err
    elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    assert coord("groups", "rebalance", "delays").code == 0


def test_waiting_commands_are_shown_with_their_age(elected: World, coord: Run) -> None:
    elected.consumer("c1", obedient=False).join()
    (waiting,) = eventually(lambda: coord("channel", "list", "-o", "json").json())
    assert waiting["consumer"] == "c1"
    assert waiting["type"] == "start-fetcher"
    assert waiting["for_live"] is True
    assert waiting["partitions"] == {"flights": "0-3"}
    assert waiting["age_ms"] >= 0
    assert "flights[0-3]" in coord("channel", "show", "delays", "--consumer", "c1").out
    assert coord("channel", "show", "delays", "--consumer", "c2").code == 7
    timed_out = coord("groups", "rebalance", "delays", "--wait", "--timeout", "5")
    assert timed_out.code == 8
    assert "commands wait for: c1 (1)" in timed_out.err
