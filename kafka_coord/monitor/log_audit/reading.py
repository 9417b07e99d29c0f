"""Reads the groups log of a running cluster for the audit: each partition from its leader, a few partitions at a
time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kafka_coord.grouplog.term import TOPIC
from kafka_coord.kafka.cluster import Address, ClusterClient
from kafka_coord.kafka.log_reader import PartitionReader
from kafka_coord.monitor.log_audit.findings import LogReport
from kafka_coord.monitor.log_audit.judge import PartitionJudge

_AT_ONCE = 4


def audit_groups_log(
    cluster: ClusterClient, znode_version: Callable[[int], int | None], topic: str = TOPIC
) -> LogReport:
    """Checks every partition up to its current end and returns the report. Calls ``znode_version`` for each partition
    after reading its log. Closes ``cluster``. Raises :class:`BrokerError` if a broker does not answer, and
    :class:`NotFound` if the topic does not exist.
    """
    return asyncio.run(_audit(cluster, znode_version, topic))


async def _audit(cluster: ClusterClient, znode_version: Callable[[int], int | None], topic: str) -> LogReport:
    report = LogReport()
    places = asyncio.Semaphore(_AT_ONCE)

    async def judge_one(partition: int, leader: Address) -> None:
        async with places:
            judge = PartitionJudge(partition, report)
            reader = PartitionReader(cluster.to(leader), partition, topic)
            async for batch in reader.batches(await reader.first_offset(), await reader.end_offset()):
                judge.take(batch)
            judge.end(await asyncio.to_thread(znode_version, partition))

    try:
        leaders = await cluster.leaders(topic)
        report.count("partitions", len(leaders))
        await asyncio.gather(*(judge_one(partition, leader) for partition, leader in leaders.items()))
    finally:
        cluster.close()
    for found in (report.violations, report.warnings):
        found.sort(key=lambda one: (one.partition, one.offset))
    return report
