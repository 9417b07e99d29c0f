"""How long a heartbeat may be held."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.held_heartbeats import hold_limit_s, longest_hold_s


@pytest.mark.parametrize(
    ("software", "session_s", "silent_s", "limit_s"),
    [
        ("librdkafka", 45.0, 3.0, 15.0),
        ("librdkafka", 300.0, 3.0, 15.0),
        ("confluent-kafka-python", 6.0, 3.0, 1.0),
        ("apache-kafka-java", 45.0, 3.0, 6.0),
        ("apache-kafka-java", 10.0, 3.0, 10.0 / 3),
        ("librdkafka", 10.0, 7.0, 0.0),
        ("github.com/segmentio/kafka-go", 45.0, 3.0, 0.0),
        ("kafka-python", 45.0, 3.0, 0.0),
        ("", 45.0, 3.0, 0.0),
    ],
)
def test_the_limit_fits_the_client_and_its_session(
    software: str, session_s: float, silent_s: float, limit_s: float
) -> None:
    assert max(0.0, hold_limit_s(longest_hold_s(software), session_s, silent_s)) == pytest.approx(limit_s)
