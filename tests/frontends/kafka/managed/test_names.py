"""Tests of the consumer names that identities of stock clients are mapped to."""

from __future__ import annotations

from kafka_coord.frontends.kafka.managed.members import consumer_name
from kafka_coord.model.names import is_legal


def test_each_identity_is_mapped_to_its_own_legal_name() -> None:
    made_by_librdkafka = "Zk/N+ELsQ9W0qk0n8sdfKg"
    assert consumer_name("plain-1.x_2") == "plain-1.x_2"
    assert consumer_name(made_by_librdkafka) == "Zk_2FN_2BELsQ9W0qk0n8sdfKg"
    names = [consumer_name(one) for one in (made_by_librdkafka, "a b", "a/b", "ä")]
    assert all(map(is_legal, names))
    assert len(set(names)) == len(names)
