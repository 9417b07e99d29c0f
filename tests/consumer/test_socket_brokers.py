"""Tests of how a consumer without ZooKeeper learns about Kafka's brokers."""

from __future__ import annotations

from typing import Any, cast

from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.consumer.transport import BrokerLookup, SocketBrokers
from tests.consumer.stepped import Connected
from tests.coordinator.clock import ManualClock


class Party:
    def __init__(self) -> None:
        self.woken = self.asked = 0
        self.brokers = SocketBrokers(self._wake, self._ask)
        self.handle = Connected(ManualClock())
        self.connected: list[tuple[str, ...]] = []

    def _wake(self) -> None:
        self.woken += 1

    def _ask(self) -> None:
        self.asked += 1

    def lookup(self, bootstrap_servers: str | None) -> BrokerLookup:
        return BrokerLookup(cast("Any", self), bootstrap_servers, self.connected.append)

    def told(self, *addresses: str) -> None:
        brokers = {number: (f"PLAINTEXT://{address}",) for number, address in enumerate(addresses)}
        self.brokers.learn(ClusterMetadata(1, brokers, [], None))


def test_the_last_received_brokers_are_used_and_only_changes_wake_the_consumer() -> None:
    party = Party()
    party.told("a:1")
    assert party.brokers.step()
    assert party.brokers.addresses == ("a:1",)
    party.told("a:1")
    assert (party.woken, party.brokers.step()) == (1, False)
    party.told("a:1", "b:2")
    assert party.brokers.addresses == ("a:1", "b:2")


def test_the_last_known_addresses_are_kept_while_no_broker_is_listed() -> None:
    party = Party()
    party.told("a:1")
    party.told()
    assert party.brokers.addresses == ("a:1",)


def test_a_consumer_that_received_no_brokers_asks_again() -> None:
    party = Party()
    party.told()
    assert party.brokers.addresses == ()
    party.brokers.look_again()
    assert party.asked == 1
    party.told("a:1")
    assert party.brokers.addresses == ("a:1",)
    assert not party.brokers.problem


def test_brokers_that_the_application_names_are_used_without_a_lookup() -> None:
    party = Party()
    assert party.lookup("a:1,b:2").step(0.0) == 30.0
    assert (party.connected, party.asked) == ([("a:1", "b:2")], 0)


def test_brokers_are_looked_up_until_some_are_found_and_then_occasionally() -> None:
    party = Party()
    lookup = party.lookup(None)
    assert lookup.step(0.0) == 1.0
    party.told("a:1")
    assert lookup.step(0.5) == 30.5
    assert lookup.step(5.0) == 30.5
    assert party.asked == 1
    lookup.step(30.5)
    assert party.asked == 2
    assert party.connected[-1] == ("a:1",)
