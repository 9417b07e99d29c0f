"""Requests offsets from the brokers: the beginning and end of a log, and the first offset at or after a given time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafka_coord.errors import BrokerError, NotFound
from kafka_coord.model import TopicPartition

_ASK_S = 5.0
_UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,  # no requested partition has a leader
    }
)


class LogOffsets:
    """Requests offsets through an admin client (:attr:`admin`), which is ``None`` until a broker is known. With
    ``uncommitted``, records of open transactions also count."""

    def __init__(self, *, uncommitted: bool) -> None:
        self.admin: AdminClient | None = None
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED

    def ask_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
        """Requests the end offsets and returns futures without waiting for the responses. Raises :class:`BrokerError`
        while no broker is known."""
        return self._ask(dict.fromkeys(partitions, OffsetSpec.latest()), _ASK_S)

    def ask_rights(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        """Requests descriptions of topics, which say what the client may do with them. Returns futures, and nothing
        while no broker is known."""
        admin = self.admin
        if admin is None:
            return {}
        asked: dict[str, Future[Any]] = admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=_ASK_S
        )
        return asked

    def beginnings(self, partitions: Iterable[TopicPartition], timeout_s: float = _ASK_S) -> dict[TopicPartition, int]:
        """Returns the first offset in each log. Raises :class:`BrokerError` and :class:`NotFound`, like the methods
        below."""
        return self._answers(dict.fromkeys(partitions, OffsetSpec.earliest()), timeout_s)

    def ends(self, partitions: Iterable[TopicPartition], timeout_s: float = _ASK_S) -> dict[TopicPartition, int]:
        """Returns the offset of the next record in each log."""
        return self._answers(dict.fromkeys(partitions, OffsetSpec.latest()), timeout_s)

    def at_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float = _ASK_S
    ) -> dict[TopicPartition, int | None]:
        """Returns the offset of each partition's first record at or after the given time, or ``None`` if there is no
        such record."""
        wanted = {partition: OffsetSpec.for_timestamp(time_ms) for partition, time_ms in times_ms.items()}
        found = self._answers(wanted, timeout_s)
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    def _answers(self, wanted: Mapping[TopicPartition, OffsetSpec], timeout_s: float) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        offsets = {}
        for partition, future in self._ask(wanted, timeout_s).items():
            try:
                offsets[partition] = int(future.result().offset)
            except KafkaException as error:
                kind = NotFound if error.args[0].code() in _UNKNOWN else BrokerError
                raise kind(f"cannot get an offset of {partition}: {error.args[0].str()}") from error
        return offsets

    def _ask(self, wanted: Mapping[TopicPartition, OffsetSpec], timeout_s: float) -> dict[TopicPartition, Future[Any]]:
        admin = self.admin
        if admin is None:
            raise BrokerError("cannot request offsets: no broker is known yet")
        asked = admin.list_offsets(
            {Assigned(*partition): spec for partition, spec in wanted.items()},
            isolation_level=self._isolation,
            request_timeout=timeout_s,
        )
        return {TopicPartition(one.topic, one.partition): future for one, future in asked.items()}
