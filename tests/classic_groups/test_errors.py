"""The names of Kafka's error codes."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kafka_coord.classic_groups.errors import named

OF_KAFKA = {6: "NOT_LEADER_OR_FOLLOWER", 10: "MESSAGE_TOO_LARGE"}
"""Codes for which librdkafka uses other names."""


@pytest.mark.parametrize("code", [1, 5, 6, 7, 10, 16, 19, 20, 29, 31, 33, 34, 37, 38, 40, 41, 44, 45, 47, 56, 58, 89])
def test_a_code_has_kafkas_name(code: int) -> None:
    assert named(code) == OF_KAFKA.get(code, KafkaError(code).name())


def test_an_unknown_code_is_shown_as_a_number() -> None:
    assert named(9_999) == "error 9999"
