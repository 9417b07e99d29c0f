"""Writes a record to each partition every 20 ms, and follows each partition's leader as fast as the brokers tell it.

librdkafka's producer may need half a minute to find a new leader, which would count as the consumers' pause.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kafka_coord.errors import BrokerError, NotFound
from kafka_coord.kafka.cluster import Address, ClusterClient
from kafka_coord.settings import host_and_port
from kafka_coord.wire.batches import LogRecord, encode_batch
from kafka_coord.wire.messages import message

EVERY_S = 0.02
_ASK_AGAIN_S = 0.05
_ANSWER_S = 2.0
_PRODUCE = 3
_NO_PRODUCER = -1


class _Feeder:
    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._addresses = [host_and_port(one) for one in bootstrap.split(",")]
        self._topic, self._partitions = topic, partitions
        self._ended = threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    def end(self) -> None:
        self._ended.set()

    async def _run(self) -> None:
        await asyncio.gather(*(self._feed(number) for number in range(self._partitions)))

    async def _feed(self, partition: int) -> None:
        leader: Address | None = None
        cluster = ClusterClient(self._addresses)
        due = time.monotonic()
        while not self._ended.is_set():
            try:
                if leader is None:
                    leader = await self._leader(cluster, partition)
                await self._write(cluster, leader, partition)
            except (BrokerError, NotFound):
                leader = None
                await asyncio.sleep(_ASK_AGAIN_S)
            due = max(due + EVERY_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
        cluster.close()

    async def _leader(self, cluster: ClusterClient, partition: int) -> Address:
        """Returns the leader's address, even if other partitions have none. Raises :class:`BrokerError`."""
        answer = await cluster.metadata([self._topic])
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        for one in answer.topics[0].partitions:
            if one.partition_index == partition and one.leader_id in nodes:
                return nodes[one.leader_id]
        raise BrokerError(f"partition {partition} has no leader")

    async def _write(self, cluster: ClusterClient, leader: Address, partition: int) -> None:
        form = message("ProduceRequest")
        batch = encode_batch(
            [LogRecord(b"", b"x")],
            now_ms=time.time_ns() // 1_000_000,
            producer_id=_NO_PRODUCER,
            producer_epoch=_NO_PRODUCER,
            base_sequence=_NO_PRODUCER,
        )
        data = form.struct("PartitionProduceData")(index=partition, records=batch)
        topic = form.struct("TopicProduceData")(name=self._topic, partition_data=(data,))
        request = form(acks=1, timeout_ms=1_000, topic_data=(topic,))
        answer = await cluster.to(leader).ask("Produce", _PRODUCE, request, _ANSWER_S)
        error = answer.responses[0].partition_responses[0].error_code
        if error:
            raise BrokerError(f"partition {partition} was not written: {error}")


@contextmanager
def feeding(bootstrap: str, topic: str, partitions: int) -> Iterator[None]:
    """Feeds the topic while the block runs."""
    feeder = _Feeder(bootstrap, topic, partitions)
    thread = threading.Thread(target=feeder.run, name="bench-feeding", daemon=True)
    thread.start()
    try:
        yield
    finally:
        feeder.end()
        thread.join()
