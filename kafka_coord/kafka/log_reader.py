"""Reads a log partition from its leader, in batches that carry the id of the producer that wrote them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from kafka_coord.kafka.cluster import offsets_request
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.kafka.errors import failure, only
from kafka_coord.model import TopicPartition
from kafka_coord.model.lag import EARLIEST, LATEST
from kafka_coord.wire.batches import Batch, decode_batches
from kafka_coord.wire.messages import message

_FETCH, _LIST_OFFSETS = 4, 1
"""The versions of the Fetch and ListOffsets requests. Every broker from 0.11 to 3.9 supports them."""
_FETCH_BYTES = 8 << 20


class PartitionReader:
    """Reads one partition. ``broker`` is the connection to the partition's leader."""

    def __init__(self, broker: BrokerConnection, partition: int, topic: str) -> None:
        self._broker, self._partition, self._topic = broker, partition, topic

    async def first_offset(self) -> int:
        """Returns the log's first offset. Raises :class:`BrokerError`, as the other methods do
        (:class:`RightMissing` if the broker denies the right)."""
        return await self._offset(EARLIEST)

    async def end_offset(self) -> int:
        """Returns the high watermark, which is the offset after the last fully replicated record. Raises
        :class:`BrokerError`."""
        return await self._offset(LATEST)

    async def _offset(self, which: int) -> int:
        request = offsets_request([TopicPartition(self._topic, self._partition)], which, committed=False)
        answer = await self._broker.ask("ListOffsets", _LIST_OFFSETS, request)
        result = only(only(answer.topics, "topics").partitions, "partitions")
        if result.error_code:
            where = "first" if which == EARLIEST else "end"
            raise failure(
                f"partition {self._partition}: cannot look up the {where} offset of the log", result.error_code
            )
        return int(result.offset)

    async def batches(self, first: int, end: int) -> AsyncIterator[Batch]:
        """Yields, in order, the batches that contain the offsets from ``first`` up to but not including ``end``. The
        first and the last batch may reach beyond this range. Raises :class:`BrokerError`, and :class:`BadMessage` if a
        batch cannot be read."""
        at = first
        while at < end:
            result = await self._fetch(at)
            if result.error_code:
                raise failure(f"partition {self._partition}: the broker refused the read", result.error_code)
            before = at
            for batch in decode_batches(result.records or b""):
                if batch.end <= at:
                    continue
                at = batch.end
                yield batch
            if at == before:
                if result.high_watermark >= end:
                    return  # compaction has removed all remaining records before the end
                await asyncio.sleep(0.05)  # the claim is acknowledged, so the high watermark will advance soon

    async def _fetch(self, offset: int) -> Any:
        form = message("FetchRequest")
        part = form.struct("FetchPartition")(
            partition=self._partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        topic = form.struct("FetchTopic")(topic=self._topic, partitions=(part,))
        request = form(replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=_FETCH_BYTES, topics=(topic,))
        answer = await self._broker.ask("Fetch", _FETCH, request)
        return only(only(answer.responses, "topics").partitions, "partitions")
