"""Tests of how a consumer reads its commands, and which commands it continues."""

from __future__ import annotations

import pytest

from kafka_coord.model import CommandId, CommandType, PartitionSet, StopFetcher
from kafka_coord.zk.store import WatchEvent, WatchType
from tests.consumer.stepped import PARTITION, REGISTRATION, Member

STOP = CommandId(12, CommandType.STOP_FETCHER, "stop-0000000012")


@pytest.fixture
def member() -> Member:
    """A member with records in hand of a partition whose stop arrived after it had listed its channel."""
    made = Member()
    made.hold()
    made.connector.step()
    made.channel.commands[STOP] = StopFetcher(1, 1, REGISTRATION.incarnation, PartitionSet.of([PARTITION]), "by hand")
    return made


def notify(member: Member) -> None:
    assert member.channel.watcher is not None
    member.channel.watcher(WatchEvent(WatchType.CREATED, f"/consumers/groups/g/channel/c/{STOP.name}"))


def test_a_new_command_is_read_once_without_listing_the_channel_again(member: Member) -> None:
    listings = member.channel.listings
    notify(member)
    for _ in range(3):
        member.connector.step()
    assert member.channel.reads == [STOP]
    assert member.channel.listings == listings


def test_commands_of_an_earlier_membership_are_not_continued(member: Member) -> None:
    notify(member)
    member.connector.step()
    member.channel.commands.clear()
    member.channel.registered = False  # evicted
    member.connector._on_registration_event(None)  # type: ignore[arg-type]  # like the watch
    member.application.finish()
    for _ in range(3):
        member.connector.step()
    assert member.channel.registrations == 2
    assert member.connector.registration is not None
