"""What the doctor says about how long the brokers keep offsets, and when it says nothing."""

from __future__ import annotations

from kafka_coord.model.offsets import Retention
from kafka_coord.monitor.doctor.kafka_clients import check_retention

DAY = 24 * 3600 * 1000
NOW = 20_000 * DAY
WEEK = Retention().told(1, 7 * DAY, NOW).told(2, 7 * DAY, NOW)


def told(found: Retention, now_ms: int = NOW) -> list[str]:
    return [one.what for one in check_retention(found, now_ms)]


def test_brokers_with_the_same_setting_have_no_finding() -> None:
    assert told(Retention()) == told(WEEK) == []
    assert told(WEEK.told(1, 30 * DAY, NOW).told(2, 30 * DAY, NOW)) == [], "it was raised"


def test_different_settings_are_reported() -> None:
    assert told(WEEK.told(2, 30 * DAY, NOW)) == [
        "the brokers have different offsets.retention.minutes (1: 7 d, 2: 30 d); the longest applies"
    ]


def test_a_broker_whose_instance_has_been_gone_for_long_is_not_reported() -> None:
    found = Retention().told(1, 30 * DAY, NOW).told(2, 7 * DAY, NOW)
    found = found.told(2, 7 * DAY, NOW + 31 * DAY)
    assert told(found, NOW + 39 * DAY) == []


def test_a_shorter_retention_is_reported_before_anything_expires_sooner() -> None:
    found = WEEK.told(1, DAY, NOW).told(2, DAY, NOW)
    (said,) = told(found)
    assert "for 24 h, so the first ones expire at 2024-10-05T00:00:00.000Z" in said
    assert told(found, NOW + DAY) == [], "it has been in force since"


def test_a_broker_that_does_not_tell_its_settings_is_reported() -> None:
    (said,) = told(WEEK.told(1, None, NOW))
    assert said == "no instance may read the settings of broker 1, so Kafka's defaults apply there"
