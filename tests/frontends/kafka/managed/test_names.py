"""Tests of the consumer names that identities of stock clients are mapped to."""

from __future__ import annotations

import uuid

import pytest

from kafka_coord.frontends.kafka.managed.members import consumer_name, fresh_member_id
from kafka_coord.model.names import MAX_LENGTH, generated, is_legal


def test_each_identity_is_mapped_to_its_own_legal_name() -> None:
    made_by_librdkafka = "Zk/N+ELsQ9W0qk0n8sdfKg"
    assert consumer_name("plain-1.x_2") == "plain-1.x_2"
    assert consumer_name(made_by_librdkafka) == "Zk_2FN_2BELsQ9W0qk0n8sdfKg"
    names = [consumer_name(one) for one in (made_by_librdkafka, "a b", "a/b", "ä")]
    assert all(map(is_legal, names))
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("client_id", "instance_id"),
    [
        (f"consumer-{'g' * 202}-1", None),  # the Java client's default in a group of 202 letters
        (f"consumer-{'g' * 249}-1", None),
        ("Flüge nach Zürich " * 20, None),
        ("x" * 32_767, None),
        ("", None),
        ("plain", "i" * 249),
    ],
)
def test_a_fresh_member_id_is_short_enough_for_a_legal_consumer_name(client_id: str, instance_id: str | None) -> None:
    made = {fresh_member_id(client_id, instance_id, str(uuid.uuid4())) for _ in range(2)}

    assert all(is_legal(consumer_name(one)) for one in made)
    assert len(made) == 2


def test_a_fresh_member_id_begins_with_the_client_id_or_the_instance_id_as_in_kafka() -> None:
    assert fresh_member_id("rdkafka", None, "1") == "rdkafka-1"
    assert fresh_member_id("rdkafka", "seat", "1") == "seat-1"


def test_a_generated_name_is_shortened_only_as_far_as_it_must_be() -> None:
    assert generated("g" * 245, "-123") == "g" * 245 + "-123"
    assert generated("g" * 246, "-123") == "g" * 245 + "-123"
    assert len(generated("g" * MAX_LENGTH, "-123")) == MAX_LENGTH
