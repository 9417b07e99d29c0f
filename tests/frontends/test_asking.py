"""What an instance answers to whoever asks for the coordinator. Pure except for a simulated ZooKeeper."""

from __future__ import annotations

import pytest

from kafka_coord.channel.rpc import Answered, Refused
from tests.frontends.simulated import SimulatedHouse


@pytest.mark.parametrize("still_leads", [True, False])
def test_an_instance_that_does_not_lead_refuses_registrations_and_hangs_up(still_leads: bool) -> None:
    """``still_leads``: when it receives the registration, but its term never begins."""
    house = SimulatedHouse()
    s1 = house.consumer()
    asked = s1.say_register() if still_leads else None
    house.leadership_view.held = None
    asked = asked or s1.say_register()
    house.turn()
    refused = s1.answer_to(asked)
    assert isinstance(refused, Refused)
    assert refused.code == "not-coordinator"
    assert s1.peer.closed


def test_who_waits_for_another_coordinator_is_answered_once_there_is_one_and_not_after_it_has_gone() -> None:
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
    assert isinstance(answer, Answered)
    assert answer.frame["coordinator"]["epoch"] == 2
    assert gone.hear() == []


def test_a_subscription_to_nothing_is_refused_as_such() -> None:
    house = SimulatedHouse()
    s1 = house.consumer()
    asked = s1.say_register(subscription={})
    house.turn()
    refused = s1.answer_to(asked)
    assert isinstance(refused, Refused)
    assert refused.code == "bad-subscription"
