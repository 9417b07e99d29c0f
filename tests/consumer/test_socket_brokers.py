"""What a consumer without ZooKeeper knows about Kafka's brokers."""

from __future__ import annotations

from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.consumer.socket_brokers import SocketBrokers


class Party:
    def __init__(self) -> None:
        self.woken = self.asked = 0
        self.brokers = SocketBrokers(self._wake, self._ask)

    def _wake(self) -> None:
        self.woken += 1

    def _ask(self) -> None:
        self.asked += 1

    def told(self, *addresses: str) -> None:
        brokers = {number: (f"PLAINTEXT://{address}",) for number, address in enumerate(addresses)}
        self.brokers.learn(ClusterMetadata(1, brokers, [], None))


def test_it_knows_what_it_was_told_last_and_wakes_the_consumer_only_for_news() -> None:
    party = Party()
    party.told("a:1")
    assert party.brokers.step()
    assert party.brokers.addresses == ("a:1",)
    party.told("a:1")
    assert (party.woken, party.brokers.step()) == (1, False)
    party.told("a:1", "b:2")
    assert party.brokers.addresses == ("a:1", "b:2")


def test_brokers_that_are_all_gone_for_a_moment_are_still_tried_where_they_were() -> None:
    party = Party()
    party.told("a:1")
    party.told()
    assert party.brokers.addresses == ("a:1",)


def test_a_consumer_that_was_told_of_none_asks_again() -> None:
    party = Party()
    party.told()
    assert party.brokers.addresses == ()
    party.brokers.look_again()
    assert party.asked == 1
    party.told("a:1")
    assert party.brokers.addresses == ("a:1",)
    assert not party.brokers.problem
