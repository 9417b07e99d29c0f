"""Tests that confluent-kafka's settings become arguments, or cause an error that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_coord.consumer.confluent_names import arguments_of, suggestion
from kafka_coord.consumer.fetchers import client_settings
from kafka_coord.errors import SettingsError


def test_each_setting_becomes_an_argument_or_is_passed_to_librdkafka() -> None:
    config = {
        "bootstrap.servers": "broker1:9092",
        "group.id": "delays",
        "group.instance.id": "c1",
        "session.timeout.ms": "20000",
        "auto.offset.reset": "beginning",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": True,
        "partition.assignment.strategy": "cooperative-sticky,range",
        "client.rack": "r1",
        "value.deserializer": bytes.decode,
        "fetch.min.bytes": 10,
    }
    assert arguments_of(config, {"topics": ["flights"], "kafka": {"fetch.max.bytes": 20}}) == {
        "group": "delays",
        "consumer_id": "c1",
        "session_timeout_ms": 20_000,
        "rejoin_grace_ms": 20_000,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": None,
        "assignor": "sticky",
        "rack": "r1",
        "value_deserializer": bytes.decode,
        "topics": ["flights"],
        "kafka": {
            "bootstrap.servers": "broker1:9092",
            "client.rack": "r1",
            "fetch.min.bytes": 10,
            "fetch.max.bytes": 20,
        },
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max.poll.interval.ms": 3}, "'max.poll.interval.ms' is not supported here: .* the group's rebalance timeout"),
        ({"enable.auto.offset.store": False}, "use commit"),
        ({"enable.auto.commit": "perhaps"}, "must be True or False, not 'perhaps'"),
        ({"session.timeout.ms": "long"}, "must be an integer, not 'long'"),
        ({"partition.assignment.strategy": "own"}, "use one of range, roundrobin, cooperative-sticky"),
        ({"topics": 1, "group.instance.id": "c1"}, "consumer_id is given both"),
    ],
)
def test_the_error_for_an_unsupported_setting_says_what_to_do(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        arguments_of({"group.id": "delays", **config}, {"consumer_id": "other"} if "topics" in config else {})


def test_the_error_for_a_misspelt_setting_names_the_closest_one() -> None:
    with pytest.raises(SettingsError, match=r"'group.id' is missing; is 'groop.id' a misspelling of it"):
        arguments_of({"groop.id": "delays"}, {})
    with pytest.raises(SettingsError, match=r'No such configuration property: "boostrap.servers" .*bootstrap.servers'):
        client_settings("delays", "c1", {"boostrap.servers": "broker1:9092"})
    assert suggestion("bootstrap_servers") == " (did you mean 'bootstrap.servers'?)"
    assert suggestion("colour") == ""
