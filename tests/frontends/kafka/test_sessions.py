"""Members that are dead while their group moves from instance to instance."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import pytest

from kafka_coord.classic_groups.sessions import NOTED_AFTER_S, Heard, Key
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.records import read_record
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.kafka.cluster import ClusterClient, PartitionReader
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.peer import Peer, join
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

SESSION_MS, KIP_848_SESSION_MS = 60_000, 45_000
_WITHIN_S = NOTED_AFTER_S + 20.0


def note(front: Front, group: str) -> Mapping[Key, int | None] | None:
    """Returns what the term that serves the group has noted, or ``None`` if it has not done so yet."""
    partition = partition_of(group)

    async def read() -> list[Heard]:
        cluster = ClusterClient.of(front.brokers, {})
        with contextlib.closing(cluster):
            leaders = await cluster.leaders(TOPIC)
            reader = PartitionReader(cluster.to(leaders[partition]), partition, TOPIC)
            batches = reader.batches(await reader.first_offset(), await reader.end_offset())
            found = [read_record(record) async for batch in batches for record in batch.records]
            return [one for one in found if isinstance(one, Heard)]

    term = front.serving(group).manager.terms[partition].term
    return next((one.left_ms for one in asyncio.run(read()) if one.term == term), None)


def joined_as_classic(peer: Peer, group: str, _topic: str) -> str:
    member_id: str = peer.ask("JoinGroup", 3, **join(group, session_ms=SESSION_MS)).member_id
    peer.ask("SyncGroup", 1, group_id=group, generation_id=1, member_id=member_id, assignments=())
    return member_id


def joined_by_kip_848(peer: Peer, group: str, topic: str) -> str:
    fields = {"member_epoch": 0, "rebalance_timeout_ms": SESSION_MS, "topic_partitions": ()}
    answer = peer.ask("ConsumerGroupHeartbeat", 0, group_id=group, subscribed_topic_names=(topic,), **fields)
    member_id: str = answer.member_id
    return member_id


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("joined", "session_ms"), [(joined_as_classic, SESSION_MS), (joined_by_kip_848, KIP_848_SESSION_MS)]
)
def test_terms_that_alternate_do_not_give_a_dead_member_full_sessions(
    front: Front, joined: Callable[[Peer, str, str], str], session_ms: int
) -> None:
    topic = group = f"dead-while-it-moves-{session_ms}"
    TopicAdmin(front.brokers).create(topic, 1)
    with Peer(front.serving(group)) as peer:
        dead = joined(peer, group, topic)
    left_ms = []
    for _ in range(2):
        front.move(group)
        eventually(lambda: note(front, group) is not None, within_s=_WITHIN_S)
        left_ms.append((note(front, group) or {})[group, dead] or session_ms)
    first, second = left_ms
    assert session_ms - (NOTED_AFTER_S + 5.0) * 1000 < first < session_ms
    assert second < first - (NOTED_AFTER_S - 1.0) * 1000
