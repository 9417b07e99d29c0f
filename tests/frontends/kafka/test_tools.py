"""Kafka's own tools work unchanged with the instances and the log, and show the same as this project's commands."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import TOPIC
from tests.cli.running import Run
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.java import KafkaTools, rows_of_four, table
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
FORMATTERS = "org.apache.kafka.tools.consumer"
PARTITIONS = 3


@pytest.fixture(scope="module")
def topic(front: Front) -> str:
    TopicAdmin(front.cluster.bootstrap_servers).create("tools", PARTITIONS, replication=3)
    return "tools"


@pytest.fixture(scope="module")
def joined(front: Front, topic: str) -> Iterator[Consumer]:
    """The only member of group ``tools-live``. It has committed offset 0 in partition 1."""
    one = Consumer(
        {
            "bootstrap.servers": front.bootstrap,
            "group.id": "tools-live",
            "client.id": "stock",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    one.subscribe([topic])
    eventually(lambda: one.poll(0.05) or len(one.assignment()) == PARTITIONS)
    one.commit(offsets=[TopicPartition(topic, 1, 0)], asynchronous=False)
    yield one
    one.close()


def left(front: Front, topic: str) -> str:
    """Makes a group without members that has committed offset 0 in each partition."""
    group = f"tools-left-{next(_numbers)}"
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group})
    one.commit(offsets=[TopicPartition(topic, number, 0) for number in range(PARTITIONS)], asynchronous=False)
    one.close()
    return group


def objects(printed: str) -> Iterator[dict[str, Any]]:
    """Parses the JSON objects that a formatter printed. It writes no newline between them."""
    at = 0
    while printed.startswith("{", at):
        found, at = json.JSONDecoder().raw_decode(printed, at)
        yield found


@pytest.fixture
def groups_tool(front: Front, tools: KafkaTools) -> Callable[..., str]:
    """Runs ``kafka-consumer-groups.sh`` with the instances."""
    where = ("--bootstrap-server", front.bootstrap, "--timeout", "60000")
    return lambda *arguments: tools("kafka-consumer-groups.sh", *where, *arguments)


def test_kafkas_list_and_describe_show_the_same_as_this_projects_commands(
    front: Front, coord: Run, topic: str, joined: Consumer, groups_tool: Callable[..., str]
) -> None:
    before = coord("groups", "list", "-o", "json").json()
    listed = groups_tool("--list")
    describe = partial(groups_tool, "--describe", "--group", "tools-live")
    offsets, members, state = describe("--offsets"), describe("--members", "--verbose"), describe("--state")
    ours: Any = coord("groups", "describe", "tools-live", "-o", "json").json()

    rows = coord("groups", "list", "-o", "json").json()
    others = {  # other tests may leave groups, and the tool lists only those of consumers
        name
        for listener in front.listeners.values()
        for name, group in listener.manager.groups().items()
        if group.metadata.protocol_type not in {None, "", "consumer"}
    }
    # native groups are those of other tests, of any type; each 10 minutes, the brokers remove the empty ones
    others |= {row["group"] for row in (*before, *rows) if row["kind"] == "native"}
    assert set(listed.splitlines()) - others == {row["group"] for row in rows} - others
    theirs = [(row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"], row["CLIENT-ID"]) for row in table(offsets)]
    assert sorted(theirs) == [
        (
            str(one["partition"]),
            "-" if one["committed_offset"] is None else str(one["committed_offset"]),
            "-" if one["lag"] is None else str(one["lag"]),
            "stock",
        )
        for one in ours["offsets"]
    ]
    (member,) = table(members)
    assert member["CONSUMER-ID"] == ours["members"][0]["consumer"]
    assert member["HOST"] == f"/{ours['members'][0]['host']}"
    assert "(0,1,2)" in members
    assert "Stable" in state
    assert "range" in state
    coordinator = front.listeners[ours["coordinator"]].address
    assert f"{coordinator} ({ours['coordinator']})" in " ".join(state.split())


def test_resets_and_deletions_by_kafkas_tool_have_the_same_effect_as_this_projects_commands(
    front: Front, coord: Run, topic: str, groups_tool: Callable[..., str]
) -> None:
    previewed, reset, forgotten, deleted = (left(front, topic) for _ in range(4))
    to_latest = ("--reset-offsets", "--to-latest", "--all-topics")
    preview = groups_tool("--group", previewed, *to_latest, "--dry-run")
    executed = groups_tool("--group", reset, *to_latest, "--execute")
    groups_tool("--group", forgotten, "--delete-offsets", "--topic", f"{topic}:1")
    groups_tool("--group", deleted, "--delete")

    def committed(group: str) -> dict[int, int]:
        rows = coord("groups", "describe", group, "--offsets", "-o", "json").json()["offsets"]
        return {row["partition"]: row["committed_offset"] for row in rows}

    ours = coord("groups", "reset-offsets", previewed, "--all-topics", "--to-latest", "-o", "json").json()
    expected = {(row["topic"], str(row["partition"]), str(row["new_offset"])) for row in ours}
    assert committed(previewed) == {0: 0, 1: 0, 2: 0}
    for printed in (preview, executed):
        _, topics, partitions, offsets = rows_of_four(printed)
        assert set(zip(topics, partitions, offsets, strict=True)) == expected
    assert committed(reset) == {row["partition"]: row["new_offset"] for row in ours}
    assert committed(forgotten) == {0: 0, 2: 0}
    assert coord("groups", "describe", deleted).code == 7


def test_kafkas_formatters_read_the_log(front: Front, topic: str, joined: Consumer, tools: KafkaTools) -> None:
    partition = partition_of("tools-live")

    def formatted(formatter: str) -> list[dict[str, Any]]:
        printed = tools(
            "kafka-console-consumer.sh",
            *("--bootstrap-server", front.cluster.bootstrap_servers, "--topic", TOPIC, "--partition", str(partition)),
            *("--offset", "earliest", "--timeout-ms", "2000", "--formatter", f"{FORMATTERS}.{formatter}"),
        )
        return list(objects(printed))

    def of_this_group(formatter: str) -> list[dict[str, Any]]:
        named = [one for one in formatted(formatter) if isinstance(one["key"]["data"], dict)]
        return [one for one in named if one["key"]["data"]["group"] == "tools-live"]

    (offset,) = eventually(lambda: of_this_group("OffsetsMessageFormatter"))
    assert offset["key"] == {"version": 1, "data": {"group": "tools-live", "topic": topic, "partition": 1}}
    assert offset["value"]["version"] == 4, "it contains the topic's id"
    assert offset["value"]["data"]["offset"] == 0
    latest = eventually(lambda: of_this_group("GroupMetadataMessageFormatter"))[-1]["value"]["data"]
    assert (latest["protocolType"], latest["protocol"], latest["generation"]) == ("consumer", "range", 1)
    assert [member["clientId"] for member in latest["members"]] == ["stock"]
