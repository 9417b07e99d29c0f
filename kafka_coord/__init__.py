"""A consumer coordinator for Kafka.

Applications import their names from here: :class:`Consumer`, :class:`AsyncConsumer`, :class:`Record`, :class:`Stream`,
:class:`Subscription`, :class:`TopicPartition`, and the errors in :mod:`kafka_coord.errors`. Names are imported on first
use, so ``kafka-coord serve``, for example, does not load librdkafka.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
"""The package's version, which is defined only here."""

if TYPE_CHECKING:
    from kafka_coord.consumer.command_loop import ConsumerStats
    from kafka_coord.consumer.consumer import AsyncConsumer, Consumer
    from kafka_coord.consumer.fetcher import Stream
    from kafka_coord.consumer.record import Record
    from kafka_coord.errors import (
        BrokerError,
        ConsumerClosed,
        ConsumerError,
        ConsumerIdInUse,
        InvalidName,
        InvalidPattern,
        KafkaCoordError,
        MembershipLost,
        NoOffset,
        NotFound,
        SettingsError,
        StoreError,
        StoreUnavailable,
    )
    from kafka_coord.model.member import Subscription
    from kafka_coord.model.partitions import TopicPartition

__all__ = [
    "AsyncConsumer",
    "BrokerError",
    "Consumer",
    "ConsumerClosed",
    "ConsumerError",
    "ConsumerIdInUse",
    "ConsumerStats",
    "InvalidName",
    "InvalidPattern",
    "KafkaCoordError",
    "MembershipLost",
    "NoOffset",
    "NotFound",
    "Record",
    "SettingsError",
    "StoreError",
    "StoreUnavailable",
    "Stream",
    "Subscription",
    "TopicPartition",
    "__version__",
]

_HOME = {
    "AsyncConsumer": "kafka_coord.consumer.consumer",
    "Consumer": "kafka_coord.consumer.consumer",
    "ConsumerStats": "kafka_coord.consumer.command_loop",
    "Record": "kafka_coord.consumer.record",
    "Stream": "kafka_coord.consumer.fetcher",
    "Subscription": "kafka_coord.model.member",
    "TopicPartition": "kafka_coord.model.partitions",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME.get(name, "kafka_coord.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
