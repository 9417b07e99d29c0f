"""What an instance has in memory is what the next one loads: both get there by replaying the same records."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata
from kafka_coord.grouplog.manager import GroupMetadataManager, PartitionState, partition_of
from kafka_coord.grouplog.records import OffsetEntry, group_record, read_record
from kafka_coord.grouplog.topics import LogTopics
from kafka_coord.model import CommittedOffset, TopicInfo
from kafka_coord.model.offsets import Retention
from tests.grouplog.refusing_term import RefusingTerm

GROUPS = [name for name in map("g{}".format, range(200)) if partition_of(name) == 7][:3]
TOPICS = ("flights", "fares")
_WHERE = st.tuples(st.sampled_from(TOPICS), st.integers(0, 2))
_COMMITS = st.dictionaries(_WHERE, st.integers(0, 9), min_size=1).map(
    lambda found: {where: CommittedOffset(offset, -1, "", offset) for where, offset in found.items()}
)
_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(GROUPS), _COMMITS),
        st.tuples(st.just("delete offsets"), st.sampled_from(GROUPS), st.lists(_WHERE)),
        st.tuples(st.just("delete"), st.sampled_from(GROUPS), st.none()),
        st.tuples(st.just("topics"), st.none(), st.sets(st.sampled_from(TOPICS))),
        st.tuples(st.just("refuse"), st.none(), st.integers(1, 3)),
    ),
    max_size=12,
)


async def change(manager: GroupMetadataManager, term: RefusingTerm, what: str, group: str | None, value: Any) -> None:
    match what, group:
        case "commit", str() as name:
            manager.add_group(name)
            await manager.store_offsets(name, value)
        case "delete offsets", str() as name:
            await manager.delete_offsets(name, value)
        case "delete", str() as name:
            await manager.delete_group(name)
        case "topics", _:
            for topic in TOPICS:
                manager.topics.note(topic, TopicInfo(topic, frozenset({0}), "id") if topic in value else None)
            await manager.delete_expired_consumer_offsets(Retention(1 << 40))
        case _:
            term.refuses = value


def after(changes: list[tuple[str, str | None, Any]]) -> tuple[PartitionState, PartitionState]:
    """The first of the groups is empty, and its last members read both topics. Returns what the instance has in memory
    after the changes, and what the next one loads."""

    def unused(*_: Any) -> Any:
        raise AssertionError("nobody is asked")

    async def run() -> tuple[PartitionState, PartitionState]:
        emptied = GroupMetadata(GROUPS[0], state_since_ms=500, generation_id=2, protocol_type=CONSUMER)
        log = [group_record(emptied, {}, 500, dict.fromkeys(TOPICS, "9"))]
        term = RefusingTerm(log, 7)
        manager = GroupMetadataManager(
            *(unused, unused, unused, unused, "test", GroupLimits()), now_ms=lambda: 1_000, topics=LogTopics()
        )
        manager.terms[7], state = term, PartitionState(manager.limits)  # type: ignore[assignment]
        manager.states[7] = state
        state.replay_all(map(read_record, log))
        state.serve(0.0)
        everything = {(topic, 0): CommittedOffset(1, -1, "", 1) for topic in TOPICS}
        for one in [("commit", GROUPS[0], everything), *changes]:
            await change(manager, term, *one)
        loaded = PartitionState(manager.limits)
        loaded.replay_all(map(read_record, log))
        loaded.serve(0.0)
        return state, loaded

    return asyncio.run(run())


@given(_CHANGES)
def test_the_next_instance_loads_what_this_one_has_in_memory(changes: list[tuple[str, str | None, Any]]) -> None:
    state, loaded = after(changes)
    unwritten = {name for name, group in state.groups.items() if group.is_new}
    assert loaded.groups.keys() | unwritten == state.groups.keys()
    assert (loaded.offsets, loaded.gone_since_ms) == (state.offsets, state.gone_since_ms)
    for name, group in loaded.groups.items():
        known, has = group.metadata, state.groups[name].metadata
        assert (known.topic_ids, known.state_since_ms) == (has.topic_ids, has.state_since_ms)


def test_a_topic_whose_offsets_are_deleted_is_not_remembered_as_read() -> None:
    some, rest = [("flights", 0)], [("flights", 1)]
    more = ("commit", GROUPS[0], {("flights", 1): CommittedOffset(1, -1, "", 1)})
    for changes, remembered in (
        ([more, ("delete offsets", GROUPS[0], some)], {"flights", "fares"}),
        ([more, ("delete offsets", GROUPS[0], some), ("delete offsets", GROUPS[0], rest)], {"fares"}),
    ):
        for state in after(changes):
            assert state.groups[GROUPS[0]].metadata.topic_ids.keys() == remembered


def test_the_check_for_expired_offsets_survives_the_end_of_a_term_during_a_write() -> None:
    """While it notes a gone topic in one partition, the term of the other ends."""

    def unused(*_: Any) -> Any:
        raise AssertionError("nobody is asked")

    async def run() -> None:
        topics = LogTopics()
        topics.note("flights", None)
        manager = GroupMetadataManager(*(unused, unused, unused, unused, "test", GroupLimits()), topics=topics)
        for partition in (7, 8):
            manager.terms[partition] = RefusingTerm([], partition)  # type: ignore[assignment]
            state = manager.states[partition] = PartitionState(manager.limits)
            state.replay(OffsetEntry("g", "flights", 0, CommittedOffset(1)))
            state.serve(0.0)
        notes = manager._note_gone

        async def note_and_lose(partition: int, term: Any) -> None:
            await notes(partition, term)
            manager.terms.pop(8, None)
            manager.states.pop(8, None)

        manager._note_gone = note_and_lose  # type: ignore[method-assign]
        await manager.delete_expired_consumer_offsets(Retention(1 << 40))
        assert manager.states[7].gone_since_ms

    asyncio.run(run())
