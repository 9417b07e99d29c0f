"""Asks the broker for the settings that its own group coordinator would use.

Where this instance has a setting of its own, the broker's does not apply. While the broker does not tell its settings,
Kafka's defaults apply.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka_coord.classic_groups.errors import named
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.grouplog.term import BATCH_OVERHEAD_BYTES, TOPIC
from kafka_coord.kafka.coordinators import Ask
from kafka_coord.model import json_fields as fields
from kafka_coord.wire.messages import message

log = logging.getLogger(__name__)

SETTINGS_CHECK_S = 60.0
"""How often to ask the broker for its settings, in seconds."""
_DESCRIBE_CONFIGS = 0, 1
"""The versions of DescribeConfigs: Kafka 4 has no version 0, and Kafka before 1.1 no version 1."""
_NO_TOPIC = 3
"""The code of UNKNOWN_TOPIC_OR_PARTITION: the groups log has not been created yet."""
_OF_TOPIC, _OF_BROKER = 2, 4
"""The resource types of DescribeConfigs."""
_RETENTION = "offsets.retention.minutes"
_MS_PER_S = 1000
_LIMITS = {
    "group.min.session.timeout.ms": ("min_session_timeout_s", _MS_PER_S),
    "group.max.session.timeout.ms": ("max_session_timeout_s", _MS_PER_S),
    "group.max.size": ("max_size", 1),
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay_s", _MS_PER_S),
    "group.consumer.max.size": ("consumer_max_size", 1),
    "group.consumer.session.timeout.ms": ("consumer_session_timeout_s", _MS_PER_S),
    "offset.metadata.max.bytes": ("offset_metadata_chars", 1),
    "offsets.retention.check.interval.ms": ("expiry_check_s", _MS_PER_S),
}
"""The limit that each of the broker's settings determines, and the divisor between their units."""
_LARGEST_BATCH = "max.message.bytes"
"""The topic's setting. Unless it is set, the broker's ``message.max.bytes`` applies."""


class BrokerSettings:
    """Keeps ``limits`` up to date. ``own`` contains the limits that this instance has set itself, by field. Use only on
    the event loop."""

    def __init__(self, own: Mapping[str, float]) -> None:
        self.limits, self._own = GroupLimits(), own
        for name, value in own.items():
            setattr(self.limits, name, value)
        self.retention_ms: int | None = None
        """The broker's ``offsets.retention.minutes``, in ms. ``None`` if the broker does not tell it."""
        self.is_answered = self.is_complete = False
        """Whether the broker has ever answered, even with a refusal, and whether its last answer included the topic:
        it may not exist yet."""
        self._denied: dict[str, int] = {}

    async def ask(self, ask: Ask, broker_id: int) -> None:
        """Asks the broker. Raises :class:`BrokerError` if it does not answer."""
        form = message("DescribeConfigsRequest")
        resource = form.struct("DescribeConfigsResource")
        of_broker = resource(
            resource_type=_OF_BROKER, resource_name=str(broker_id), configuration_keys=(*_LIMITS, _RETENTION)
        )
        of_topic = resource(resource_type=_OF_TOPIC, resource_name=TOPIC, configuration_keys=(_LARGEST_BATCH,))
        answer = await ask("DescribeConfigs", _DESCRIBE_CONFIGS, form(resources=(of_broker, of_topic)))
        self.is_answered = True
        self.is_complete = all(result.error_code != _NO_TOPIC for result in answer.results)
        told: dict[str, int] = {}
        for result in answer.results:
            self._note(result)
            if result.error_code == 0:
                told |= numbers({one.name: one.value for one in result.configs})
        minutes = told.get(_RETENTION)
        self.retention_ms = None if minutes is None else minutes * 60_000
        for name, value in limits_of(told).items():
            if name not in self._own and getattr(self.limits, name) != value:
                log.info("applying the broker's setting limit=%s value=%s", name, value)
                setattr(self.limits, name, value)

    def _note(self, result: Any) -> None:
        """Reports once that the broker does not tell its own or the topic's settings."""
        what = f"topic {TOPIC}" if result.resource_type == _OF_TOPIC else "the cluster"
        if result.error_code == _NO_TOPIC:
            return
        if result.error_code and self._denied.get(what) != result.error_code:
            log.warning(
                "the broker does not tell its settings: %s; Kafka's defaults apply; give the instance's user"
                " DESCRIBE_CONFIGS on %s",
                *(named(result.error_code), what),
                extra={"event": "settings_unknown"},
            )
        self._denied[what] = result.error_code


def numbers(settings: Mapping[str, str | None]) -> dict[str, int]:
    """Returns the settings that are numbers from 0 on."""
    most = (1 << 63) - 1
    read = {name: fields.decimal(value, most) for name, value in settings.items() if value is not None}
    return {name: value for name, value in read.items() if value is not None}


def limits_of(told: Mapping[str, int]) -> dict[str, float]:
    """Returns the limits that follow from a broker's settings, by the name of the field in :class:`GroupLimits`."""
    limits: dict[str, float] = {}
    for name, (limit, divisor) in _LIMITS.items():
        if name in told:
            limits[limit] = told[name] if divisor == 1 else told[name] / divisor
    if _LARGEST_BATCH in told:
        limits["append_bytes"] = max(1, told[_LARGEST_BATCH] - BATCH_OVERHEAD_BYTES)
    return limits
