"""Which settings apply: those of the broker, unless the instance has its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.frontends.kafka.instances import BrokerSettings, limits_of, numbers
from kafka_coord.wire.messages import message

TOLD = {
    "group.min.session.timeout.ms": "1001",
    "group.max.session.timeout.ms": "60000",
    "group.max.size": "250",
    "group.consumer.max.size": "25",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "30000",
    "offset.metadata.max.bytes": "100",
    "connections.max.idle.ms": "20000",
    "offsets.retention.minutes": "1440",
    "offsets.retention.check.interval.ms": "1500",
}
SECURED, NO_TOPIC = 31, 3


class Broker:
    """Answers DescribeConfigs. ``errors`` maps resource types to codes."""

    def __init__(self) -> None:
        self.told, self.topic, self.errors = dict(TOLD), {"max.message.bytes": "5000000"}, dict[int, int]()

    async def ask(self, _name: str, version: tuple[int, int], request: Any) -> Any:
        form = message("DescribeConfigsResponse")
        result, config = form.struct("DescribeConfigsResult"), form.struct("DescribeConfigsResourceResult")
        results = []
        for one in request.resources:
            values = self.topic if one.resource_type == 2 else self.told
            error = self.errors.get(one.resource_type, 0)
            shown = {} if error else {key: values[key] for key in one.configuration_keys if key in values}
            configs = tuple(config(name=key, value=value) for key, value in shown.items())
            results.append(
                result(
                    error_code=error, resource_type=one.resource_type, resource_name=one.resource_name, configs=configs
                )
            )
        _, newest = version
        wire = form.encode(form(results=tuple(results)), newest)
        return form.decode(wire, newest, 0)


def asked(settings: BrokerSettings, broker: Broker) -> GroupLimits:
    asyncio.run(settings.ask(broker.ask, 1))
    return settings.limits


def test_the_brokers_settings_apply() -> None:
    settings = BrokerSettings({})
    assert asked(settings, Broker()) == GroupLimits(
        min_session_timeout_s=1.001,
        max_session_timeout_s=60.0,
        max_size=250,
        consumer_max_size=25,
        initial_rebalance_delay_s=0.0,
        consumer_session_timeout_s=30.0,
        offset_metadata_chars=100,
        append_bytes=5_000_000 - 128,
        idle_s=20.0,
        expiry_check_s=1.5,
    )
    assert settings.retention_ms == 24 * 3600 * 1000


def test_a_setting_of_the_instance_wins() -> None:
    settings = BrokerSettings({"initial_rebalance_delay_s": 3.0})
    assert asked(settings, Broker()).initial_rebalance_delay_s == 3.0


def test_kafkas_defaults_apply_while_the_broker_does_not_tell_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings, broker = BrokerSettings({}), Broker()
    broker.errors = {4: SECURED, 2: 29}
    for _ in range(3):
        assert asked(settings, broker) == GroupLimits()
    assert settings.retention_ms is None
    assert settings.is_answered
    said = [one.getMessage() for one in caplog.records]
    assert [one.partition("DESCRIBE_CONFIGS on ")[2] for one in said] == ["the cluster", "topic __kafka_coord_groups"]
    broker.errors = {}
    assert asked(settings, broker).max_size == 250


def test_a_groups_log_that_does_not_exist_yet_is_not_a_missing_right(caplog: pytest.LogCaptureFixture) -> None:
    settings, broker = BrokerSettings({}), Broker()
    broker.errors = {2: NO_TOPIC}
    assert asked(settings, broker).append_bytes == GroupLimits().append_bytes
    assert not settings.is_complete
    assert "does not tell" not in caplog.text


def test_a_value_that_is_no_number_changes_nothing() -> None:
    assert numbers({"a": "7", "b": "-1", "c": "x", "d": None, "e": ""}) == {"a": 7}
    assert limits_of({}) == {}
