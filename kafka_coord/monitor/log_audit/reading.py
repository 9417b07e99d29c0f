"""Reads the groups log of a running cluster for the audit, each partition from its leader, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kafka_coord.errors import BrokerError, NotFound
from kafka_coord.grouplog.broker import BrokerConnection
from kafka_coord.grouplog.reader import PartitionReader
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.monitor.log_audit.findings import LogReport
from kafka_coord.monitor.log_audit.judge import PartitionJudge
from kafka_coord.wire.messages import message

_METADATA = 4
_AT_ONCE = 4

Address = tuple[str, int]


def audit_groups_log(
    bootstrap: Sequence[Address],
    znode_version: Callable[[int], int | None] = lambda _partition: None,
    topic: str = TOPIC,
) -> LogReport:
    """Judges every partition up to its present end. Calls ``znode_version`` for each partition after reading its log.
    Raises :class:`BrokerError` if a broker does not answer, and :class:`NotFound` if there is no such topic.
    """
    return asyncio.run(_audit(bootstrap, znode_version, topic))


async def _audit(bootstrap: Sequence[Address], znode_version: Callable[[int], int | None], topic: str) -> LogReport:
    report: LogReport = LogReport()
    leaders = await _leaders(bootstrap, topic)
    report.count("partitions", len(leaders))
    places = asyncio.Semaphore(_AT_ONCE)

    async def judge(partition: int, leader: Address) -> None:
        async with places:
            await _judge(partition, leader, topic, report, znode_version)

    async with asyncio.TaskGroup() as tasks:
        for partition, leader in leaders.items():
            tasks.create_task(judge(partition, leader))
    for found in (report.violations, report.warnings):
        found.sort(key=lambda one: (one.partition, one.offset))
    return report


async def _judge(
    partition: int, leader: Address, topic: str, report: LogReport, znode_version: Callable[[int], int | None]
) -> None:
    connection = BrokerConnection(*leader)
    try:
        reader = PartitionReader(connection, partition, topic)
        judge = PartitionJudge(partition, report)
        async for batch in reader.batches(await reader.first_offset(), await reader.end_offset()):
            judge.take(batch)
    finally:
        connection.close()
    judge.end(await asyncio.to_thread(znode_version, partition))


async def _leaders(bootstrap: Sequence[Address], topic: str) -> dict[int, Address]:
    """The leader of every partition. Raises like :func:`audit_groups_log`."""
    answer = await _metadata(bootstrap, topic)
    nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
    (found,) = answer.topics
    if not found.partitions:
        raise NotFound(f"there is no topic {topic}: no Kafka client has used a group of this cluster's instances yet")
    without = [one.partition_index for one in found.partitions if one.leader_id not in nodes]
    if without:
        raise BrokerError(f"topic {topic}: no leader of partitions {', '.join(map(str, without))}: start the brokers")
    return {one.partition_index: nodes[one.leader_id] for one in found.partitions}


async def _metadata(bootstrap: Sequence[Address], topic: str) -> Any:
    form = message("MetadataRequest")
    request = form(topics=(form.struct("MetadataRequestTopic")(name=topic),), allow_auto_topic_creation=False)
    reasons = []
    for address in bootstrap:
        connection = BrokerConnection(*address)
        try:
            return await connection.ask("Metadata", _METADATA, request, timeout_s=5.0)
        except BrokerError as error:
            reasons.append(str(error))
        finally:
            connection.close()
    raise BrokerError(f"no broker answers: {'; '.join(reasons) or 'none is registered'}")
