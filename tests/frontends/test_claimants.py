"""Which instance claimed a partition last, as a real ZooKeeper says."""

from __future__ import annotations

import asyncio

import pytest

from kafka_coord.frontends.kafka.instances import Claimants
from kafka_coord.grouplog.trees import claim_term
from kafka_coord.zk import layout
from kafka_coord.zk.root import OwnTree
from tests.zk.sessions import opening_stores

pytestmark = pytest.mark.zookeeper
PARTITION, DAMAGED = 7, 8


def test_the_last_claimant_of_a_partition_is_known(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_store:
        store = open_store()

        def last(partition: int = PARTITION) -> int | None:
            return asyncio.run(Claimants(store).last(partition))

        assert last() is None, "nobody has claimed it yet"
        tree = OwnTree(store)
        tree.join()
        for broker_id in (1, 2, 1):
            claim_term(store, PARTITION, broker_id, tree)
            assert last() == broker_id
        store.create(layout.log_partition(DAMAGED), b"damaged")
        assert last(DAMAGED) is None
        store.close()
        assert last() is None, "unknown, and nobody waits for ZooKeeper"
