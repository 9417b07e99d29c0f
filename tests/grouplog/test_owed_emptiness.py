"""A group has become empty, but the log has refused to say so. What is true only of an empty group must wait."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import Stored, StoreGroup
from kafka_coord.classic_groups.machine import Group, GroupLimits
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata
from kafka_coord.grouplog.manager import GroupMetadataManager, PartitionState, partition_of
from kafka_coord.grouplog.records import GroupEntry, OffsetEntry, read_record
from kafka_coord.model import CommittedOffset
from kafka_coord.model.offsets import Retention
from kafka_coord.wire.batches import LogRecord
from tests.classic_groups.played import Played
from tests.grouplog.refusing_term import RefusingTerm

GROUP, WHERE = "delays", ("flights", 0)
Does = Callable[[GroupMetadataManager], Awaitable[Any]]


async def _expire(manager: GroupMetadataManager) -> None:
    await manager.delete_expired_consumer_offsets(Retention(0))


async def _delete(manager: GroupMetadataManager) -> None:
    await manager.delete_group(GROUP)


async def _delete_offsets(manager: GroupMetadataManager) -> None:
    await manager.delete_offsets(GROUP, [WHERE])


async def _convert(manager: GroupMetadataManager) -> None:
    """As a conversion does before it writes anything to ZooKeeper."""
    if await manager.store_emptiness(GROUP) is Error.NONE:
        await manager.delete_group(GROUP)


def _unused(*_: Any) -> Any:
    raise AssertionError("nobody is asked")


def story(log: Sequence[LogRecord]) -> list[str]:
    """Says for each record how many members the group has according to the log, and what is removed."""
    told = []
    for record in log:
        match read_record(record):
            case GroupEntry(_, None):
                told.append("group removed")
            case GroupEntry(_, GroupMetadata() as group):
                told.append(f"{len(group.members)} members")
            case OffsetEntry(_, _, _, None):
                told.append("offset removed")
    return told


def after_the_last_member_has_left(does: Does, refused: int) -> tuple[list[str], Group | None]:
    """The log refuses ``refused`` appends from the moment at which the only member leaves. Then the same is done until
    it has an effect."""

    async def run() -> tuple[list[str], Group | None]:
        log: list[LogRecord] = []
        clock = itertools.count(1_000)
        manager = GroupMetadataManager(
            *(_unused, _unused, _unused, _unused, "test", GroupLimits()), now_ms=lambda: 1_000 * next(clock)
        )
        term = RefusingTerm(log, partition_of(GROUP))
        manager.terms[term.partition] = term  # type: ignore[assignment]
        played = Played()
        state = manager.states[term.partition] = PartitionState(manager.limits)
        state.serve(0.0)
        played.group = state.add(GROUP)
        played.group._limits.initial_rebalance_delay_s = 0.0
        played.log_says = None
        played.joins("m1")
        played.syncs("m1", m1="all")
        await write(played.stores.pop(), played, manager)
        await manager.store_offsets(GROUP, {WHERE: CommittedOffset(5, -1, "", 0)})
        term.refuses = refused
        played.leave("m1")
        emptied = played.stores.pop()
        if refused:
            await write(emptied, played, manager)
        for _ in range(2):
            if manager.has(GROUP):
                await does(manager)
        return story(log), manager.group(GROUP)

    return asyncio.run(run())


async def write(store: StoreGroup, played: Played, manager: GroupMetadataManager) -> None:
    error = await manager.store_group(played.group.metadata, store.assignments, store.topic_ids)
    played.do(Stored(store, error))


@pytest.mark.parametrize("does", [_expire, _delete, _delete_offsets, _convert])
@pytest.mark.parametrize("refused", [0, 1, 2])
def test_nothing_is_removed_before_the_log_says_that_the_group_is_empty(does: Does, refused: int) -> None:
    told, _ = after_the_last_member_has_left(does, refused)
    removals = [at for at, one in enumerate(told) if one.endswith("removed")]
    assert told[0] == "1 members"
    assert all("0 members" in told[:at] for at in removals), told


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_an_operators_deletion_does_not_wait_for_the_next_attempt_to_write_it(refused: int) -> None:
    told, group = after_the_last_member_has_left(_delete, refused)
    assert told == ["1 members", "0 members", "offset removed", "group removed"]
    assert group is None


def test_a_group_that_is_being_deleted_is_not_written_again() -> None:
    async def delete_and_store(manager: GroupMetadataManager) -> None:
        group = manager.group(GROUP)
        deletion = asyncio.ensure_future(manager.delete_group(GROUP))
        await asyncio.sleep(0)
        if group is not None:
            assert await manager.store_group(group.metadata, {}) is Error.COORDINATOR_NOT_AVAILABLE
        await deletion

    told, _ = after_the_last_member_has_left(delete_and_store, 0)
    assert told[-1] == "group removed"


def test_emptiness_that_was_refused_during_a_deletion_is_written_later() -> None:
    played = Played()
    for command in ("stable m1", "log waits", "leave m1"):
        played.does(command)
    state, played.group.metadata.state = played.group.metadata.state, ClassicState.DEAD
    played.stored("2", "COORDINATOR_NOT_AVAILABLE")
    played.wait("5")
    assert len(played.stores) == 2
    played.group.metadata.state = state
    played.wait("0.1")
    assert len(played.stores) == 3
