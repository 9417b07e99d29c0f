"""Tests of ``groups list`` and ``describe`` with valid and damaged znodes."""

from __future__ import annotations

import pytest

from kafka_coord.model import GroupSettings, PartitionSet, Pause, StopFetcher
from kafka_coord.zk import layout
from tests.cli.running import Run, run
from tests.coordinator.harness import World
from tests.monitor.written import Tree
from tests.waiting import eventually


@pytest.fixture
def rebalancing(tree: Tree) -> Tree:
    """The group ``delays``: c1 owns two of four partitions. c2 owns one, and was told to stop another."""
    tree.coordinator()
    tree.topic("flights", 4)
    tree.group("delays", GroupSettings(rebalance_timeout_ms=30_000))
    tree.member("delays", "c1", host="host-1", client="library/1")
    incarnation = tree.member("delays", "c2", rack="r1", capacity=2)
    tree.ledger("delays", "c1", "0-1")
    tree.ledger("delays", "c2", "2", stopping="3")
    tree.target("delays", {"c1": "0-1,3", "c2": "2"})
    tree.command("delays", "c2", StopFetcher(3, 7, incarnation, PartitionSet({"flights": [3]}), "member c1 joined"))
    for partition, offset in enumerate((100, 0, 7)):
        tree.offset("delays", "flights", partition, offset)
    return tree


def test_offsets_as_json_have_the_shape_in_docs_operations(rebalancing: Tree, coord: Run) -> None:
    found = coord("groups", "describe", "delays", "--offsets", "-o", "json").json()
    committed = [one.pop("committed_at") for one in found["offsets"]]
    assert [bool(one) for one in committed] == [True, True, True, False]
    row = {"topic": "flights", "holding": "owned", "start_offset": None, "end_offset": None}
    row |= {"lag": None, "gone": None, "lag_s": None, "lag_s_by": None, "unresolved": None}
    assert found == {
        "group": "delays",
        "state": "Rebalancing",
        "generation": 3,
        "kind": "managed",
        "offsets": [
            row | {"partition": 0, "owner": "c1", "committed_offset": 100},
            row | {"partition": 1, "owner": "c1", "committed_offset": 0},
            row | {"partition": 2, "owner": "c2", "committed_offset": 7},
            row | {"partition": 3, "owner": "c2", "committed_offset": None, "holding": "stopping"},
        ],
        "lag": None,
        "worst_lag": None,
        "lag_unknown": 4,
        "gone": None,
        "lag_s": None,
        "lag_s_by": None,
        "lag_note": "lag is unknown: no live broker is registered",
        "unreadable": [],
    }


def test_the_status_names_a_topic_that_does_not_exist(rebalancing: Tree, coord: Run) -> None:
    assert "do not exist" not in coord("groups", "describe", "delays", "--state").out
    rebalancing.member("delays", "c3", topic="nosuch")
    found = coord("groups", "describe", "delays", "--state", "-o", "json").json()
    assert "members subscribe to topics that do not exist: nosuch" in found["status"]


def test_members_as_json(rebalancing: Tree, coord: Run) -> None:
    c1, c2 = coord("groups", "describe", "delays", "--members", "-o", "json").json()["members"]
    since = c2.pop("since")
    (pending,) = c2.pop("pending")
    assert since.endswith("Z")
    assert c1["host"] == "host-1"
    assert c1["client"] == "library/1"
    assert c1["pending"] == []
    assert c2 == {
        "consumer": "c2",
        "registered": True,
        "host": None,
        "client": None,
        "channel": "zookeeper",
        "gateway": None,
        "address": None,
        "heard_ms_ago": None,
        "software": None,
        "protocol": None,
        "epoch": None,
        "held_ms": None,
        "incarnation": rebalancing.incarnations["delays", "c2"],
        "subscription": "flights",
        "mode": "incremental",
        "capacity": 2,
        "rack": "r1",
        "rejoin_grace_ms": 0,
        "owned": {"flights": "2"},
        "stopping": {"flights": "3"},
        "target": {"flights": "2"},
        "refused": {},
    }
    assert pending.pop("since").endswith("Z")
    assert pending == {
        "group": "delays",
        "consumer": "c2",
        "command": "stop-0000000000",
        "type": "stop-fetcher",
        "generation": 3,
        "epoch": 7,
        "incarnation": rebalancing.incarnations["delays", "c2"],
        "for_live": True,
        "partitions": {"flights": "3"},
        "reason": "member c1 joined",
    }


def test_state_as_json(rebalancing: Tree, coord: Run) -> None:
    found = coord("groups", "describe", "delays", "--state", "-o", "json").json()
    assert "c2 to stop flights[3]" in found.pop("status")
    assert found == {
        "group": "delays",
        "state": "Rebalancing",
        "generation": 3,
        "kind": "managed",
        "decided_at": "2024-11-20T00:00:00.000Z",
        "reason": "member c2 joined",
        "coordinator": 1,
        "log_partition": None,
        "assignor": "sticky",
        "member_count": 2,
        "pending": 1,
        "rebalance_timeout_ms": 30_000,
        "offsets_retention_ms": None,
        "lag_warning_ms": None,
        "paused": None,
        "requests": [],
        "unreadable": [],
    }


def test_without_options_a_pipe_gets_all_three_parts_as_text(rebalancing: Tree, coord: Run) -> None:
    ran = coord("groups", "describe", "delays")
    assert ran.code == 0
    assert "Rebalancing" in ran.out
    assert "flights          3  c2     stopping          -      -    -    -      -  -      -" in ran.out.splitlines()
    assert "no live broker is registered" in ran.err
    assert "\x1b" not in ran.out


def test_verbose_shows_more_about_members(rebalancing: Tree, coord: Run) -> None:
    out = coord("groups", "describe", "delays", "--members", "--verbose").out
    assert "INCARNATION" in out
    assert "stop flights[3] since" in out


def test_a_search_finds_groups_topics_and_consumers_by_name_host_and_client(rebalancing: Tree, coord: Run) -> None:
    def found(text: str) -> tuple[list[str], list[str], list[str]]:
        document = coord("search", text, "-o", "json").json()
        return document["groups"], document["topics"], [one["consumer"] for one in document["consumers"]]

    assert found("DEL") == (["delays"], [], [])
    assert found("light") == ([], ["flights"], [])
    assert found("host-1") == found("Library") == found("c1") == ([], [], ["c1"])
    assert coord("search", "no-such").out.splitlines()[::2] == ["groups: none", "topics: none", "consumers: none"]


def test_list_counts_and_filters(rebalancing: Tree, coord: Run) -> None:
    rebalancing.group("other")
    rebalancing.group("third")
    rebalancing.value(layout.paused("third"), Pause("alice", "disks", 1).to_json())

    found = coord("groups", "list", "-o", "json").json()

    assert [(row["group"], row["state"]) for row in found] == [
        ("delays", "Rebalancing"),
        ("other", "Empty"),
        ("third", "Paused"),
    ]
    assert found[0] == {
        "group": "delays",
        "state": "Rebalancing",
        "generation": 3,
        "members": 2,
        "partitions": 4,
        "assignor": "sticky",
        "pending": 1,
        "unreadable": 0,
        "kind": "managed",
        "coordinator": 1,
        "log_partition": None,
    }
    only = coord("groups", "list", "--state", "rebalancing", "-o", "tsv").out.splitlines()
    assert only[1:] == ["delays\tRebalancing\t3\t2\t4\tsticky\t1\t0\tmanaged\t1"]


def test_output_and_zookeeper_can_be_set_by_variables_and_before_the_command(rebalancing: Tree, zk_hosts: str) -> None:
    ran = run("--zookeeper", zk_hosts, "groups", "list", KAFKA_COORD_OUTPUT="json")
    assert ran.json()[0]["group"] == "delays"
    ran = run("groups", "list", zookeeper=zk_hosts, KAFKA_COORD_GROUPS_LIST_OUTPUT="tsv")
    assert ran.out.startswith("group\tstate")


def test_list_says_that_no_coordinator_has_ever_run(coord: Run) -> None:
    ran = coord("groups", "list")
    assert ran.code == 0
    assert "no coordinator has ever run here" in ran.err


@pytest.mark.parametrize(
    "command", [("describe",), ("pause",), ("delete", "--yes"), ("reset-offsets", "--all-topics", "--to-latest")]
)
def test_names_illegal_for_managed_groups_are_refused_if_no_instance_serves_kafka_clients(
    rebalancing: Tree, coord: Run, command: tuple[str, ...]
) -> None:
    ran = coord("groups", command[0], "a/b", *command[1:])
    assert ran.code == 2
    assert "group name 'a/b' is not legal: use 1 to 249 of" in ran.err


def test_offsets_of_a_topic_that_was_recreated_do_not_count(tree: Tree, coord: Run) -> None:
    tree.coordinator()
    tree.topic("flights", 2, topic_id="id-of-the-new-topic---")
    tree.group("delays")
    tree.put(layout.topic_offsets("delays", "flights"), b"id-of-the-old-topic---")
    tree.offset("delays", "flights", 0, 55)
    ran = coord("groups", "describe", "delays", "--offsets", "-o", "json")
    assert ran.json()["offsets"] == []
    assert "has been deleted or recreated: flights[0]" in ran.err


def test_offsets_of_a_deleted_topic_do_not_count_and_those_of_one_that_cannot_be_read_do(
    tree: Tree, coord: Run
) -> None:
    tree.coordinator()
    tree.topic("flights", 2)
    tree.put(layout.broker_topic("odd"), b"?")
    tree.group("delays")
    for topic in ("flights", "odd", "dropped"):
        tree.offset("delays", topic, 0, 55)
    ran = coord("groups", "describe", "delays", "--offsets", "-o", "json")
    assert [one["topic"] for one in ran.json()["offsets"]] == ["flights", "odd"]
    assert "has been deleted or recreated: dropped[0]" in ran.err


def test_a_group_that_stopped_early_counts_what_its_members_were_subscribed_to(tree: Tree, coord: Run) -> None:
    tree.coordinator()
    for topic in ("flights", "copied"):
        tree.topic(topic, 3, topic_id=f"id-of-{topic}".ljust(22, "-"))
        tree.offset("delays", topic, 0, 55)
    tree.put(layout.topic_offsets("delays", "flights"), b"id-of-flights--------- 2")
    tree.put(layout.topic_offsets("delays", "copied"), b"id-of-copied----------")
    shown = coord("groups", "describe", "delays", "--offsets", "-o", "json").json()["offsets"]
    found = [(one["topic"], one["partition"], one["committed_offset"]) for one in shown]
    assert found == [("copied", 0, 55), ("flights", 0, 55), ("flights", 1, None), ("flights", 2, None)]
    assert coord("groups", "list", "--lag", "-o", "json").json()[0]["lag_unknown"] == 4


HOSTILE = [
    b"",
    b"not json",
    b"\xff\xfe",
    b"[]",
    b'{"version":99}',
    b'{"version":1}' + b" " * 20,
    b'{"version":1,"subscription":{"a b":1},"members":[],"owned":3,"incarnation":"x","type":7,"decisions":{}}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_malformed_znodes_everywhere_do_not_hide_other_groups(rebalancing: Tree, coord: Run, value: bytes) -> None:
    """A group in which every value is malformed does not affect the output about another group. The output names the
    malformed znodes."""
    bad, tree = "mangled", rebalancing
    tree.group(bad)
    for path in (
        layout.group(bad),
        layout.registration(bad, "c1"),
        layout.ledger(bad, "c1"),
        layout.assignment(bad),
        layout.history(bad),
        layout.paused(bad),
        f"{layout.channel(bad, 'c1')}/stop-0000000001",
        f"{layout.channel(bad, 'c1')}/not-a-command",
        layout.offset(bad, "flights", 0),
        f"{layout.topic_offsets(bad, 'flights')}/nonsense",
        layout.broker_topic("mangled"),
        layout.PAUSED if value == b"" else "/consumers/other",
        f"{layout.REQUESTS}/request-0000000009",
        layout.broker(1),
        f"{layout.GROUPS}/not legal",
    ):
        tree.put(path, value)
    if value == b"":
        tree.store.delete(layout.PAUSED)

    rows = coord("groups", "list", "-o", "json").json()
    assert {row["group"] for row in rows} == {bad, "delays"}
    good = coord("groups", "describe", "delays", "--offsets", "--members", "-o", "json").json()
    assert good["state"] == "Rebalancing"
    assert len(good["offsets"]) == 4
    described = coord("groups", "describe", bad, "-o", "json")
    named = {one["path"] for one in described.json()["unreadable"]}
    assert layout.registration(bad, "c1") in named
    assert layout.ledger(bad, "c1") in named
    assert layout.offset(bad, "flights", 0) in named
    assert f"{layout.topic_offsets(bad, 'flights')}/nonsense" in named
    assert f"unreadable: {layout.ledger(bad, 'c1')}: " in described.err
    for command in (
        ("groups", "history", bad),
        ("groups", "settings", bad),
        ("channel", "list"),
        ("channel", "show", bad),
        ("coordinator", "status"),
        ("coordinator", "requests"),
        ("watch", "--count", "1"),
        ("doctor",),
    ):
        ran = coord(*command)
        assert ran.code in {0, 3, 10}, (command, ran)
        assert "Traceback" not in ran.err
        assert "unexpected" not in ran.err


def test_describe_shows_stable_once_the_group_has_settled(world: World, coord: Run) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.consumer("c2").join()

    def stable() -> bool:
        found = coord("groups", "describe", "delays", "-o", "json").json()
        held = {row["owner"] for row in found["offsets"]}
        return found["state"] == "Stable" and held == {"c1", "c2"} and found["pending"] == 0

    eventually(stable)


def test_a_pattern_matches_whole_names(tree: Tree, coord: Run) -> None:
    for topic, partitions in {"flights": 4, "flights-old": 1, "routes": 2, "__consumer_offsets": 1}.items():
        tree.topic(topic, partitions)

    def taken(*arguments: str) -> dict[str, int]:
        return {row["topic"]: row["partitions"] for row in coord("groups", "match", *arguments, "-o", "json").json()}

    assert taken("flights") == {"flights": 4}
    assert taken("flights.*|routes") == {"flights": 4, "flights-old": 1, "routes": 2}
    assert taken("flights.*,routes") == {}  # a comma is a comma, as RE2 says
    assert taken("flights.*", "--exclude") == {"routes": 2}
    assert coord("groups", "match", "none").err == "0 of 4 topics\n"
    assert coord("groups", "match", "(").code == 2


def test_two_thousand_groups_are_listed_in_a_few_reads(tree: Tree, coord: Run) -> None:
    from kafka_coord.zk.store import Create

    tree.coordinator()
    paths = [f"{layout.GROUPS}/group-{number}" for number in range(2_000)]
    for at in range(0, len(paths), 250):
        part = paths[at : at + 250]
        tree.store.multi([Create(path) for path in part] + [Create(f"{path}/ids") for path in part])
    reads: list[int] = []
    read_many = tree.store.read_many

    def counted(wanted):  # type: ignore[no-untyped-def]
        reads.append(len(wanted))
        return read_many(wanted)

    from kafka_coord.groups.cluster import read_cluster
    from kafka_coord.groups.instances import AskedInstances
    from kafka_coord.groups.managed import ManagedVerbs

    tree.store.read_many = counted  # type: ignore[method-assign]
    listed = ManagedVerbs(AskedInstances(tree.store, {})).list(read_cluster(tree.store), None, None)
    assert len(listed.rows) == 2_000
    assert len(reads) <= 4


def test_the_status_names_the_znode_that_prevents_the_start_of_a_partition(tree: Tree, coord: Run) -> None:
    """The coordinator tells no consumer to start the partition, so the status must not say so either."""
    tree.coordinator()
    tree.topic("flights", 1)
    tree.group("delays")
    tree.member("delays", "b2")
    tree.ledger("delays", "b2")
    tree.target("delays", {"b2": "0"})
    assert "told b2 to start" in status(coord)
    tree.offset("delays", "flights", 0, b"garbage")
    assert "cannot start flights[0]: /consumers/groups/delays/offsets/flights/0 is unreadable" in status(coord)
    assert "told" not in status(coord)


def test_the_status_names_an_unreadable_command(tree: Tree, coord: Run) -> None:
    tree.coordinator()
    tree.topic("flights", 1)
    tree.group("delays")
    tree.member("delays", "g1")
    tree.ledger("delays", "g1", owned="0")
    tree.target("delays", {"g1": "0"})
    tree.put(layout.command("delays", "g1", "stop-0000000099"), b"garbage")
    assert "g1 cannot read its command stop-0000000099" in status(coord)
    assert "waiting for g1" not in status(coord)


def status(coord: Run) -> str:
    return str(coord("groups", "describe", "delays", "--state", "-o", "json").json()["status"])
