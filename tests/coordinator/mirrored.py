"""Answers of brokers, for tests of the mirror."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kafka_coord.errors import BrokerError
from kafka_coord.model import Broker
from kafka_coord.model import json_fields as fields
from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer, NamedBroker
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

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


class Answers:
    """Answers with ``listing``, or not at all if that is ``None``."""

    protocol = "PLAINTEXT"

    def __init__(self, listing: BrokerAnswer | None) -> None:
        self.listing_now = listing
        self.by_id_now: list[BrokerAnswer] = []
        self.described_now: list[Broker] = []
        self.unheard: Mapping[int, str] = {}
        self.by_name: dict[str, AnsweredTopic] = {}
        self.asked_at: list[tuple[str, tuple[tuple[str, int], ...]]] = []

    def listing(
        self, listener: str, addresses: Sequence[tuple[str, int]], names: Collection[str] | None
    ) -> BrokerAnswer:
        self.asked_at.append((listener, tuple(addresses)))
        if self.listing_now is None:
            raise BrokerError("no broker answers")
        if names and (told := [self.by_name[name] for name in names if name in self.by_name]):
            return replace(self.listing_now, topics=tuple(told), is_whole=False)
        return replace(self.listing_now, listener=listener)

    def by_id(self, _wanted: Mapping[str, str], _others: Mapping[str, str], _to: BrokerAnswer) -> list[BrokerAnswer]:
        return self.by_id_now

    def described(self, _answer: BrokerAnswer) -> list[Broker]:
        return self.described_now

    def close(self) -> None:
        return


def kafkas_own(store: Store, *, controller: str = '{"version":2,"kraftControllerEpoch":-1}') -> None:
    for path, value in (
        ("/brokers", None),
        (layout.BROKER_IDS, None),
        (layout.BROKER_TOPICS, None),
        (layout.CONTROLLER, controller),
        (f"{layout.BROKER_TOPICS}/a", fields.dump({"version": 3, "topic_id": topic_id(1), "partitions": {"0": [1]}})),
        (
            f"{layout.BROKER_IDS}/1",
            fields.dump(
                {
                    "endpoints": ["INT://one:9092", "EXT://out:9093"],
                    "listener_security_protocol_map": {"INT": "PLAINTEXT", "EXT": "SSL"},
                }
            ),
        ),
    ):
        store.create(path, value.encode() if isinstance(value, str) else value or b"")
