"""Tests of operating groups through a real coordinator: requests, answers, refusals and waiting."""

from __future__ import annotations

import logging
import shlex
import signal
import threading
from functools import partial

import pytest

from kafka_coord.cli.groups.operate import _each
from kafka_coord.cli.options import who
from kafka_coord.errors import BrokerError, RequestRefused
from kafka_coord.groups.requests import ask, read_requests
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.root import MirrorTrouble
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


def test_rebalance_causes_a_new_generation_and_waits_for_it(elected: World, coord: Run) -> None:
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


def test_the_history_has_the_operator_reason_and_change_of_every_action(elected: World, coord: Run, caplog) -> None:
    caplog.set_level(logging.INFO)
    consumer = elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    coord("groups", "settings", "delays", "--assignor", "range", "--reason", "as before")
    coord("groups", "pause", "delays", "--reason", "disks")
    coord("groups", "resume", "delays", "--reason", "disks are back")
    coord("groups", "rebalance", "delays", "--reason", "more memory", "--wait")
    coord("groups", "evict", "delays", "c1", "--reason", "stuck", "--wait")
    consumer.position.clear()
    offsets = {TopicPartition("flights", 0): 7}
    request = Request(RequestType.RESET_OFFSETS, "delays", offsets=offsets, by="alice@here", change="flights 0: - → 7")
    ask(elected.store, request, 10, print)
    coord("groups", "delete-offsets", "delays", "--topic", "flights:0", "--yes", "--reason", "bug 17")

    def trail() -> list[tuple[str, str | None, str | None]]:
        rows = coord("groups", "history", "delays", "--actions", "-o", "json").json()
        assert all("@" in row["by"] and row["at"] for row in rows)
        return [(row["action"], row["reason"], row["change"]) for row in rows]

    expected = [
        ("settings", "as before", "assignor: sticky → range"),
        ("pause", "disks", None),
        ("resume", "disks are back", f"was paused by {who()} (disks)"),
        ("rebalance", "more memory", None),
        ("evict", "stuck", "c1"),
        ("reset-offsets", None, "flights 0: - → 7"),
        ("delete-offsets", "bug 17", "flights 0: 7 → -"),
    ]
    assert trail() == expected
    assert f"{who()}: delete-offsets (bug 17): flights 0: 7 → - group=delays" in caplog.messages
    assert "bug 17" in coord("groups", "history", "delays").out
    elected.instance(2).start()
    coord("coordinator", "resign")
    coord("groups", "rebalance", "delays")
    assert trail() == [*expected, ("rebalance", None, None)]


def test_evict_removes_the_registration_and_the_partitions(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    elected.consumer("c2").join()
    eventually(lambda: stable(coord, 2))

    ran = coord("groups", "evict", "delays", "c2", "--reason", "stuck", "--wait")

    assert ran.code == 0, ran.err
    found = coord("groups", "describe", "delays", "--members", "-o", "json").json()["members"]
    assert [(row["consumer"], row["owned"]) for row in found] == [("c1", {"flights": "0-3"})]
    ran = coord("groups", "evict", "delays", "c1", "c2")
    assert ran.code == 7
    assert "c2 is not a member of group delays, whose members are c1; no one was evicted" in ran.err
    assert coord("groups", "evict", "nobody", "c1").code == 7
    assert coord("groups", "rebalance", "nobody").code == 7
    assert stable(coord, 1)


def test_evict_accepts_several_consumers(elected: World, coord: Run) -> None:
    for name in ("c1", "c2", "c3"):
        elected.consumer(name).join()
    eventually(lambda: stable(coord, 3))
    ran = coord("groups", "evict", "delays", "c2", "c3", "--wait", "-o", "json")
    assert [answer["result"] for answer in ran.json()] == ["done", "done"]
    assert stable(coord, 1)


def test_a_paused_group_does_not_change_until_it_is_resumed(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))

    assert coord("groups", "pause", "delays", "--reason", "disks", "--wait").code == 0
    elected.consumer("c2").join()
    found = coord("groups", "describe", "delays", "--state", "-o", "json").json()
    assert found["state"] == "Paused"
    assert found["paused"]["reason"] == "disks"
    assert "@" in found["paused"]["by"]
    waited = coord("groups", "rebalance", "delays", "--wait")
    assert waited.code == 8
    assert f"is pending, because group 'delays' is paused by {who()} since 20" in waited.err
    assert ": disks. To withdraw the request: kafka-coord coordinator withdraw request-" in waited.err
    (pending,) = coord("groups", "describe", "delays", "--state", "-o", "json").json()["requests"]
    assert (pending["type"], pending["by"], pending["result"]) == ("rebalance", who(), None)
    assert "rebalance by" in coord("groups", "describe", "delays", "--state").out

    assert coord("groups", "resume", "delays", "--wait").code == 0
    assert stable(coord, 2)
    again = coord("groups", "resume", "delays")
    assert again.code == 6
    assert "not paused; nothing was changed" in again.err


def test_all_groups_can_be_paused_and_resumed_together(elected: World, coord: Run) -> None:
    elected.consumer("c1").join()
    eventually(lambda: stable(coord, 1))
    assert coord("groups", "pause", "--all", "--reason", "upgrade", "--wait").code == 0
    elected.consumer("c1", group="second").join()
    assert coord("groups", "describe", "second", "-o", "json").json()["state"] == "Paused"
    assert f"all groups are paused by {who()} since 20" in coord("coordinator", "status").out
    stored = elected.store.get(layout.PAUSED)
    elected.store.set(layout.PAUSED, b"\xff")
    assert "all groups are paused (the operator's name cannot be read)" in coord("coordinator", "status").out
    elected.store.set(layout.PAUSED, stored.data)
    only = coord("groups", "resume", "delays")
    assert "to resume all: kafka-coord groups resume --all" in only.err
    assert coord("groups", "resume", "--all", "--wait").code == 0
    assert stable(coord, 1, "second")


def test_settings_are_changed_one_by_one_and_take_effect(elected: World, coord: Run) -> None:
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
        "lag_warning_ms": None,
        "origin": {
            "assignor": "znode",
            "rebalance_timeout_ms": "znode",
            "offsets_retention_ms": "brokers",
            "lag_warning_ms": "default",
        },
    }
    eventually(lambda: coord("groups", "history", "delays", "-o", "json").json()[-1]["assignor"] == "range")
    default = coord("groups", "settings", "delays", "--assignor", "default", "-o", "json").json()
    assert (default["assignor"], default["origin"]["assignor"]) == (None, "default")
    assert default["origin"]["rebalance_timeout_ms"] == "znode"
    assert coord("groups", "settings", "nobody", "--assignor", "range").code == 7
    assert coord("groups", "settings", "nobody", "--assignor", "range", "--create").code == 0


def test_settings_and_pauses_are_exported_as_commands_that_restore_them(elected: World, coord: Run) -> None:
    coord("groups", "settings", "a", "--assignor", "range", "--rebalance-timeout-ms", "30000", "--create")
    coord("groups", "settings", "b", "--offsets-retention-ms", "86400000", "--create")
    coord("groups", "settings", "plain", "--create")
    coord("groups", "pause", "b", "--reason", "bob's disks")
    coord("groups", "pause", "--all", "--reason", "upgrade")
    exported = coord("groups", "settings", "--export").out
    assert coord("groups", "settings", "a", "--export").out.splitlines() == [exported.splitlines()[1]]
    before = [coord("groups", "settings", group, "-o", "json").json() for group in ("a", "b", "plain")]
    for group in ("a", "b", "plain"):
        assert coord("groups", "delete", group, "--yes").code == 0
    coord("groups", "resume", "--all")
    for line in exported.splitlines():
        program, *words = shlex.split(line)
        assert program == "kafka-coord"
        assert coord(*words).code == 0, line
    assert [coord("groups", "settings", group, "-o", "json").json() for group in ("a", "b", "plain")] == before
    assert coord("groups", "settings", "--export").out == exported
    assert coord("groups", "settings").code == 2


def test_a_group_is_deleted_only_without_members_and_after_confirmation(elected: World, coord: Run) -> None:
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
    assert coord("groups", "delete", "delays").code == 7


def test_a_dry_run_shows_what_would_happen_and_changes_nothing(elected: World, coord: Run) -> None:
    consumer = elected.consumer("c1").join()
    elected.settles("c1", partitions=4)
    consumer.position = {TopicPartition("flights", 0): 7}
    dry = partial(coord, "groups")
    assert "c1 loses 4 partitions (flights[0-3])" in dry("evict", "delays", "c1", "--dry-run").err
    assert dry("evict", "delays", "c9", "--dry-run").code == 7
    assert "assignor: sticky → range" in dry("settings", "delays", "--assignor", "range", "--dry-run").err
    assert "paused: 1 group (delays)" in dry("pause", "delays", "--dry-run").err
    assert "not paused: 1 group (delays)" in dry("resume", "--all", "--dry-run").err
    assert "it has members (c1), so this is refused" in dry("delete", "delays", "--dry-run").err
    consumer.leave()
    (row,) = dry("delete-offsets", "delays", "--all-topics", "--dry-run", "-o", "json").json()
    assert (row["partition"], row["current_offset"], row["new_offset"], row["repeated"]) == (0, 7, None, None)
    ran = dry("delete", "delays", "--dry-run")
    assert (ran.code, "nothing was changed" in ran.err, "delays is removed, with 1 committed" in ran.err) == (
        0,
        True,
        True,
    )
    assert coord("groups", "history", "delays", "--actions", "-o", "json").json() == []


def test_several_groups_are_paused_and_resumed_by_one_command(elected: World, coord: Run) -> None:
    for group in ("a", "b"):
        elected.store.ensure_path(layout.group(group))
    ran = coord("groups", "pause", "a", "b", "--reason", "moving disks")
    assert ran.out == "2 groups paused; to resume: kafka-coord groups resume a b\n"
    assert coord("groups", "resume", "b").code == 0
    ran = coord("groups", "resume", "a", "b")
    assert (ran.code, "2 of 2: group 'b' is not paused" in ran.err) == (6, True)
    assert "1 group of 2 refused: b\n" in ran.err
    assert elected.node(layout.paused("a")) is None


def test_a_command_on_many_groups_stops_between_two_and_names_those_that_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tried: list[str] = []

    def act(group: str) -> None:
        tried.append(group)
        if group != "c":
            raise BrokerError("no instance serves it") if group == "a" else RequestRefused("group b is rebalancing")

    with pytest.raises(RequestRefused, match=r"^2 groups of 3 refused: a, b$"):
        _each(["a", "b", "c"], act)
    assert capsys.readouterr().err == ("1 of 3: group a: no instance serves it\n2 of 3: group b is rebalancing\n")
    tried.clear()
    _each(["a", "b", "c"], act, lambda: len(tried) == 2)
    assert "stopped after 2 of 3 groups; run the command again for the rest" in capsys.readouterr().err
    with pytest.raises(BrokerError):
        _each(["a"], act)


def test_only_offsets_of_partitions_without_an_owner_are_deleted(elected: World, coord: Run) -> None:
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


def test_resign_hands_over_to_the_named_successor(elected: World, coord: Run) -> None:
    for broker_id in (2, 3):
        elected.instance(broker_id).start()
    for successor, epoch in ((3, 2), (1, 3)):  # and back immediately
        ran = coord("coordinator", "resign", "--to", str(successor))
        assert ran.code == 0, ran.err
        assert ran.out == f"done: broker {successor} is the coordinator (epoch {epoch})\n"
    actions = coord("coordinator", "history", "-o", "json").json()["actions"]
    assert [row["change"] for row in actions] == ["to broker 3", "to broker 1"]
    for successor, problem in (
        (1, "the instance beside broker 1 is already the coordinator"),
        (9, "no instance is running beside broker 9; running instances: 1, 2, 3"),
    ):
        ran = coord("coordinator", "resign", "--to", str(successor))
        assert (ran.code, ran.err) == (6, f"kafka-coord: refused: {problem}\n")


def test_the_cluster_history_has_elections_and_actions_outside_of_existing_groups(elected: World, coord: Run) -> None:
    elected.instance(2).start()
    elected.store.ensure_path(layout.group("delays"))
    coord("groups", "pause", "--all", "--reason", "upgrade")
    coord("groups", "resume", "--all")
    coord("coordinator", "resign", "--reason", "host goes down")
    eventually(lambda: coord("coordinator", "status").code == 0)  # the other one is elected
    coord("groups", "delete", "delays", "--yes", "--reason", "old")

    def seen() -> tuple[list[tuple[int, str, str | None]], list[tuple[str, str | None, str | None]]]:
        found = coord("coordinator", "history", "-o", "json").json()
        assert {row["by"] for row in found["actions"]} <= {who()}
        return (
            [(row["epoch"], row["host"], row["why"]) for row in found["elections"]],
            [(row["action"], row["reason"], row.get("group", row["change"])) for row in found["actions"]],
        )

    resigned = f"an operator asked for it: {who()}: resign (host goes down)"
    expected = (
        [(1, "kafka-1", resigned), (2, "kafka-2", None)],
        [
            ("pause --all", "upgrade", None),
            ("resume --all", None, f"was paused by {who()} (upgrade)"),
            ("resign", "host goes down", None),
            ("delete-group", "old", "delays"),
        ],
    )
    eventually(lambda: seen() == expected)
    elected.store.delete(layout.COORDINATOR)  # ends the election without the coordinator's knowledge
    eventually(lambda: len(seen()[0]) == 3)
    assert seen()[0][1] == (2, "kafka-2", "its session ended, or it was deposed")
    assert resigned in coord("coordinator", "history").out

    for group in ("a", "b", "c"):
        elected.store.ensure_path(layout.group(group))
    coord("groups", "delete", "a", "b", "c", "--yes", "--reason", "all of them")
    eventually(lambda: "3 groups: a, b, c" in coord("coordinator", "history").out)
    lines = coord("coordinator", "history", "--verbose").out.splitlines()
    assert len([line for line in lines if "all of them" in line]) == 3
    assert "4711" in coord("coordinator", "status").out


def test_without_a_coordinator_a_request_stays_queued_and_the_command_says_so(world: World, coord: Run) -> None:
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


def test_the_next_elected_coordinator_answers_a_queued_request(world: World, coord: Run) -> None:
    world.store.ensure_path(layout.group("delays"))
    later = threading.Thread(
        target=lambda: (eventually(lambda: read_requests(world.store)[0]), world.instance(1).start())
    )
    later.start()
    ran = coord("groups", "rebalance", "delays", "--timeout", "30")
    later.join()
    assert ran.code == 0, ran.err
    assert "done" in ran.out


def test_a_request_stays_queued_if_the_waiting_command_is_interrupted(world: World, zk_hosts: str) -> None:
    world.store.ensure_path(layout.group("delays"))
    with started("groups", "rebalance", "delays", "-z", zk_hosts) as process:
        eventually(lambda: read_requests(world.store)[0])
        ran = process.ended(by=signal.SIGINT)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    assert len(read_requests(world.store)[0]) == 1


def test_an_unreadable_request_in_the_queue_is_reported_and_does_not_stop_others(elected: World, coord: Run) -> None:
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
    assert "unacknowledged commands: c1 (1)" in timed_out.err


def test_let_go_shows_what_the_mirror_holds_back_and_asks_only_with_execute(elected: World, coord: Run) -> None:
    assert "no topic is held back" in coord("coordinator", "let-go").err
    held = MirrorTrouble("2 of 3 topics seem to be gone at once", 1, ("fares", "flights"))
    elected.store.create(layout.MIRROR_TROUBLE, held.to_bytes())
    assert coord("coordinator", "let-go", "-o", "json").json() == ["fares", "flights"]
    assert read_requests(elected.store) == ((), ())
    ran = coord("coordinator", "let-go", "--execute", "--reason", "they were deleted")
    assert (ran.code, "this instance keeps no mirror" in ran.err) == (6, True)
