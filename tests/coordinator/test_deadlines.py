"""Tests of the deadlines of grace periods, commands, channels and the retention of offsets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from kafka_coord.coordinator.deadlines import (
    SLOW_COMMAND_MS,
    CoordinatorOptions,
    DeadlineInputs,
    Deadlines,
    GroupTimers,
    deadlines,
)
from kafka_coord.model import (
    Assignment,
    Channel,
    CommandId,
    CommandType,
    Departure,
    DepartureKind,
    GroupSettings,
    Ledger,
    Member,
    PartitionSet,
    Subscription,
)
from kafka_coord.model.member import EXPIRED, LEFT
from kafka_coord.model.offsets import Retention

OPTIONS = CoordinatorOptions(channel_retirement_ms=600_000)
SETTINGS = GroupSettings(rebalance_timeout_ms=60_000, offsets_retention_ms=1_000_000)
MEMBER = Member("c1", 1, Subscription.to(["flights"]), rejoin_grace_ms=30_000)
EMPTY_TARGET = Assignment(3, 1, "empty", "sticky", "no members remain", {}, timestamp_ms=0)
NOTHING = DeadlineInputs({}, frozenset(), {}, {}, None, SETTINGS)


class Looks:
    """Computes the deadlines of one group at given times (s). The wall clock shows the same times."""

    def __init__(self) -> None:
        self.timers = GroupTimers()

    def at(self, now: float, seen: DeadlineInputs) -> Deadlines:
        return deadlines(seen, self.timers, OPTIONS, now, now * 1000)


def test_a_place_is_kept_for_its_members_grace_period_and_not_longer() -> None:
    looks, seen = Looks(), replace(NOTHING, ledgers={"c1": Ledger("c1", 1, place=MEMBER)})
    assert looks.at(100, seen).in_grace == {"c1"}
    assert looks.timers.next_due == 130
    assert looks.at(129, seen).in_grace == {"c1"}
    assert looks.at(130, seen).in_grace == frozenset()


@pytest.mark.parametrize(
    ("protocol", "departure", "is_kept"),
    [
        ("consumer", EXPIRED, False),
        ("classic", EXPIRED, False),
        ("classic", Departure.read(b"", "read after its next incarnation has registered"), True),
        ("consumer", LEFT, True),
        ("classic", Departure(DepartureKind.REPLACED), True),
        (None, EXPIRED, True),
    ],
)
def test_the_place_of_a_kafka_client_whose_session_has_expired_is_not_kept_for_another_one(
    protocol: str | None, departure: Departure, is_kept: bool
) -> None:
    place = structs.replace(MEMBER, protocol=protocol)
    seen = replace(NOTHING, ledgers={"c1": Ledger("c1", 1, place=place)}, departures={"c1": departure})
    assert Looks().at(100, seen).in_grace == ({"c1"} if is_kept else frozenset())


def test_the_grace_period_of_a_member_that_returned_starts_again() -> None:
    looks, gone = Looks(), replace(NOTHING, ledgers={"c1": Ledger("c1", 1, place=MEMBER)})
    looks.at(100, gone)
    looks.at(120, replace(gone, registered={"c1"}))
    assert looks.at(140, gone).in_grace == {"c1"}


def test_a_command_is_overdue_after_the_rebalance_timeout_of_its_incarnation() -> None:
    command = CommandId(7, CommandType.STOP_FETCHER, "stop-0000000007")
    looks = Looks()
    seen = replace(NOTHING, members={"c1": MEMBER}, registered={"c1"}, channels={"c1": Channel((command,))})
    assert looks.at(0, seen).overdue == frozenset()
    assert looks.timers.next_due == SLOW_COMMAND_MS / 1000
    assert looks.at(59.9, seen).overdue == frozenset()
    assert looks.at(60, seen).overdue == {"c1"}
    assert looks.at(60, replace(seen, members={"c1": structs.replace(MEMBER, incarnation=2)})).overdue == frozenset()


@pytest.mark.parametrize(
    ("own_ms", "kind", "limit_s"),
    [
        (5_000, CommandType.STOP_FETCHER, 5),
        (300_000, CommandType.STOP_FETCHER, 300),
        (5_000, CommandType.START_FETCHER, 60),
        (300_000, CommandType.START_FETCHER, 300),
    ],
)
def test_a_members_own_rebalance_timeout_applies_to_its_commands(own_ms: int, kind: CommandType, limit_s: int) -> None:
    looks, command = Looks(), CommandId(7, kind, f"{kind}-0000000007")
    members = {"c1": structs.replace(MEMBER, rebalance_timeout_ms=own_ms), "c2": structs.replace(MEMBER, consumer="c2")}
    seen = replace(NOTHING, members=members, registered=set(members), channels={"c1": Channel((command,))})
    looks.at(0, seen)
    assert looks.at(limit_s - 0.1, seen).overdue == frozenset()
    assert looks.at(limit_s, seen).overdue == {"c1"}


def test_a_channel_is_removed_long_after_its_consumer_left() -> None:
    looks, seen = Looks(), replace(NOTHING, channels={"c1": Channel()})
    assert looks.at(0, seen).retired == frozenset()
    assert looks.at(599, seen).retired == frozenset()
    assert looks.at(600, seen).retired == {"c1"}
    assert Looks().at(600, seen).retired == frozenset(), "a new coordinator must count from its first pass"


def test_offsets_expire_once_the_group_has_been_empty_for_the_retention_time() -> None:
    empty = replace(NOTHING, target=EMPTY_TARGET)
    assert not Looks().at(999, empty).retention_passed
    assert Looks().at(1_000, empty).retention_passed, "a new coordinator must use the stored time"


def test_offsets_of_a_group_without_an_own_retention_are_kept_as_the_brokers_keep_theirs() -> None:
    empty = replace(NOTHING, target=EMPTY_TARGET, settings=GroupSettings())
    long, short = Retention(2_000_000), Retention(1_000_000, since_ms=500_000)
    for kept, at in ((long, 2_000), (short, 1_500)):
        assert not Looks().at(at - 1, replace(empty, retention=kept)).retention_passed
        assert Looks().at(at, replace(empty, retention=kept)).retention_passed
    assert not Looks().at(10**9, replace(empty, retention=None)).retention_passed, "it cannot be read"
    assert Looks().at(1_000, replace(empty, settings=SETTINGS, retention=long)).retention_passed, "it has its own"


def test_offsets_of_a_group_whose_target_still_names_members_do_not_expire() -> None:
    """A coordinator removed the last member's ledger, and died before it emptied the target. The target is older than
    the retention time."""
    left = structs.replace(EMPTY_TARGET, members={"c1": PartitionSet({"flights": [0]})})
    assert not Looks().at(5_000, replace(NOTHING, target=left)).retention_passed


def test_offsets_do_not_expire_with_a_consumer_without_a_target_or_with_unreadable_settings() -> None:
    empty = replace(NOTHING, target=EMPTY_TARGET)
    for seen in (
        replace(empty, registered={"c1"}),
        replace(empty, ledgers={"c1": Ledger("c1", 1)}),
        replace(empty, target=None),
        replace(empty, settings=None),
    ):
        assert not Looks().at(5_000, seen).retention_passed
