"""Reads a listener's metrics as Prometheus would."""

from __future__ import annotations

from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.monitor.metrics import of_kafka

REQUESTS = "kafka_coord_kafka_request_seconds"
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def values(listener: KafkaListener) -> Values:
    found = (sample for metric in of_kafka(listener) for sample in metric.samples)
    return {(one.name, frozenset(one.labels.items())): one.value for one in found}


def growth(listener: KafkaListener, before: Values, name: str, **labels: str) -> float:
    key = name, frozenset(labels.items())
    return values(listener).get(key, 0.0) - before.get(key, 0.0)
