"""Tests of when a consumer registers, and how long it waits for its name."""

from __future__ import annotations

import pytest

from kafka_coord.channel.operations import Holder
from kafka_coord.errors import ConsumerIdInUse, StoreUnavailable
from tests.consumer.stepped import REGISTRATION, ChannelByHand, Member

GHOST = Holder(incarnation=3, session_id=9, member=None)
WAITS_S = 1.0 + 10.0 * 1.2
"""The wait for a predecessor's session. Both sessions have a timeout of 10 s."""


def test_a_name_that_is_held_longer_than_an_old_session_can_last_is_refused() -> None:
    member = Member(ChannelByHand(holder=GHOST))
    began = member.clock.monotonic()
    while member.connector.failure is None:
        assert member.clock.monotonic() <= began + WAITS_S
        member.step_when_due()
    assert isinstance(member.connector.failure, ConsumerIdInUse)
    assert member.clock.monotonic() == pytest.approx(began + WAITS_S)


def test_the_wait_for_a_predecessors_session_restarts_after_a_zookeeper_outage() -> None:
    """ZooKeeper's next leader gives the predecessor's session its whole timeout again."""
    member = Member(ChannelByHand(holder=GHOST))
    began = member.clock.monotonic()
    while member.clock.monotonic() < began + WAITS_S - 1.0:
        member.step_when_due()
    member.channel.unavailable = [StoreUnavailable("away")]
    member.step_when_due()
    again = member.clock.monotonic()
    while member.connector.failure is None:
        member.step_when_due()
    assert member.clock.monotonic() == pytest.approx(again + WAITS_S)


def test_a_consumer_registers_as_soon_as_its_predecessors_session_ends() -> None:
    member = Member(ChannelByHand(holder=GHOST))
    for _ in range(5):
        member.step_when_due()
    assert member.connector.registration is None
    member.channel.holder = None
    member.step_when_due()
    assert member.connector.registration is not None


def test_a_slow_consumer_that_was_evicted_registers_when_its_application_returns() -> None:
    member = Member()
    member.hold()
    member.channel.registered = False  # evicted
    member.connector._on_registration_event(None)  # type: ignore[arg-type]  # like the watch
    for _ in range(100):
        member.step_when_due()
    assert member.connector.counters.losses == 1
    assert member.channel.abandoned == [REGISTRATION]
    assert (member.channel.registrations, member.connector.registration) == (1, None)

    woken = member.woken
    member.application.finish()
    assert member.woken > woken
    member.step_when_due()
    assert member.channel.registrations == 2
    assert member.connector.registration is not None
