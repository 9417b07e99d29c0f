"""How long offsets are kept, from what the brokers say."""

from __future__ import annotations

import pytest

from kafka_coord.errors import MalformedValue
from kafka_coord.model.offsets import DEFAULT_OFFSETS_RETENTION_MS, Retention

DAY = 24 * 3600 * 1000
NOW = 1_000 * DAY
DEFAULT = DEFAULT_OFFSETS_RETENTION_MS


def test_a_longer_retention_counts_at_once_for_offsets_of_before() -> None:
    found = Retention().told(1, 30 * DAY, NOW)
    assert found.expires_at_ms(NOW - 10 * DAY) == NOW + 20 * DAY


def test_a_shorter_retention_counts_from_the_moment_it_was_seen() -> None:
    found = Retention().told(1, DAY, NOW)
    assert found.expires_at_ms(NOW - 6 * DAY) == NOW + DAY
    assert found.expires_at_ms(NOW + 5) == NOW + 5 + DAY
    assert found.told(1, DAY, NOW + 60_000) == found, "nothing needs to be written"
    assert found.told(1, DAY, NOW + DAY).since_ms == NOW, "it is not seen for the first time"


def test_the_default_of_seven_days_never_begins_anew() -> None:
    assert Retention().told(1, DEFAULT, NOW).since_ms == 0


def test_the_longest_of_different_brokers_counts() -> None:
    found = Retention().told(1, DAY, NOW).told(2, 30 * DAY, NOW)
    assert found.in_force_ms == 30 * DAY
    found = found.told(2, DAY, NOW + DAY)
    assert (found.in_force_ms, found.since_ms) == (DAY, NOW + DAY)


def test_a_broker_that_does_not_tell_counts_with_kafkas_default() -> None:
    found = Retention().told(1, DAY, NOW).told(2, None, NOW)
    assert found.in_force_ms == DEFAULT
    assert [one.is_told for one in found.brokers.values()] == [True, False]


def test_a_broker_that_is_gone_counts_for_as_long_as_it_would_keep_offsets() -> None:
    found = Retention().told(1, 30 * DAY, NOW).told(2, DAY, NOW)
    assert found.told(2, DAY, NOW + 30 * DAY).in_force_ms == 30 * DAY
    found = found.told(2, DAY, NOW + 30 * DAY + 1)
    assert (found.in_force_ms, found.since_ms) == (DAY, NOW + 30 * DAY + 1)
    assert list(found.brokers) == [2]


def test_nothing_expires_sooner_than_it_would_have_without_a_change() -> None:
    """Whatever the brokers say and when, an offset is kept for the retention that was in force when it was last used,
    or for a longer one; or for the shorter one from the moment at which that was seen."""
    found, now = Retention(), NOW
    for said in (3, 9, 2, 2, 40, 1, 7):
        before, now = found, now + DAY // 3
        found = before.told(1, said * DAY, now)
        for used in (now - 50 * DAY, now - DAY, now):
            assert found.expires_at_ms(used) >= min(before.expires_at_ms(used), now + said * DAY)


def test_the_value_survives_its_json_form_and_broken_values_are_refused() -> None:
    found = Retention().told(1, DAY, NOW).told(2, None, NOW)
    assert Retention.from_json(found.to_json(), "/r") == found
    for broken in ({}, {"in_force_ms": -1, "since_ms": 0, "brokers": {}}, {**found.to_json(), "brokers": []}):
        with pytest.raises(MalformedValue):
            Retention.from_json(broken, "/r")
