"""Handles the errors that librdkafka reports for a partition."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from kafka_coord.consumer.assigned_client import AssignedClient
from kafka_coord.consumer.held_partition import HeldPartition
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.consumer.stream_partitions import StreamPartitions
from kafka_coord.errors import NoOffset
from kafka_coord.model import NO_OFFSET, TopicPartition

log = logging.getLogger(__name__)

UNREADABLE = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""The errors that last until the cluster or its operator changes something. The client goes on trying."""

_TRUNCATED = re.compile(r"truncation detected .*broker end offset is (\d+)")
"""What librdkafka says when the log of a new leader has lost the end of the epoch from which the client has read
(KIP-320). It asks with OffsetForLeaderEpoch at each change of leader, and tells the end only in this text."""


class FetchErrors:
    """Handles the errors of one stream, on the application's thread and without the stream's lock."""

    def __init__(
        self,
        partitions: StreamPartitions,
        client: AssignedClient,
        reset: OffsetReset,
        troubles: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        self._partitions = partitions
        self._client = client
        self._reset = reset
        self._troubles = troubles

    def handle(self, holding: HeldPartition, error: KafkaError) -> None:
        """Recovers from an error, or reports that the partition cannot be read for now."""
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            truncated = _TRUNCATED.search(error.str())
            if truncated is not None:
                self._truncated(holding, int(truncated[1]))
            else:
                self._out_of_range(holding, error)
        elif code in UNREADABLE:
            self._troubles(holding.partition, error)
            self._client.learn(holding.partition.topic)
        else:
            log.warning("could not fetch partition=%s error=%s: %s", holding.partition, error.name(), error.str())

    def _truncated(self, holding: HeldPartition, end: int) -> None:
        """Continues where the log was cut: at ``end``, the end of the epoch of the last record that was fetched. The
        application may not have come that far; then it has missed nothing."""
        position, partition = self._partitions.position(holding), holding.partition
        if position <= end:
            log.info("fetching partition=%s anew from offset=%d: its log was cut at %d", partition, position, end)
            self._partitions.try_again(partition)
            return
        what = (
            f"the log of {partition} was cut at {end}, and the last {position - end} offsets before {position} are gone"
        )
        if self._reset is OffsetReset.ERROR:
            failure = NoOffset(f"{what}; auto_offset_reset is 'error': seek() to {end} to read what replaces them")
            self._partitions.fail(holding, failure)
            return
        log.warning(
            "continuing partition=%s at the end of the leader's epoch offset=%d: %s",
            *(partition, end, what),
            extra={"event": "consumer_truncated"},
        )
        self._partitions.seek(holding, end)

    def _out_of_range(self, holding: HeldPartition, error: KafkaError) -> None:
        """Handles an offset that is not in the log: retention or truncation removed it, or the topic was recreated.

        librdkafka always runs with ``auto.offset.reset=error``, because its own reset would move the position silently.
        If the position moved back, as it would for a recreated topic, records would seem to be delivered twice.
        """
        position = self._partitions.position(holding)
        where = f"offset {position} of {holding.partition} is not in the log"
        if self._reset is OffsetReset.ERROR:
            failure = NoOffset(f"{where} ({error.str()}); auto_offset_reset is 'error': seek() to a valid offset")
            self._partitions.fail(holding, failure)
            return
        try:
            begin, end = self._client.bounds_of(holding.partition)
        except KafkaException as failed:
            log.warning("could not reset partition=%s: %s; trying again", holding.partition, failed)
            self._partitions.try_again(holding.partition)  # the next fetch fails in the same way
            return
        if NO_OFFSET < position < begin:  # retention has overtaken the group; what still exists is read
            log.warning(
                "continuing at the start of the log partition=%s offset=%d: %d unread records are gone",
                *(holding.partition, begin, begin - position),
                extra={"event": "consumer_overtaken"},
            )
            self._partitions.seek(holding, begin)
            return
        if self._reset is OffsetReset.LATEST and begin <= position <= end:
            log.warning("continuing partition=%s offset=%d: %s, but it is now", holding.partition, position, where)
            self._partitions.seek(holding, position)
            return
        log.warning(
            "reset partition=%s to=%s reason=%r",
            *(holding.partition, self._reset.value, f"{where} ({error.str()}), which ends at {end}"),
            extra={"event": "consumer_reset_offset"},
        )
        self._partitions.seek(holding, end if self._reset is OffsetReset.LATEST else NO_OFFSET)
