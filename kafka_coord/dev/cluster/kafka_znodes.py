"""Builds Kafka's own znodes, for tests and benchmarks without brokers."""

from __future__ import annotations

import json
from typing import Any


def topic_value(partitions: int, *, topic_id: str | None = None) -> bytes:
    """Returns the value of ``/brokers/topics/<topic>`` for ``partitions`` partitions, each with a single replica on
    broker 1."""
    value: dict[str, Any] = {"version": 3, "partitions": {str(number): [1] for number in range(partitions)}}
    if topic_id:
        value["topic_id"] = topic_id
    return json.dumps(value).encode()
