"""The old name of :mod:`kafka_coord.spark`. It still works; importing it warns with the new name."""

from __future__ import annotations

import warnings
from typing import Any

from kafka_coord import spark
from kafka_coord.spark import register

__all__ = ["KafkaCoordSource", "register"]

warnings.warn("kafka_coord.pipeline is now kafka_coord.spark: import it from there", DeprecationWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    return getattr(spark, name)
