"""Tests that every invariant holds in seeded histories with faults, and that a seed replays exactly."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from kafka_coord.consumer.connector import Connector
from tests.simulation.cluster import SimulatedCluster, run_history
from tests.simulation.faults import CLASSIC_FAULTS, FAULTS, KAFKA_FAULTS, MOVE, POLLS, SILENCE, SUBSCRIBE, UNREADABLE
from tests.simulation.unreadable import KINDS

SEEDS = 60
KAFKA_SEEDS = 30
CLASSIC_SEEDS = (*range(30, 90), 104)
CLASSIC_MOMENTS = {
    *("joined as a classic client, range", "joined as a classic client, cooperative-sticky"),
    "heartbeat of a classic client answered REBALANCE_IN_PROGRESS",
    "heartbeat of a classic client answered UNKNOWN_MEMBER_ID",
    *("join of a classic client answered NOT_COORDINATOR", "took the place of a classic member"),
}
KAFKA_MOMENTS = {
    *(MOVE, SUBSCRIBE, "registered as a Kafka client", "heard of after a failure", "instance id not released"),
    "heartbeat answered UNKNOWN_MEMBER_ID",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_invariants_hold_in_histories_with_faults() -> None:
    for seed in range(SEEDS):
        failure = run_history(seed)
        assert failure is None, f"seed {seed}: {failure[0]}\n" + "\n".join(failure[1][-80:])


def test_invariants_hold_when_znodes_of_every_kind_become_unreadable() -> None:
    occurred: Counter[str] = Counter()
    for faults in (FAULTS | {UNREADABLE, SUBSCRIBE}, frozenset({UNREADABLE, "kill", "close", "grow"})):
        for seed in (*range(2_010, 2_040), 2_053):
            cluster = SimulatedCluster(seed, faults)
            broken = cluster.verdict()
            assert broken is None, f"seed {seed}: {broken}\n" + "\n".join(cluster.story[-80:])
            assert cluster.audit() == "", f"seed {seed}"
            occurred += cluster.occurred
    assert {kind for kind in KINDS if not occurred[f"unreadable {kind}"]} == set()
    assert occurred["subscribed anew"] > 10


def test_invariants_hold_with_kafka_clients_among_the_members() -> None:
    occurred: Counter[str] = Counter()
    kinds = set()
    for seed in range(KAFKA_SEEDS):
        cluster = SimulatedCluster(seed, KAFKA_FAULTS)
        broken = cluster.verdict()
        assert broken is None, f"seed {seed}: {broken}\n" + "\n".join(cluster.story[-80:])
        assert cluster.audit() == "", f"seed {seed}"
        occurred += cluster.occurred
        kinds.add((cluster.kind.kafka, cluster.kind.static))
    assert len(kinds) == 4
    assert KAFKA_MOMENTS - occurred.keys() == set()


def test_invariants_hold_with_classic_clients_among_the_members() -> None:
    occurred: Counter[str] = Counter()
    kinds = set()
    for seed in CLASSIC_SEEDS:
        cluster = SimulatedCluster(seed, CLASSIC_FAULTS)
        broken = cluster.verdict()
        assert broken is None, f"seed {seed}: {broken}\n" + "\n".join(cluster.story[-80:])
        assert cluster.audit() == "", f"seed {seed}"
        occurred += cluster.occurred
        kinds.add((cluster.kind.classic, cluster.kind.static))
    assert len(kinds) == 6
    assert CLASSIC_MOMENTS - occurred.keys() == set()


def test_invariants_hold_while_the_source_of_the_metadata_changes_and_brokers_answer_wrongly() -> None:
    occurred: Counter[str] = Counter()
    for faults in (FAULTS | {POLLS}, KAFKA_FAULTS | {POLLS}, frozenset({POLLS, "grow", "kill"})):
        for seed in range(15):
            cluster = SimulatedCluster(seed, faults)
            broken = cluster.verdict()
            assert broken is None, f"seed {seed}: {broken}\n" + "\n".join(cluster.story[-80:])
            assert cluster.audit() == "", f"seed {seed}"
            occurred += cluster.occurred
    assert occurred[POLLS] >= 12
    assert occurred["finalised"] >= 12


def test_a_history_without_faults_comes_to_rest() -> None:
    assert run_history(7, frozenset()) is None


def test_a_seed_replays_exactly() -> None:
    stories = []
    for _ in range(2):
        cluster = SimulatedCluster(3)
        try:
            cluster.run()
        finally:
            cluster.end()
        stories.append(list(cluster.story))
    assert stories[0] == stories[1]
    assert any("is handed" in line for line in stories[0])


def test_consumers_wait_and_keep_their_memberships_while_zookeeper_is_silent() -> None:
    waits = losses = silences = 0
    for seed in range(40):
        cluster = SimulatedCluster(seed, frozenset({SILENCE}))
        broken = cluster.verdict()
        assert broken is None, f"seed {seed}: {broken}\n" + "\n".join(cluster.story[-80:])
        silences += cluster.occurred[SILENCE]
        connectors = [one.connector for one in cluster.processes.values() if isinstance(one.connector, Connector)]
        waits += sum(one.counters.waits for one in connectors)
        losses += sum(one.counters.losses for one in connectors)
    assert silences > 20
    assert 0 < losses < waits, "only some sessions do not survive"
