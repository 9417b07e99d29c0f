"""Answers of brokers, for tests of the mirror."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer, NamedBroker

TWO = {1: NamedBroker("one", 9092), 2: NamedBroker("two", 9092, "west")}


def topic_id(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")


def topic(name: str, number: int, partitions: int = 1) -> AnsweredTopic:
    return AnsweredTopic(name, topic_id(number), dict.fromkeys(range(partitions), (1, 2)))


def whole(*topics: AnsweredTopic, teller: int = 1, brokers: Mapping[int, NamedBroker] = TWO) -> BrokerAnswer:
    return BrokerAnswer(teller, brokers, topics, is_whole=True)


def unknown(teller: int, *ids: int, witness: int | None = 9) -> BrokerAnswer:
    known = frozenset() if witness is None else frozenset({topic_id(witness)})
    return BrokerAnswer(teller, TWO, known=known, unknown=frozenset(map(topic_id, ids)))
