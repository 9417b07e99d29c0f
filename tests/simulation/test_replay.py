"""Tests that a seed replays a history, independently of the order of sets in a process."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.shrinking import History, play

SEEDS = 6


def _told(hash_seed: str) -> str:
    run = [sys.executable, "-m", "tests.simulation.run", "--seed", "718", "--seeds", str(SEEDS), "--story"]
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(run, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


def test_two_processes_with_different_hash_seeds_play_the_same_histories() -> None:
    one, other = _told("0"), _told("77")
    assert one.count("digest") == SEEDS
    assert "is handed" in one
    assert one == other


def test_computing_all_possible_events_at_every_step_changes_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster recomputes the ready actors and the due events only after changes. It must miss none."""
    choices = SimulatedCluster._choices

    def after_looking_at_everything(cluster: SimulatedCluster) -> list[Callable[[], None]]:
        cluster.look_at_all()
        cluster._look_at = 0.0
        return choices(cluster)

    logging.disable(logging.CRITICAL)
    try:
        sparing = [play(History(seed)).cluster.server.digest() for seed in range(SEEDS)]
        monkeypatch.setattr(SimulatedCluster, "_choices", after_looking_at_everything)
        assert [play(History(seed)).cluster.server.digest() for seed in range(SEEDS)] == sparing
    finally:
        logging.disable(logging.NOTSET)
