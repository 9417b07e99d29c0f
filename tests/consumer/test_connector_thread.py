"""Tests of the thread that runs a connector, and of the effects of its end."""

from __future__ import annotations

import threading

import pytest

from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.consumer.connector import ConnectorThread
from kafka_coord.errors import ConsumerError
from kafka_coord.zk import SystemClock
from tests.consumer.stepped import PARTITION, ChannelByHand, Connected, Member
from tests.waiting import eventually


class Defective(ChannelByHand):
    """A channel whose commits raise an error that no store raises."""

    left: bool = False

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        raise ZeroDivisionError

    def leave(self, registration: Registration, offsets: Offsets, *, for_good: bool = False) -> frozenset[str]:
        self.left = True
        return super().leave(registration, offsets, for_good=for_good)


def test_after_a_crash_waiting_commits_fail_and_the_consumer_leaves_the_group() -> None:
    channel = Defective()
    member = Member(channel)
    member.hold()
    member.application.finish()
    ended = threading.Event()
    thread = ConnectorThread(
        member.connector,
        Connected(SystemClock()),
        channel,
        threading.Event(),
        consumer="c",
        at_end=ended.set,
    )
    future = member.connector.commit({PARTITION: 5})
    thread.check()
    thread.start()
    with pytest.raises(ConsumerError, match="crashed: ZeroDivisionError"):
        future.result(20)
    assert ended.wait(20)
    thread.join(20)
    with pytest.raises(ConsumerError, match="crashed"):
        thread.check()
    assert channel.left
    assert member.connector.commit({PARTITION: 5}).exception(0) is not None


def test_the_thread_of_a_consumer_that_has_left_ends_without_a_crash() -> None:
    member = Member()
    ended = threading.Event()
    thread = ConnectorThread(
        member.connector, Connected(SystemClock()), member.channel, threading.Event(), consumer="c", at_end=ended.set
    )
    thread.start()
    assert eventually(lambda: member.channel.registrations)
    member.connector.close(5.0)
    thread.join(20)
    assert ended.wait(20)
    assert member.connector.done
    assert member.connector.failure is None
