"""Which commits by programs that are no members the history of a client-assigned group records."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata
from kafka_coord.coordinator.history import action_of
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.client_assigned import _MOST, QUIET_S, Changes, ToolCommits
from kafka_coord.frontends.kafka.managed.administration import Administration
from kafka_coord.model import CommittedOffset, PartitionSet, Request, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.wire.frames import RequestHeader
from kafka_coord.wire.messages import message
from kafka_coord.zk.store import Check
from tests.frontends.kafka.callers import OpenCaller

MAY_BE_A_TOOL = GroupMetadata("g", generation_id=3, protocol_type=CONSUMER)
NEVER_HAD_MEMBERS = GroupMetadata("g")
HOUR_MS = 3_600_000


def call(
    connection: int = 1, name: str = "OffsetCommit", version: int = 8, client_id: str = "x", **fields: Any
) -> Call:
    form = message(f"{name}Request")
    caller = OpenCaller("10.0.0.1")
    caller.number = connection
    return Call(RequestHeader(form.api_key or 0, version, 1, client_id, True), form(**fields), caller)


def change(old: int | None, new: int, after_ms: int = HOUR_MS) -> Changes:
    return [(None if old is None else CommittedOffset(old), CommittedOffset(new, committed_at_ms=after_ms))]


def fetches(commits: ToolCommits, connection: int, client_id: str = "x") -> None:
    """An OffsetFetch of group g."""
    commits.asked("OffsetFetch", call(connection, "OffsetFetch", 7, client_id), ["g"])


@pytest.mark.parametrize(
    ("group", "old", "new", "is_news"),
    [
        (MAY_BE_A_TOOL, 5, 9, True),
        (MAY_BE_A_TOOL, None, 9, True),
        (MAY_BE_A_TOOL, 9, 9, False),
        (MAY_BE_A_TOOL, 9, 5, True),
        (NEVER_HAD_MEMBERS, 5, 9, False),
        (NEVER_HAD_MEMBERS, None, 9, False),
        (NEVER_HAD_MEMBERS, 9, 5, True),
        (GroupMetadata("g", generation_id=3, protocol_type="connect"), 5, 9, False),
    ],
)
def test_a_tools_commit_is_news_and_that_of_a_simple_consumer_is_not(
    group: GroupMetadata, old: int | None, new: int, is_news: bool
) -> None:
    commits = ToolCommits()
    fetches(commits, 1)
    assert commits.is_news(call(), group, change(old, new), 100.0) is is_news


def test_a_tool_moves_offsets_of_a_group_that_never_had_members() -> None:
    commits = ToolCommits()
    assert commits.is_news(call(1), NEVER_HAD_MEMBERS, change(None, 5), 1.0), "an admin client that only commits"
    assert commits.is_news(call(2), NEVER_HAD_MEMBERS, change(5, 9, after_ms=1_000), 2.0), "another one"
    commits.asked("DescribeGroups", call(3, "DescribeGroups"))
    fetches(commits, 3)
    assert commits.is_news(call(3), NEVER_HAD_MEMBERS, change(9, 12), 3.0), "kafka-consumer-groups.sh --shift-by"
    assert not commits.is_news(call(3), NEVER_HAD_MEMBERS, change(12, 12), 4.0)


def test_a_consumer_that_assigns_itself_is_no_tool_after_it_connects_again_or_its_group_moves() -> None:
    commits = ToolCommits()
    fetches(commits, 1)
    assert not commits.is_news(call(1), NEVER_HAD_MEMBERS, change(None, 5), 1.0)
    assert not commits.is_news(call(2), NEVER_HAD_MEMBERS, change(5, 9), 5_000.0), "it connects again"
    assert commits.is_news(call(3, client_id="other"), NEVER_HAD_MEMBERS, change(9, 12), 5_001.0)

    moved = ToolCommits()  # it commits every five seconds
    assert not moved.is_news(call(4), NEVER_HAD_MEMBERS, change(12, 15, after_ms=5_000), 1.0)
    assert not moved.is_news(call(4), NEVER_HAD_MEMBERS, change(15, 18, after_ms=HOUR_MS), 5_000.0)
    moved.asked("DescribeGroups", call(5, "DescribeGroups"))
    assert moved.is_news(call(5), NEVER_HAD_MEMBERS, change(18, 21, after_ms=1_000), 5_001.0)


def test_a_program_that_copies_offsets_every_minute_is_news_once_for_each_connection_and_group() -> None:
    commits = ToolCommits()
    other = GroupMetadata("h", generation_id=3, protocol_type=CONSUMER)
    minutes = [commits.is_news(call(), MAY_BE_A_TOOL, change(n, n + 1), 60.0 * n) for n in range(30)]
    assert minutes == [True] + [False] * 29
    assert commits.is_news(call(), other, change(1, 2), 1_800.0)
    assert commits.is_news(call(2), MAY_BE_A_TOOL, change(1, 2), 1_800.0)
    assert commits.is_news(call(), MAY_BE_A_TOOL, change(5, 4), 1_800.0), "a step back is always news"
    assert commits.is_news(call(), MAY_BE_A_TOOL, change(4, 5), 1_801.0 + QUIET_S)


def test_what_is_remembered_is_limited() -> None:
    commits = ToolCommits()
    for connection in range(_MOST + 10):
        commits.is_news(call(connection), GroupMetadata(f"g{connection}"), change(1, 2), 1.0)
        commits.asked("ListGroups", call(-connection, "ListGroups"))
        fetches(commits, connection, client_id=str(connection))
    for remembered in (commits._last, commits._tools, commits._consumers, commits._groups):
        assert len(remembered) == _MOST


def test_a_program_that_copies_offsets_into_a_managed_group_is_recorded_once_unless_it_moves_one_back() -> None:
    commits = ToolCommits()
    news = [commits.is_news_of_managed(call(), "g", [(at, at + 5), (None, 1)], at) for at in range(0, 600, 60)]
    assert news == [True] + 9 * [False]
    assert commits.is_news_of_managed(call(), "g", [(9, 5)], 600)
    assert commits.is_news_of_managed(call(2), "g", [(5, 9)], 601), "another program"
    assert commits.is_news_of_managed(call(), "g", [(5, 9)], 601 + QUIET_S), "the next day, say"


def test_many_offsets_of_a_tool_are_requests_that_the_coordinator_can_read() -> None:
    class Asked(Administration):
        requests: ClassVar[list[Request]] = []

        async def _ask(
            self, request: Request, refused: Error, fence: Check | None = None
        ) -> tuple[Error, frozenset[TopicPartition]]:
            self.requests.append(request)
            return Error.NONE, frozenset()

    nothing: Any = None
    many = {TopicPartition("t" * 249, number): CommittedOffset((1 << 62) + number) for number in range(50_000)}
    told = asyncio.run(Asked(nothing, nothing).set_offsets("g", many, "tool", is_recorded=False))
    assert told == (Error.NONE, frozenset())
    assert {tp for one in Asked.requests for tp in one.offsets} == set(many)
    for one in Asked.requests:
        read = Request.from_json(fields.load(fields.dump(one.to_json()), "/r"), "/r")
        assert read.offsets == one.offsets
        assert action_of(read, 7) is None
        assert action_of(replace(read, unrecorded=False), 7) is not None


def test_a_commit_of_a_partition_that_the_coordinator_does_not_know_costs_only_that_partition() -> None:
    class Refusing(Administration):
        written: ClassVar[dict[TopicPartition, int]] = {}

        async def _answer(self, request: Request, fence: Check | None = None) -> Request:
            missing = PartitionSet.of(tp for tp in request.offsets if tp.partition >= 2)
            if missing:
                return replace(request, partitions=missing, result="refused", message="topic t has no partition 2")
            self.written |= request.offsets
            return replace(request, result="done")

    nothing: Any = None
    offsets = {TopicPartition("t", number): CommittedOffset(number) for number in range(4)}
    told = asyncio.run(Refusing(nothing, nothing).set_offsets("g", offsets, "tool"))
    assert told == (Error.NONE, frozenset({TopicPartition("t", 2), TopicPartition("t", 3)}))
    assert Refusing.written == {TopicPartition("t", 0): 0, TopicPartition("t", 1): 1}
