"""Tests of the options for deleted records: Spark's ``failOnDataLoss`` and this source's ``onDataLoss``."""

from __future__ import annotations

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.spark.options import OnDataLoss, SourceOptions, StartingOffsets


def given(**more: str) -> SourceOptions:
    return SourceOptions.of({"zookeeper": "zk:2181", "group": "delays", "topics": "flights", **more})


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, OnDataLoss.FAIL),
        ({"failOnDataLoss": "true"}, OnDataLoss.FAIL),
        ({"failOnDataLoss": "false"}, OnDataLoss.EARLIEST),
        ({"onDataLoss": "Latest"}, OnDataLoss.LATEST),
        ({"failOnDataLoss": "false", "onDataLoss": "latest"}, OnDataLoss.LATEST),
        ({"failOnDataLoss": "true", "onDataLoss": "fail"}, OnDataLoss.FAIL),
    ],
)
def test_the_policy_can_be_given_with_sparks_option_or_this_sources(options: dict[str, str], policy: OnDataLoss):
    assert given(**options).on_data_loss is policy


def test_partitions_that_came_later_start_at_their_beginning_unless_the_option_says_otherwise() -> None:
    assert given().new_partitions is StartingOffsets.EARLIEST
    assert given(autoOffsetResetNewPartitions="latest").new_partitions is StartingOffsets.LATEST


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"failOnDataLoss": "true", "onDataLoss": "earliest"}, "contradict each other"),
        ({"failOnDataLoss": "false", "onDataLoss": "fail"}, "contradict each other"),
        ({"onDataLoss": "never mind"}, "'onDataLoss' must be fail or earliest or latest, not 'never mind'"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, str], says: str):
    with pytest.raises(SettingsError, match=says):
        given(**options)


@pytest.mark.parametrize("name", ["kafka.sasl.usernam", "kafka.Ssl.Ca.Locaton", "kafka.colour"])
def test_a_misspelt_property_for_kafka_is_refused_when_the_query_is_planned(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name.lower()} from the query's options is invalid: No such"):
        given(**{name: "x"})


def test_properties_of_librdkafka_are_passed_on() -> None:
    kafka = {"kafka.sasl.username": "u", "kafka.enable.ssl.certificate.verification": "false", "kafka.acks": "1"}
    assert given(**kafka).kafka == {name.removeprefix("kafka."): value for name, value in kafka.items()}
