"""What requests of stock clients mean to the engine."""

from __future__ import annotations

from kafka_coord.frontends.kafka.managed.members import consumer_name
from kafka_coord.model.names import is_legal


def test_every_identity_has_a_legal_name_of_its_own() -> None:
    made_by_librdkafka = "Zk/N+ELsQ9W0qk0n8sdfKg"
    assert consumer_name("plain-1.x_2") == "plain-1.x_2"
    assert consumer_name(made_by_librdkafka) == "Zk_2FN_2BELsQ9W0qk0n8sdfKg"
    names = [consumer_name(one) for one in (made_by_librdkafka, "a b", "a/b", "ä")]
    assert all(map(is_legal, names))
    assert len(set(names)) == len(names)
