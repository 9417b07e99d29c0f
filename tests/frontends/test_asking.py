"""Tests of an instance's answers to clients that look for the coordinator, with a simulated ZooKeeper."""

from __future__ import annotations

import pytest

from kafka_coord.channel.frames import AnsweredRequest, RefusedRequest
from tests.frontends.simulated import SimulatedHouse


@pytest.mark.parametrize("still_leads", [True, False])
def test_an_instance_that_does_not_lead_refuses_a_registration_and_closes_the_connection(still_leads: bool) -> None:
    """If ``still_leads``, the instance is elected when the registration arrives, but its term never begins."""
    house = SimulatedHouse()
    s1 = house.consumer()
    asked = s1.say_register() if still_leads else None
    house.leadership_view.held = None
    asked = asked or s1.say_register()
    house.turn()
    refused = s1.answer_to(asked)
    assert isinstance(refused, RefusedRequest)
    assert refused.code == "not-coordinator"
    assert s1.peer.closed


def test_a_request_to_wait_for_another_coordinator_is_answered_unless_its_connection_is_lost() -> None:
    house = SimulatedHouse()
    house.turn()
    waiting, gone = house.consumer("waiting"), house.consumer("gone")
    asked = [one.say("cluster-metadata", wait_ms=5_000, not_epoch=1) for one in (waiting, gone)]
    house.turn()
    assert waiting.hear() == gone.hear() == []
    house.gateway.lost(gone.connection)
    house.elect_anew()
    house.turn()
    answer = waiting.answer_to(asked[0])
    assert isinstance(answer, AnsweredRequest)
    assert answer.frame["coordinator"]["epoch"] == 2
    assert gone.hear() == []


def test_an_empty_subscription_is_refused() -> None:
    house = SimulatedHouse()
    s1 = house.consumer()
    asked = s1.say_register(subscription={})
    house.turn()
    refused = s1.answer_to(asked)
    assert isinstance(refused, RefusedRequest)
    assert refused.code == "bad-subscription"
