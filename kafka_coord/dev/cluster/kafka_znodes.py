"""Kafka's own znodes as Kafka writes them, for tests and benches that need no broker."""

from __future__ import annotations

import json
from typing import Any


def topic_value(partitions: int, *, topic_id: str | None = None) -> bytes:
    """The value of ``/brokers/topics/<topic>``: partitions numbered from 0, each with one replica, on broker 1."""
    value: dict[str, Any] = {"version": 3, "partitions": {str(number): [1] for number in range(partitions)}}
    if topic_id:
        value["topic_id"] = topic_id
    return json.dumps(value).encode()
