"""Tests of how a consumer reads its commands, and which commands it continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kafka_coord.consumer.command_loop import UnresolvedPartitions
from kafka_coord.errors import StoreUnavailable
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


class _Forbidden:
    """Fetchers that are refused topics, and a channel whose first answers are lost."""

    def __init__(self) -> None:
        self.now: dict[str, str] = {"salaries": "TOPIC_AUTHORIZATION_FAILED"}
        self.recorded: Mapping[str, str] = {}
        self.loses = 1

    def refused(self) -> Mapping[str, str]:
        return dict(self.now)

    def refuse(self, _registration: object, topics: Mapping[str, str]) -> None:
        self.recorded = dict(topics)
        self.loses -= 1
        if self.loses >= 0:
            raise StoreUnavailable("no answer")

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: {}


def test_a_refusal_whose_answer_was_lost_is_taken_back() -> None:
    world = _Forbidden()
    unresolved = UnresolvedPartitions(world, world)  # type: ignore[arg-type]
    again = unresolved.step(REGISTRATION, 0.0)
    assert world.recorded
    world.now.clear()  # the right is given before the channel has answered
    assert unresolved.step(REGISTRATION, again) == float("inf")
    assert world.recorded == {}
