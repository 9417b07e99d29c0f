"""A term is proven by its znode only while the znode is the one that was claimed."""

from __future__ import annotations

import pytest

from kafka_coord.frontends.kafka.claims import claim_term, is_current_term
from kafka_coord.grouplog.manager import Claimed
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store
from tests.zk.sessions import opening_stores

pytestmark = pytest.mark.zookeeper
PARTITION = 7


def play(store: Store, other: Store) -> None:
    claimed = claim_term(store, PARTITION, 1)
    assert is_current_term(store, PARTITION, claimed)
    other.delete(layout.log_partition(PARTITION))
    assert not is_current_term(store, PARTITION, claimed)
    again = claim_term(other, PARTITION, 2)
    assert again.term == claimed.term, "the new znode has not reached the version of the old one"
    assert not is_current_term(store, PARTITION, claimed)
    assert is_current_term(store, PARTITION, again)


def test_a_znode_that_was_made_anew_and_has_reached_the_same_version_proves_nothing(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_one:
        play(open_one(), open_one())


def test_a_newer_claim_ends_the_proof(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_one:
        store, other = open_one(), open_one()
        claimed = claim_term(store, PARTITION, 1)
        newer = claim_term(other, PARTITION, 2)
        assert newer == Claimed(claimed.term + 1, claimed.czxid)
        assert not is_current_term(store, PARTITION, claimed)
