"""Tests of operators' commands for groups of stock Kafka clients."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.groups import instances as asking
from kafka_coord.model import TopicPartition as Wanted
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import read_kinds
from tests.cli.commands import promised
from tests.cli.running import Run, run
from tests.frontends.kafka.conftest import ELECTED, Front, elected, published
from tests.frontends.kafka.java import KafkaTools
from tests.frontends.kafka.peer import Member, Peer
from tests.monitor.dashboard.served import operators_file, serving
from tests.monitor.deleting import delete_records
from tests.monitor.listening import listening
from tests.waiting import delete_all, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
PARTITIONS, RECORDS = 3, 300


@pytest.fixture(scope="module")
def coord(front: Front) -> Iterator[Run]:
    """Runs operators' commands, with a coordinator that records actions."""
    with published(front.store, front.others), elected(front, front.of_elected) as service:
        eventually(lambda: service.leads)  # its threads are not a test's
        yield partial(run, zookeeper=front.cluster.zookeeper)


@pytest.fixture(scope="module")
def topic(front: Front) -> str:
    name = "operated"
    TopicAdmin(front.cluster.bootstrap_servers).create(name, PARTITIONS, replication=3)
    producer = Producer({"bootstrap.servers": front.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return name


@pytest.fixture
def group() -> str:
    return f"operated-{next(_numbers)}"


@pytest.fixture
def member(front: Front, topic: str, group: str) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers of the group, each of which gets all partitions, and closes them afterwards."""
    made: list[Consumer] = []

    def join(**more: str) -> Consumer:
        one = Consumer(
            {
                "bootstrap.servers": front.bootstrap,
                "group.id": group,
                "client.id": "stock",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
            | more
        )
        one.subscribe([topic])
        made.append(one)
        eventually(lambda: one.poll(0.05) or len(one.assignment()) == PARTITIONS)
        return one

    yield join
    for one in made:
        one.close()


@pytest.fixture
def left(front: Front, topic: str, group: str) -> str:
    """Makes a group without members that has committed offset 40 in each partition."""
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group})
    one.commit(offsets=[TopicPartition(topic, number, 40) for number in range(PARTITIONS)], asynchronous=False)
    one.close()
    return group


def committed(coord: Run, group: str) -> dict[int, int]:
    rows = coord("groups", "describe", group, "--offsets", "-o", "json").json()["offsets"]
    return {row["partition"]: row["committed_offset"] for row in rows}


def test_a_client_assigned_group_is_shown_like_a_managed_one(
    front: Front, coord: Run, topic: str, group: str, member: Callable[..., Consumer]
) -> None:
    joined = member(**{"group.instance.id": "c1"})
    joined.commit(offsets=[TopicPartition(topic, 0, 30)], asynchronous=False)
    partition = partition_of(group)
    coordinator = next(iter(front.listeners.values())).instances.leaders[partition]

    (row,) = [one for one in coord("groups", "list", "-o", "json").json() if one["group"] == group]
    assert row == {
        "group": group,
        "state": "Stable",
        "generation": None,
        "members": 1,
        "partitions": PARTITIONS,
        "assignor": "range",
        "pending": 0,
        "unreadable": 0,
        "kind": "client-assigned",
        "coordinator": coordinator,
        "log_partition": partition,
    }
    found = coord("groups", "describe", group, "-o", "json").json()
    assert (found["kind"], found["coordinator"], found["log_partition"]) == ("client-assigned", coordinator, partition)
    assert found["state"] == "Stable"
    (shown,) = found["members"]
    assert (shown["consumer"], shown["client"], shown["host"], shown["channel"]) == (
        "c1",
        "stock",
        "127.0.0.1",
        "kafka",
    )
    assert (shown["subscription"], shown["owned"]) == (topic, {topic: "0-2"})
    assert [(one["owner"], one["committed_offset"], one["lag"]) for one in found["offsets"]] == [
        ("c1", 30, 70),
        ("c1", None, None),
        ("c1", None, None),
    ]
    frame = json.loads(coord("watch", group, "--count", "1", "-o", "json").out)
    assert [(one["group"], one["kind"], one["lag"], one["lag_unknown"]) for one in frame["groups"]] == [
        (group, "client-assigned", 70, 2)
    ]
    assert [(one["consumer"], one["owned"], one["lag"]) for one in frame["owners"]] == [("c1", {topic: "0-2"}, 70)]
    assert coord("watch", "no-such-group", "--count", "1").code == 7
    assert "client-assigned" in coord("groups", "describe", group).out
    assert group in coord("groups", "list", "--state", "stable").out
    assert group not in coord("groups", "list", "--state", "empty").out

    joined.close()
    assert coord("groups", "evict", group, "c1").code == 0
    found = coord("groups", "describe", group, "-o", "json").json()
    assert (found["state"], found["lag"], found["lag_unknown"]) == ("Empty", 70, 2), (
        "it stopped before it read from all"
    )
    frame = json.loads(coord("watch", group, "--count", "1", "-o", "json").out)
    assert [(one["lag"], one["lag_unknown"]) for one in frame["groups"]] == [(70, 2)]


def test_an_empty_group_counts_what_its_last_members_read(front: Front, coord: Run, topic: str, group: str) -> None:
    """They have committed one partition of one topic, and then left."""
    other = f"{topic}-unread"
    TopicAdmin(front.cluster.bootstrap_servers).create(other, 2, replication=3)
    joined = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group, "enable.auto.commit": False})
    joined.subscribe([topic, other])
    eventually(lambda: joined.poll(0.05) or len(joined.assignment()) == PARTITIONS + 2)
    joined.commit(offsets=[TopicPartition(topic, 0, 30)], asynchronous=False)
    joined.close()
    shown = coord("groups", "describe", group, "--offsets", "-o", "json").json()["offsets"]
    found = {(row["topic"], row["partition"]): row["committed_offset"] for row in shown}
    assert found == dict.fromkeys([*((topic, n) for n in range(PARTITIONS)), (other, 0), (other, 1)]) | {(topic, 0): 30}
    (row,) = [one for one in coord("groups", "list", "--lag", "-o", "json").json() if one["group"] == group]
    assert (row["state"], row["lag"], row["lag_unknown"]) == ("Empty", RECORDS // PARTITIONS - 30, PARTITIONS + 1)


def test_offsets_of_a_group_with_members_cannot_be_reset_or_deleted(
    coord: Run, topic: str, group: str, member: Callable[..., Consumer]
) -> None:
    joined = member()
    joined.commit(offsets=[TopicPartition(topic, 0, 30)], asynchronous=False)
    scope = ("--topic", f"{topic}:0")
    for refused in (
        coord("groups", "reset-offsets", group, *scope, "--to-earliest", "--execute"),
        coord("groups", "delete", group, "--yes"),
        coord("groups", "delete-offsets", group, *scope, "--yes"),
    ):
        assert refused.code == 6
        assert joined.memberid() in refused.err or "stop them first" in refused.err
    assert committed(coord, group)[0] == 30


def test_an_evicted_member_joins_again(coord: Run, group: str, member: Callable[..., Consumer]) -> None:
    joined = member(**{"group.instance.id": "c1"})
    assert coord("groups", "evict", group, "c1", "c2").code == 7
    unknown = coord("groups", "evict", "no-such-group", "c1")
    assert (unknown.code, unknown.err) == (7, "kafka-coord: no group 'no-such-group'; no one was evicted\n")
    evicted = coord("groups", "evict", group, "c1", "--wait")
    assert evicted.code == 0, evicted.err
    assert evicted.out == f"done: member c1 of group {group} evicted\n"
    history: list[dict[str, Any]] = eventually(
        lambda: (joined.poll(0.05), coord("groups", "history", group, "-o", "json").json()[2:])[1]
    )
    assert [one["reason"] for one in history] == ["member c1 joined"]


def test_the_dashboard_evicts_and_resets_a_group_of_stock_clients(
    coord: Run, topic: str, group: str, member: Callable[..., Consumer], front: Front, tmp_path: Path
) -> None:
    joined = member(**{"group.instance.id": "c1"})
    joined.commit(offsets=[TopicPartition(topic, 0, 30)], asynchronous=False)
    with serving(front.cluster.zookeeper, operators_file(tmp_path, alice="a long token")) as served:

        def act(action: str, **body: Any) -> tuple[int, Any]:
            headers = {"Authorization": "Bearer a long token", "Content-Type": "application/json"}
            path = f"/api/v1/groups/{group}/{action}"
            status, _, answer = served.ask(path, "POST", json.dumps({"reason": "bug 17"} | body), headers)
            return status, json.loads(answer)

        def members() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = served.document(f"/groups/{group}")["members"]
            return found

        def did() -> list[tuple[str, str | None]]:
            return [(one["action"], one["change"]) for one in served.document(f"/groups/{group}/actions")]

        for managed_only in ("pause", "resume", "rebalance"):
            assert act(managed_only)[0] == 409
        assert act("evict", consumers=["c1", "nobody"])[0] == 404
        assert act("evict", consumers=["c1"])[1]["answers"][0]["message"] == f"member c1 of group {group} evicted"
        eventually(lambda: (joined.poll(0.05), [one["owned"] for one in members()])[1] == [{topic: "0-2"}])

        wanted = {"rule": "to-offset", "value": 12, "topics": [f"{topic}:0"]}
        status, refused = act("reset-offsets", **wanted, pause=True)
        assert (status, "only for managed groups" in refused["error"]) == (400, True)
        shown = act("reset-offsets", **wanted)[1]
        assert [(row["current_offset"], row["new_offset"], row["owner"]) for row in shown["rows"]] == [(30, 12, "c1")]
        status, refused = act("reset-offsets", confirm=shown["confirm"])
        assert (status, committed(coord, group)[0]) == (409, 30)
        assert refused["error"].endswith("owned by c1: stop these consumers first. Nothing was changed")

        joined.close()
        assert act("evict", consumers=["c1"])[0] == 200, "a static member does not leave when it is closed"
        eventually(lambda: coord("groups", "describe", group, "-o", "json").json()["state"] == "Empty")
        shown = act("reset-offsets", **wanted)[1]
        assert act("reset-offsets", confirm=shown["confirm"])[0] == 200
        assert committed(coord, group)[0] == 12
        change = f"to-offset 12: {topic} 0: 30 → 12"
        eventually(lambda: did()[-1:] == [("reset-offsets", change)])
        assert did()[:-1] == [("evict c1", None)] * 2
        (finding,) = [one for one in served.document(f"/groups/{group}/findings") if one["check"] == "offsets"]
        assert "alice@127.0.0.1 over HTTP set its offsets" in finding["what"]
    told = coord("groups", "history", group, "--actions", "-o", "json").json()
    assert [one["action"] for one in told] == ["evict c1", "evict c1", "reset-offsets"]


def test_a_group_of_stock_clients_has_the_same_two_fields_and_its_fallbacks_must_be_accepted(
    coord: Run, front: Front, group: str, tmp_path: Path
) -> None:
    topic = f"deleted-from-{group}"
    TopicAdmin(front.cluster.bootstrap_servers).create(topic, 2, replication=3)
    producer = Producer({"bootstrap.servers": front.bootstrap})
    for number in range(100):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(60) == 0
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group})
    one.commit(offsets=[TopicPartition(topic, number, 40 - 40 * number) for number in range(2)], asynchronous=False)
    one.close()
    delete_records(front.cluster, {Wanted(topic, 0): 70})

    rows = coord("groups", "describe", group, "--offsets", "-o", "json").json()["offsets"]
    assert [(row["start_offset"], row["end_offset"], row["lag"], row["gone"]) for row in rows] == [
        (70, 100, 30, 30),
        (0, 0, 0, 0),
    ]
    listed = coord("groups", "list", "--lag", "-o", "json").json()
    assert [(row["lag"], row["gone"]) for row in listed if row["group"] == group] == [(30, 30)]
    with serving(front.cluster.zookeeper, operators_file(tmp_path, alice="a long token")) as served:

        def reset(**body: Any) -> tuple[int, Any]:
            headers = {"Authorization": "Bearer a long token", "Content-Type": "application/json"}
            path = f"/api/v1/groups/{group}/reset-offsets"
            status, _, answer = served.ask(path, "POST", json.dumps({"reason": "bug 17"} | body), headers)
            return status, json.loads(answer)

        lag = served.document(f"/groups/{group}/lag")
        assert (lag["lag"], lag["gone"], lag["lag_unknown"]) == (30, 30, 0)
        assert [(row["lag"], row["gone"]) for row in lag["partitions"]] == [(30, 30), (0, 0)]
        assert served.document(f"/groups/{group}/partitions/{topic}/0")["gone"] == 30
        (finding,) = [one for one in served.document(f"/groups/{group}/findings") if "gone" in one["what"]]
        assert finding["severity"] == "info", "the group has no members that lose records"

        shown = reset(rule="to-time", value="2099-01-01T00:00:00", topics=[f"{topic}:0"])[1]
        status, refused = reset(confirm=shown["confirm"])
        assert (status, committed(coord, group)[0]) == (409, 40)
        assert "no record at or after 2099-01-01T00:00:00.000Z, so reset to the end of the log" in refused["error"]
        assert reset(confirm=shown["confirm"], accept_notes=False)[0] == 409
        assert reset(confirm=shown["confirm"], accept_notes="yes")[0] == 400, "it is no boolean"
        assert reset(confirm=shown["confirm"], accept_notes=True)[0] == 200
        assert committed(coord, group)[0] == 100
    again = ("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-offset", "5", "--execute")
    assert coord(*again).code == 6
    assert coord(*again, "--accept-notes").code == 0
    assert committed(coord, group)[0] == 70


def test_offsets_are_reset_by_each_rule_and_only_with_execute(coord: Run, topic: str, left: str) -> None:
    reset = partial(coord, "groups", "reset-offsets", left)
    preview = reset("--all-topics", "--shift-by", "-5")
    assert "nothing was changed" in preview.err
    assert committed(coord, left) == {0: 40, 1: 40, 2: 40}

    assert reset("--all-topics", "--shift-by", "-5", "--execute").code == 0
    assert committed(coord, left) == {0: 35, 1: 35, 2: 35}
    assert reset("--topic", f"{topic}:1", "--to-latest", "--execute").code == 0
    assert committed(coord, left) == {0: 35, 1: 100, 2: 35}
    exported = reset("--all-topics", "--to-current", "--export").out.splitlines()
    assert exported == [f"{topic},0,35", f"{topic},1,100", f"{topic},2,35"]


def test_offsets_and_groups_are_deleted(coord: Run, topic: str, left: str) -> None:
    assert coord("groups", "delete-offsets", left, "--topic", f"{topic}:1", "--yes").code == 0
    assert committed(coord, left) == {0: 40, 2: 40}
    assert coord("groups", "delete", left, "--yes").code == 0
    assert coord("groups", "describe", left).code == 7
    assert coord("groups", "delete", left, "--yes").code == 7


def test_a_group_of_our_own_consumers_is_listed_once_before_any_kafka_client_has_met_it(
    front: Front, coord: Run
) -> None:
    """Nobody has recorded its kind. The instance lists it for Kafka's clients."""
    group = "own-consumers"
    ensure_group(front.store, group)
    eventually(lambda: group in front.serving(group).managed.groups)
    for command in (("groups", "list", "-o", "json"), ("groups", "list", "--lag", "-o", "json")):
        assert [one["kind"] for one in coord(*command).json() if one["group"] == group] == ["managed"]
    assert not read_kinds(front.store, [group])
    delete_all(front.store, layout.group(group))


def test_commands_mean_the_group_of_the_recorded_kind_unless_kind_says_otherwise(
    front: Front, coord: Run, left: str
) -> None:
    def kinds() -> list[str]:
        return [one["kind"] for one in coord("groups", "list", "-o", "json").json() if one["group"] == left]

    places = (layout.group(left), layout.ids(left), layout.owners(left), layout.offsets(left))
    coordinator = front.serving(left)
    try:
        with Peer(coordinator) as peer:
            member = Member(peer, left)
            for path in places:
                front.store.ensure_path(path)
            eventually(lambda: left in coordinator.managed.groups)
            assert kinds() == ["client-assigned", "managed"]
            recorded = coord("groups", "describe", left, "-o", "json").json()
            assert recorded["kind"] == "client-assigned"
            assert [one["committed_offset"] for one in recorded["offsets"]] == [40, 40, 40]
            other = coord("groups", "describe", left, "--kind", "managed", "-o", "json").json()
            assert other["kind"] == "managed"
            peer.ask("LeaveGroup", 1, group_id=left, member_id=member.who["member_id"])
        assert kinds() == ["client-assigned", "managed"], "what is recorded stays so"
    finally:
        delete_all(front.store, layout.group(left))


def test_commands_accept_group_names_that_only_kafka_allows(front: Front, coord: Run, topic: str) -> None:
    name = "reports/2026 München"
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": name})
    one.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    one.close()
    assert committed(coord, name) == {0: 1}
    assert coord("groups", "delete", name, "--yes").code == 0


@pytest.mark.parametrize("how", ["nobody listens", "silent"])
def test_a_note_names_an_instance_that_does_not_answer_and_the_groups_not_shown(
    front: Front, coord: Run, left: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.5)
    if front.coordinator(partition_of(left)) == ELECTED:
        front.move(left)  # because the elected instance would restore its own znode
        eventually(lambda: front.coordinator(partition_of(left)) != ELECTED)
    coordinator = front.coordinator(partition_of(left))
    path = layout.instance(coordinator)
    before = front.store.get(path).data
    with listening() as silent:
        address = f"127.0.0.1:{1 if how == 'nobody listens' else silent}"
        front.store.set(path, fields.dump(fields.load(before, path) | {"endpoints": {"kafka": address}}))
        try:
            ran = coord("groups", "list")
            refused = coord("groups", "describe", left)
            of_two = coord("groups", "describe", "no-such", left) if how == "nobody listens" else refused
        finally:
            front.store.set(path, before)
    assert ran.code == 0
    assert "NOT SHOWN: the client-assigned groups in __kafka_coord_groups[" in ran.err
    assert f"instance {coordinator} does not answer: {address}: " in ran.err
    assert left not in ran.out
    assert (refused.code, of_two.code) == (5, 5)
    assert address in refused.err
    assert address in of_two.err
    assert left in coord("groups", "list").out


def test_history_shows_each_generation_in_the_log(
    front: Front, coord: Run, topic: str, group: str, member: Callable[..., Consumer]
) -> None:
    joined = member()
    name = joined.memberid()
    joined.close()
    eventually(lambda: coord("groups", "describe", group, "-o", "json").json()["state"] == "Empty")
    first, last = coord("groups", "history", group, "-o", "json").json()
    assert (first["generation"], first["causes"], first["reason"]) == (1, ["member-joined"], f"member {name} joined")
    assert (first["assignor"], first["members"], first["partitions"]) == ("range", 1, PARTITIONS)
    assert first["moves"] == {name: {"gained": f"{topic}[0-2]"}}
    assert first["epoch"] > 0
    assert first["decided_at"] is not None
    assert (last["generation"], last["causes"], last["members"]) == (2, ["member-left"], 0)
    assert coord("groups", "history", "no-such-group").code == 7


def test_a_group_with_only_offsets_has_no_history(coord: Run, left: str) -> None:
    assert coord("groups", "history", left, "-o", "json").json() == []


def test_the_groups_log_is_printed_as_text_and_as_json(
    front: Front, coord: Run, topic: str, group: str, member: Callable[..., Consumer]
) -> None:
    joined = member()
    joined.commit(offsets=[TopicPartition(topic, 2, 17, "why")], asynchronous=False)
    name = joined.memberid()
    joined.close()
    eventually(lambda: coord("groups", "describe", group, "-o", "json").json()["state"] == "Empty")
    assert coord("groups", "delete", group, "--yes").code == 0

    found = coord("groups", "log", "dump", "--group", group, "-o", "json").json()
    assert {tuple(one) for one in found} == {tuple(promised("groups log dump"))}
    kinds = [(one["kind"], one["removed"]) for one in found if one["kind"] != "claim"]
    assert kinds == [("group", False), ("offset", False), ("group", False), ("offset", True), ("group", True)]
    assert {one["group"] for one in found} == {group, None}
    generation, committed_offset = [one["value"] for one in found if one["kind"] != "claim" and not one["removed"]][:2]
    assert generation["generation"] == 1
    assert [(one["member"], one["owned"]) for one in generation["members"]] == [(name, {topic: "0-2"})]
    assert list(committed_offset) == list(promised("groups log dump")["value"])
    assert committed_offset["committed_offset"] == 17
    assert committed_offset["metadata"].startswith("why")  # librdkafka also sends the NUL that follows

    partition = partition_of(group)
    ran = coord("groups", "log", "dump", str(partition), "--from", "1")
    assert ran.out.startswith(f"__kafka_coord_groups partition {partition}: offsets 0 to ")
    assert f"{topic}-2: 17 (why" in ran.out
    assert f"generation 1, Stable, range: {name} {topic}[0-2]" in ran.out
    assert "earlier records are not shown: --from 0" in ran.err
    assert coord("groups", "log", "dump", str(partition), "--from", "0", "-o", "tsv").out.count("\tclaim\t") >= 1
    assert coord("groups", "log", "dump").code == 2


def test_the_history_says_which_tool_changed_a_groups_offsets(
    front: Front, coord: Run, topic: str, group: str, member: Callable[..., Consumer], tools: KafkaTools
) -> None:
    """The commits of an application that assigns partitions to itself are not in it."""
    of_tools = ("kafka-consumer-groups.sh", "--bootstrap-server", front.bootstrap, "--group", group)
    simple = f"{group}-simple"
    for name in (simple, group):
        reader = Consumer({"bootstrap.servers": front.bootstrap, "group.id": name, "client.id": "simple"})
        reader.assign([TopicPartition(topic, 0)])
        reader.committed([TopicPartition(topic, 0)], 30)
        reader.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        reader.close()
    reader = Consumer({"bootstrap.servers": front.bootstrap, "group.id": simple, "client.id": "simple"})
    reader.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    reader.close()
    script = AdminClient({"bootstrap.servers": front.bootstrap, "client.id": "admin"})
    wanted = ConsumerGroupTopicPartitions(simple, [TopicPartition(topic, 0, 9)])
    (moved,) = script.alter_consumer_group_offsets([wanted]).values()
    assert not moved.result(30).topic_partitions[0].error
    tools(*of_tools[:-1], simple, "--reset-offsets", "--to-offset", "20", "--topic", f"{topic}:0", "--execute")
    joined = member()
    joined.commit(offsets=[TopicPartition(topic, 0, 30), TopicPartition(topic, 2, 30)], asynchronous=False)
    joined.close()

    tools(*of_tools, "--reset-offsets", "--to-offset", "2", "--topic", f"{topic}:0", "--execute")
    tools(*of_tools, "--delete-offsets", "--topic", f"{topic}:0")
    reader = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group, "client.id": "scrpt"})
    reader.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=False)
    reader.close()
    coord("groups", "reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "8", "--execute", "--reason", "why")

    def actions(of: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = coord("groups", "history", of, "--actions", "-o", "json").json()
        return found

    found = eventually(lambda: len(told := actions(group)) == 4 and told)
    assert [(one["action"], one["change"], one["reason"]) for one in found] == [
        ("reset-offsets", f"{topic} 0: 30 → 2", None),
        ("delete-offsets", f"{topic} 0: 2 → -", None),
        ("reset-offsets", f"{topic} 1: - → 7", None),
        ("reset-offsets", f"to-offset 8: {topic} 1: 7 → 8", "why"),
    ]
    of_client = r"User:ANONYMOUS \(client id (\S+), 127\.0\.0\.1:\d+\)"
    names = [match[1] if (match := re.fullmatch(of_client, one["by"])) else one["by"] for one in found]
    assert names[2] == "scrpt"
    assert "client id" in found[0]["by"]
    assert "client id" not in found[3]["by"]
    of_simple = eventually(lambda: len(told := actions(simple)) >= 2 and told)
    assert [one["change"] for one in of_simple] == [f"{topic} 0: 4 → 9", f"{topic} 0: 9 → 20"]
    assert "client id admin," in of_simple[0]["by"]

    tools(*of_tools, "--delete")
    (last,) = eventually(
        lambda: [
            one
            for one in coord("coordinator", "history", "-o", "json").json()["actions"]
            if one["action"] == "delete-group" and one.get("group") == group
        ]
    )
    assert "client id" in last["by"]
