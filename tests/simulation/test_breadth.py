"""Tests that every event and every kind of group that the simulation should cover does occur."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from kafka_coord.model import Mode
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import FAULTS

SEEDS = 60

MOMENTS = {
    "request lost",
    "reply lost",
    "session expired",
    "topic created",
    "topic deleted",
    "killed between requests",
    "killed before the effect of a request",
    "killed between the effect of a request and its reply",
    "two believe they lead",
    "deposed between read and write",
    "offsets set by an operator",
    "frame lost",
    "resumed over a new connection",
    "registered over a socket",
    "expired by a gateway",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
def test_every_fault_and_every_kind_of_group_occurs() -> None:
    occurred: Counter[str] = Counter()
    kinds = []
    for seed in range(1_100, 1_100 + SEEDS):
        cluster = SimulatedCluster(seed)
        broken = cluster.verdict()
        assert broken is None, f"seed {seed}: {broken}"
        occurred += cluster.occurred
        occurred["offsets set by an operator"] += cluster.checker.resets
        occurred["plan checked"] += cluster.checker.plans
        occurred["plan with commands checked"] += cluster.checker.plans_with_commands
        occurred["expired by a gateway"] += len(cluster.checker.expired)
        kinds.append(cluster.kind)
    assert occurred.keys() >= FAULTS | MOMENTS, sorted((FAULTS | MOMENTS) - occurred.keys())
    assert occurred["plan checked"] > 20 * SEEDS
    assert occurred["plan with commands checked"] > 5 * SEEDS
    assert {kind.mode for kind in kinds} == {Mode.INCREMENTAL, Mode.EAGER}
    assert {kind.assignor for kind in kinds} == {None, "range", "roundrobin", "weighted"}
    assert {kind.patterns for kind in kinds} == {"none", "all", "some"}
    assert {kind.sockets for kind in kinds} == {"none", "all", "some"}
    assert {kind.from_the_end for kind in kinds} == {True, False}
    assert {kind.grace_ms > 0 for kind in kinds} == {True, False}
