"""When a consumer registers, and how long it waits for its name."""

from __future__ import annotations

import pytest

from kafka_coord.channel.zookeeper import Holder
from kafka_coord.errors import ConsumerIdInUse, StoreUnavailable
from tests.consumer.stepped import REGISTRATION, ChannelByHand, Member

GHOST = Holder(incarnation=3, session_id=9, member=None)
WAITS_S = 1.0 + 10.0 * 1.2
"""The wait for a ghost, with sessions of 10 s on both sides."""


def test_a_name_that_is_held_longer_than_a_ghost_can_live_is_refused() -> None:
    member = Member(ChannelByHand(holder=GHOST))
    began = member.clock.monotonic()
    while member.connector.failure is None:
        assert member.clock.monotonic() <= began + WAITS_S
        member.step_when_due()
    assert isinstance(member.connector.failure, ConsumerIdInUse)
    assert member.clock.monotonic() == pytest.approx(began + WAITS_S)


def test_the_wait_for_a_predecessors_session_restarts_after_a_zookeeper_outage() -> None:
    """ZooKeeper's next leader gives the ghost's session its whole timeout again."""
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


def test_a_ghost_that_goes_leaves_its_name() -> None:
    member = Member(ChannelByHand(holder=GHOST))
    for _ in range(5):
        member.step_when_due()
    assert member.connector.registration is None
    member.channel.holder = None
    member.step_when_due()
    assert member.connector.registration is not None


def test_one_that_was_evicted_for_being_slow_registers_when_its_application_comes_back() -> None:
    member = Member()
    member.hold()
    member.channel.registered = False  # evicted
    member.connector._on_registration_event(None)  # type: ignore[arg-type]  # as the watch tells
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
