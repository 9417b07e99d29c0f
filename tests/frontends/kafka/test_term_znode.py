"""A term is proven by its znode only while the znode is the one that was claimed."""

from __future__ import annotations

import pytest
from msgspec import structs

from kafka_coord.errors import TreeRefused
from kafka_coord.grouplog.term import Claimed
from kafka_coord.grouplog.trees import claim_term, is_current_term, stored_term
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, OwnTree, change_record, make_tree
from kafka_coord.zk.store import Node, Store
from tests.zk.sessions import opening_stores

pytestmark = pytest.mark.zookeeper
PARTITION = 7


def joined(store: Store) -> OwnTree:
    tree = OwnTree(store)
    tree.join()
    return tree


def play(store: Store, other: Store) -> None:
    tree = joined(store)
    claimed = claim_term(store, PARTITION, 1, tree)
    assert is_current_term(store, PARTITION, claimed)
    other.delete(layout.log_partition(PARTITION))
    assert not is_current_term(store, PARTITION, claimed)
    again = claim_term(other, PARTITION, 2, tree)
    assert again.version == claimed.version, "the new znode has not reached the version of the old one"
    assert not is_current_term(store, PARTITION, claimed)
    assert is_current_term(store, PARTITION, again)


def test_a_znode_that_was_made_anew_and_has_reached_the_same_version_proves_nothing(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_one:
        play(open_one(), open_one())


def test_a_newer_claim_ends_the_proof(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_one:
        store, other = open_one(), open_one()
        tree = joined(store)
        claimed = claim_term(store, PARTITION, 1, tree)
        newer = claim_term(other, PARTITION, 2, tree)
        assert newer == Claimed(claimed.term + 1, claimed.version + 1, claimed.czxid)
        assert not is_current_term(store, PARTITION, claimed)


@pytest.mark.parametrize(
    ("stored", "newest", "term"),
    [
        (b"", -1, 1),
        (b'{"version":1,"term":900}', -1, 901),
        (b'{"version":1,"term":900}', 1_000, 1_001),
        (b'{"version":1,"term":32766}', -1, 32_768),
    ],
)
def test_a_terms_number_exceeds_every_number_that_is_known(
    zk_hosts: str, stored: bytes, newest: int, term: int
) -> None:
    """What the znode stores, its version, and the log: the znode may have been made anew, and the tree restored."""
    with opening_stores(lambda: zk_hosts) as open_one:
        store = open_one()
        tree, path = joined(store), layout.log_partition(PARTITION)
        store.ensure_path(layout.LOG_PARTITIONS)
        store.create(path, stored)
        claimed = claim_term(store, PARTITION, 1, tree, newest=newest)
        assert (claimed.term, claimed.version) == (term, 1)
        assert stored_term(path, store.get(path)) == term


def test_nobody_claims_for_a_tree_that_was_replaced(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_one:
        store = open_one()
        tree = joined(store)
        store.delete(layout.CLUSTER)
        make_tree(store, ClusterRecord.new(store, 2))
        with pytest.raises(TreeRefused, match="start it again"):
            claim_term(store, PARTITION, 1, tree)


def test_a_claim_outlasts_a_change_of_where_the_metadata_is(zk_hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opening_stores(lambda: zk_hosts) as open_one:
        store, other = open_one(), open_one()
        tree, check = joined(store), OwnTree.check

        def changed_meanwhile(self: OwnTree, found: Node | None) -> None:
            check(self, found)
            monkeypatch.setattr(OwnTree, "check", check)
            change_record(other, lambda record: structs.replace(record, by="a test"))

        monkeypatch.setattr(OwnTree, "check", changed_meanwhile)
        assert claim_term(store, PARTITION, 1, tree).term == 1
