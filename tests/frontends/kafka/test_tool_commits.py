"""Which commits by programs that are no members the history of a client-assigned group records."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata
from kafka_coord.frontends.kafka.client_assigned import _MOST, QUIET_S, ToolCommits

MAY_BE_A_TOOL = GroupMetadata("g", generation_id=3, protocol_type=CONSUMER)
NEVER_HAD_MEMBERS = GroupMetadata("g")


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
    assert ToolCommits().is_news(1, group, [(old, new)], 100.0) is is_news


def test_a_program_that_copies_offsets_every_minute_is_news_once_for_each_connection_and_group() -> None:
    commits = ToolCommits()
    other = GroupMetadata("h", generation_id=3, protocol_type=CONSUMER)
    minutes = [commits.is_news(1, MAY_BE_A_TOOL, [(n, n + 1)], 60.0 * n) for n in range(30)]
    assert minutes == [True] + [False] * 29
    assert commits.is_news(1, other, [(1, 2)], 1_800.0)
    assert commits.is_news(2, MAY_BE_A_TOOL, [(1, 2)], 1_800.0)
    assert commits.is_news(1, MAY_BE_A_TOOL, [(5, 4)], 1_800.0), "a step back is always news"
    assert commits.is_news(1, MAY_BE_A_TOOL, [(4, 5)], 1_801.0 + QUIET_S)


def test_what_is_remembered_is_limited() -> None:
    commits = ToolCommits()
    for connection in range(_MOST + 10):
        commits.is_news(connection, MAY_BE_A_TOOL, [(1, 2)], 1.0)
    assert len(commits._last) == _MOST
