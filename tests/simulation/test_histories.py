"""Tests that every invariant holds in seeded histories with faults, and that a seed replays exactly."""

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterator

import pytest

from kafka_coord.consumer.connector import Connector
from tests.simulation.cluster import SimulatedCluster, run_history
from tests.simulation.faults import CLASSIC_FAULTS, FAULTS, KAFKA_FAULTS, MOVE, POLLS, SILENCE, SUBSCRIBE, UNREADABLE
from tests.simulation.unreadable import KINDS

SEEDS = 60
MOST_SEEDS = 200
"""The most histories of a test that goes on until everything that it wants has occurred."""
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


def _histories(
    faults: frozenset[str], first: int, least: int, occurred: Counter[str], wanted: Collection[str] = ()
) -> Iterator[SimulatedCluster]:
    """Runs histories in which the invariants hold: at least ``least``, and more until ``wanted`` has occurred."""
    for seed in range(first, first + MOST_SEEDS):
        if seed >= first + least and all(occurred[what] for what in wanted):
            return
        cluster = SimulatedCluster(seed, faults)
        broken = cluster.verdict()
        assert broken is None, f"seed {seed}: {broken}\n" + "\n".join(cluster.story[-80:])
        assert cluster.audit() == "", f"seed {seed}"
        occurred += cluster.occurred
        yield cluster


def test_invariants_hold_in_histories_with_faults() -> None:
    assert sum(1 for _ in _histories(FAULTS, 0, SEEDS, Counter())) == SEEDS


def test_invariants_hold_when_znodes_of_every_kind_become_unreadable() -> None:
    occurred: Counter[str] = Counter()
    wanted = {f"unreadable {kind}" for kind in KINDS}
    deque(_histories(FAULTS | {UNREADABLE, SUBSCRIBE}, 2_000, 30, occurred), 0)
    deque(_histories(frozenset({UNREADABLE, "kill", "close", "grow"}), 2_000, 30, occurred, wanted), 0)
    assert wanted - occurred.keys() == set()
    assert occurred["subscribed anew"] > 10


def test_invariants_hold_with_kafka_clients_among_the_members() -> None:
    occurred: Counter[str] = Counter()
    kinds = set()
    for cluster in _histories(KAFKA_FAULTS, 0, 30, occurred, KAFKA_MOMENTS):
        kinds.add((cluster.kind.kafka, cluster.kind.static))
    assert len(kinds) == 4
    assert KAFKA_MOMENTS - occurred.keys() == set()


def test_invariants_hold_with_classic_clients_among_the_members() -> None:
    occurred: Counter[str] = Counter()
    kinds = set()
    for cluster in _histories(CLASSIC_FAULTS, 86, 60, occurred, CLASSIC_MOMENTS):
        kinds.add((cluster.kind.classic, cluster.kind.static))
    assert len(kinds) == 6
    assert CLASSIC_MOMENTS - occurred.keys() == set()


def test_invariants_hold_while_the_source_of_the_metadata_changes_and_brokers_answer_wrongly() -> None:
    occurred: Counter[str] = Counter()
    for faults in (FAULTS | {POLLS}, KAFKA_FAULTS | {POLLS}, frozenset({POLLS, "grow", "kill"})):
        deque(_histories(faults, 0, 15, occurred), 0)
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
