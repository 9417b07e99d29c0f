"""Which tree may write to the groups log, on real brokers: the newest generation, whoever claims later."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest
from msgspec import structs

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.errors import BrokerError, TreeRefused
from kafka_coord.grouplog.term import LogLoad, TermEnded, producer_of
from kafka_coord.grouplog.trees import EPOCH_MARGIN, epoch_of_new_tree, read_log_tree, stored_term, write_generation
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, Source, make_tree, read_cluster_record
from kafka_coord.zk.store import Store
from tests.cli.running import started
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.terms import TREE, Claimant, Log, one_partition_log, record, run
from tests.zk.sessions import opening_stores

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
NEW_TREE = ClusterRecord("t2", 2, Source.ZOOKEEPER, 0, making="restore")


@pytest.fixture
def log(front: Front) -> Log:
    return one_partition_log(front)


def cluster_of(log: Log) -> ClusterClient:
    return ClusterClient([("127.0.0.1", log.leader.listener_port)])


async def load(log: Log, claimant: Claimant) -> LogLoad:
    found = LogLoad(claimant.connection, 0, log.topic)
    async for _ in found.up_to():
        pass
    return found


def test_a_new_generation_ends_the_older_trees_terms_and_they_never_claim_again(log: Log, zk_hosts: str) -> None:
    async def play(store: Store) -> None:
        old, new = Claimant(log, "old"), Claimant(log, "new")
        first = await old.claim(40_000)
        first.serve()
        await first.append([record(1), record(2, "other")])
        with closing(cluster_of(log)) as cluster:
            found = await read_log_tree(cluster, log.topic)
        assert found.claim is not None
        assert (found.claim.tree, found.generation, found.groups, found.terms) == ("t1", 1, 2, {0: 40_000})
        assert found.refuses(NEW_TREE) is False
        assert found.refuses(structs.replace(TREE, tree="t3")) is True
        make_tree(store, NEW_TREE)

        for _ in range(2):  # the second time, there is nothing left to do
            with closing(cluster_of(log)) as cluster:
                assert await write_generation(cluster, store, NEW_TREE, log.topic) == 1

        path = layout.log_partition(0)
        assert stored_term(path, store.get(path)) == 40_001, "the number goes on from the log's"
        with pytest.raises(TermEnded):
            await first.append([record(3)])
        known = await load(log, old)
        with pytest.raises(TreeRefused, match="belongs to tree t2, generation 2") as refused:
            known.check(TREE)
        assert refused.value.newer == "tree t2, generation 2"
        known.check(NEW_TREE)

        # an instance of the old tree that had read the log before the new generation was written
        with suppress(TermEnded, BrokerError):
            await old.claim(40_002)
        late = await load(log, old)
        with pytest.raises(TreeRefused, match="generation 2"):
            late.check(TREE)
        late.check(NEW_TREE)
        await new.claim(late.newest + 1)
        for one in (old, new):
            one.connection.close()

    with opening_stores(lambda: zk_hosts) as open_store:
        run(play(open_store()))


def test_every_producer_id_that_a_claim_skips_is_fenced(log: Log) -> None:
    async def play() -> None:
        old, between, new = (Claimant(log, name) for name in ("old", "between", "new"))
        first = await old.claim(5)
        first.serve()
        await first.append([record(1)])
        skipped = await new.claim(3 << 15, newest=5)
        assert producer_of(0, 3 << 15)[0] - producer_of(0, 5)[0] == 3
        with pytest.raises(TermEnded):
            await first.append([record(2)])
        for number in (7, 40_000, 70_000):
            with pytest.raises(BrokerError):
                await between.claim(number)
        with pytest.raises(BrokerError, match="producer ids would have to be fenced"):
            await new.claim(2_000 << 15, newest=skipped.term)
        for one in (old, between, new):
            one.connection.close()

    run(play())


def test_an_instance_of_a_tree_that_was_made_by_accident_ends_and_claims_nothing(front: Front, zk_hosts: str) -> None:
    broker = front.cluster.brokers[0]
    with opening_stores(lambda: zk_hosts) as open_store:
        store = open_store()
        store.ensure_path(layout.BROKER_IDS)
        own, theirs = f"127.0.0.1:{free_port()}", f"127.0.0.1:{broker.listener_port}"
        arguments = "-z", zk_hosts, "--listen-kafka", own, "--broker-listener", theirs
        with started("serve", "--broker-id", str(broker.broker_id), *arguments) as process:
            ended = process.ended(within_s=60)
        assert (ended.code, "the groups log belongs to tree" in ended.err) == (6, True), ended.err
        assert store.exists(layout.log_partition(0)) is None
        record = read_cluster_record(store)
        assert record is not None
        assert record.superseded_by == "", "the other tree is not newer"


def test_a_new_trees_epoch_exceeds_all_that_are_known() -> None:
    assert epoch_of_new_tree(7, 900, 3) == 900 + EPOCH_MARGIN
    assert epoch_of_new_tree(0, 0) == 0, "nothing was before it"
    with pytest.raises(TreeRefused, match="too high"):
        epoch_of_new_tree((1 << 31) - 2)


def test_a_log_in_another_format_is_refused(log: Log) -> None:
    async def play() -> None:
        claimant = Claimant(log, "newer")
        term = await claimant.claim(9)
        term.serve()
        key = (100).to_bytes(2, "big") + (9).to_bytes(8, "big")
        await term.append([record(1)._replace(key=key, value=b'{"version":2}')])
        with pytest.raises(TreeRefused, match=r"has another format \(version 2;"):
            await load(log, claimant)
        with closing(cluster_of(log)) as cluster, pytest.raises(TreeRefused, match="another format"):
            await read_log_tree(cluster, log.topic)
        claimant.connection.close()

    run(play())
