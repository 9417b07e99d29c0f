"""Changes the settings of the groups log's topic."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafka_coord.grouplog.term import TOPIC

SMALL_SEGMENTS = {
    "segment.bytes": "1048576",  # the least that Kafka 4 accepts; mostly, segment.ms ends a segment
    "segment.ms": "5000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    "min.compaction.lag.ms": "10000",
}
"""Compacts the groups log continuously, but not before the run's reader has read it."""


def set_of_log(bootstrap: str, settings: dict[str, str]) -> bool:
    """Changes these settings of the groups log's topic. Tells whether the brokers accepted them."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (asked,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)], request_timeout=10.0
    ).values()
    try:
        asked.result(15.0)
    except (KafkaException, TimeoutError):
        return False
    return True
