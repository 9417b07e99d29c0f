"""Which offsets and groups the instances remove: as Kafka does, and those of topics that were deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.grouplog.manager import GroupMetadataManager, PartitionState, partition_of
from kafka_coord.grouplog.records import GroupEntry, OffsetEntry, read_record
from kafka_coord.grouplog.topics import LogTopics
from kafka_coord.model import GONE_FOR_MS, CommittedOffset, TopicInfo
from kafka_coord.model.offsets import Retention
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.consumer_protocol import encoded_subscription
from tests.grouplog.refusing_term import RefusingTerm

GROUP, NOW_MS, RETENTION_MS = "delays", 10_000_000, 1_000_000
OLD_MS = NOW_MS - RETENTION_MS
RETENTION = Retention(RETENTION_MS)
FIRST, SECOND = "first-id--------------", "second-id-------------"


def left(
    offsets: dict[str, CommittedOffset],
    topics: LogTopics | None = None,
    retention: Retention = RETENTION,
    *,
    now_ms: int = NOW_MS,
    log: list[LogRecord] | None = None,
    refuses: int = 0,
    **group: Any,
) -> tuple[str, ...] | None:
    """Returns the topics whose offsets are left after a check, or ``None`` if the group was removed. ``log`` contains
    the records of earlier terms, and gets those of this one, but the first that it ``refuses``."""

    async def run() -> tuple[str, ...] | None:
        manager = GroupMetadataManager(
            _nowhere, _never, _never, _unasked, "test", GroupLimits(), now_ms=lambda: now_ms, topics=topics
        )
        state = manager.states[partition_of(GROUP)] = PartitionState(manager.limits)
        term = RefusingTerm([] if log is None else log, partition_of(GROUP))
        term.refuses = refuses
        manager.terms[partition_of(GROUP)] = term  # type: ignore[assignment]
        state.replay_all(read_record(record) for record in log or ())
        state.replay(GroupEntry(GROUP, GroupMetadata(GROUP, **group)))
        state.replay_all(OffsetEntry(GROUP, topic, 0, one) for topic, one in offsets.items())
        state.serve(0.0)
        await manager.delete_expired_consumer_offsets(retention)
        return tuple(topic for topic, _ in manager.offsets(GROUP)) if manager.has(GROUP) else None

    return asyncio.run(run())


def _nowhere() -> Any:
    raise AssertionError("nothing is read from a broker")


async def _never(*_numbers: int) -> Any:
    raise AssertionError("nothing is claimed")


async def _unasked(_partition: int, _term: int) -> bool:
    raise AssertionError("no term is checked")


def members(*subscriptions: bytes, protocol_type: str = "consumer") -> dict[str, Any]:
    """The fields of a stable group with these subscriptions."""
    those = {
        f"m{number}": MemberMetadata(f"m{number}", None, "c", "h", 10, 10, (Protocol("range", data),))
        for number, data in enumerate(subscriptions)
    }
    stable = {"state": ClassicState.STABLE, "protocol_type": protocol_type, "protocol_name": "range"}
    return {**stable, "members": those}


def at(ms: int, topic_id: str = "", expires_at_ms: int = -1) -> CommittedOffset:
    return CommittedOffset(5, -1, "", ms, topic_id, expires_at_ms)


def seen(**identities: str) -> LogTopics:
    """Topics of which these are seen, or gone if their identity is empty."""
    topics = LogTopics()
    for name, identity in identities.items():
        topics.note(name, TopicInfo(name, frozenset({0}), identity) if identity else None)
    return topics


@pytest.mark.parametrize("since_ms", [0, OLD_MS, NOW_MS])
def test_an_empty_group_without_offsets_is_removed_at_the_next_check(since_ms: int) -> None:
    assert left({}, state_since_ms=since_ms) is None


def test_an_empty_group_with_a_member_that_is_about_to_join_stays() -> None:
    assert left({}, pending={"m": 1.0}) == ()


def test_offsets_of_an_empty_group_expire_after_the_retention() -> None:
    assert left({"flights": at(OLD_MS)}, state_since_ms=OLD_MS) is None
    assert left({"flights": at(OLD_MS)}, state_since_ms=OLD_MS + 1) == ("flights",)
    assert left({"flights": at(OLD_MS), "fares": at(OLD_MS + 1)}) == ("fares",)


def test_the_clients_own_retention_goes_first() -> None:
    assert left({"flights": at(OLD_MS, expires_at_ms=NOW_MS + 1)}) == ("flights",)
    assert left({"flights": at(NOW_MS, expires_at_ms=NOW_MS)}, state_since_ms=NOW_MS) is None


def test_in_a_group_with_members_only_topics_that_nobody_subscribes_to_expire() -> None:
    offsets = {"flights": at(OLD_MS), "fares": at(OLD_MS), "gates": at(OLD_MS + 1)}
    group = members(encoded_subscription("flights"), encoded_subscription("flights"))
    assert left(offsets, **group) == ("flights", "gates")


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(members(encoded_subscription("flights"), b""), id="a raw subscription"),
        pytest.param(members(encoded_subscription("flights"), protocol_type="connect"), id="Kafka Connect"),
        pytest.param(
            members(encoded_subscription("flights")) | {"state": ClassicState.PREPARING_REBALANCE}, id="a rebalance"
        ),
    ],
)
def test_nothing_expires_while_a_subscription_is_unknown(group: dict[str, Any]) -> None:
    assert left({"flights": at(OLD_MS), "fares": at(OLD_MS)}, **group) == ("flights", "fares")


def test_offsets_go_when_the_name_has_another_id_even_if_members_subscribe_to_it() -> None:
    offsets = {"flights": at(NOW_MS, FIRST), "fares": at(NOW_MS, FIRST)}
    group = members(encoded_subscription("flights", "fares"))
    assert left(offsets, seen(flights=SECOND, fares=FIRST), **group) == ("fares",)


def test_offsets_of_a_topic_that_is_gone_stay_for_a_day_and_are_valid_when_it_returns() -> None:
    topics = seen(flights="")
    assert topics.is_gone("flights")
    assert not topics.belongs("flights", FIRST)
    offsets, forever, log = {"flights": at(NOW_MS, FIRST)}, Retention(1 << 60), list[LogRecord]()
    assert left(offsets, topics, forever, log=log) == ("flights",)
    assert left(offsets, topics, forever, log=log, now_ms=NOW_MS + GONE_FOR_MS - 1) == ("flights",)
    topics.note("flights", TopicInfo("flights", frozenset({0}), FIRST))
    assert topics.belongs("flights", FIRST)
    assert left(offsets, topics, forever, log=log, now_ms=NOW_MS + GONE_FOR_MS) == ("flights",)
    topics.note("flights", None)
    assert left(offsets, topics, forever, log=log, now_ms=NOW_MS + GONE_FOR_MS) == ("flights",), "the day begins again"


def test_the_day_after_a_deletion_goes_on_in_the_next_term() -> None:
    offsets, forever, log = {"flights": at(NOW_MS, FIRST)}, Retention(1 << 60), list[LogRecord]()
    assert left(offsets, seen(flights=""), forever, log=log) == ("flights",)
    assert left(offsets, seen(), forever, log=log, now_ms=NOW_MS + GONE_FOR_MS) == ("flights",), "it cannot be asked"
    assert left(offsets, seen(flights=""), forever, log=log, now_ms=NOW_MS + GONE_FOR_MS) is None


def test_a_deletion_that_could_not_be_noted_is_noted_at_the_next_check_and_its_day_begins_then() -> None:
    offsets, forever, log = {"flights": at(NOW_MS, FIRST)}, Retention(1 << 60), list[LogRecord]()
    assert left(offsets, seen(flights=""), forever, log=log, refuses=1) == ("flights",)
    assert not log
    assert left(offsets, seen(flights=""), forever, log=log, now_ms=NOW_MS + 1) == ("flights",)
    assert left(offsets, seen(flights=""), forever, log=log, now_ms=NOW_MS + GONE_FOR_MS) == ("flights",)
    assert left(offsets, seen(flights=""), forever, log=log, now_ms=NOW_MS + GONE_FOR_MS + 1) is None


def test_what_expired_and_could_not_be_removed_is_removed_at_the_next_check() -> None:
    """A refusal takes nothing out of memory that the log still holds."""
    log = list[LogRecord]()
    assert left({"flights": at(0)}, log=log, refuses=1) == ("flights",)
    assert left({"flights": at(0)}, log=log) is None


def test_an_offset_that_was_committed_after_the_note_is_kept_for_a_day_of_its_own() -> None:
    forever, log = Retention(1 << 60), list[LogRecord]()
    assert left({"flights": at(NOW_MS, FIRST)}, seen(flights=""), forever, log=log) == ("flights",)
    later = {"flights": at(NOW_MS + 1, SECOND)}
    assert left(later, seen(flights=""), forever, log=log, now_ms=NOW_MS + GONE_FOR_MS) == ("flights",)
    assert left(later, seen(flights=""), forever, log=log, now_ms=NOW_MS + GONE_FOR_MS + 1) is None


def test_nothing_is_concluded_from_a_topic_that_nobody_could_ask_about() -> None:
    assert LogTopics().belongs("flights", FIRST)
    assert left({"flights": at(NOW_MS, FIRST)}, LogTopics(), state_since_ms=NOW_MS) == ("flights",)


def test_a_shortened_retention_counts_from_the_moment_it_was_seen() -> None:
    shortened = Retention(RETENTION_MS, since_ms=OLD_MS + 1)
    assert left({"flights": at(0)}, retention=shortened) == ("flights",)
    assert left({"flights": at(0)}, retention=Retention(RETENTION_MS, since_ms=OLD_MS)) is None
