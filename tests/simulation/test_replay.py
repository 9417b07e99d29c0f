"""A seed is all it takes to see a history again, whatever order this process keeps its sets in."""

import os
import subprocess
import sys

SEEDS = 6


def _told(hash_seed: str) -> str:
    run = [sys.executable, "-m", "kafka_coord.dev.simulation.run", "--seed", "74", "--seeds", str(SEEDS), "--story"]
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(run, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


def test_two_processes_with_different_hash_seeds_play_the_same_histories() -> None:
    one, other = _told("0"), _told("77")
    assert one.count("digest") == SEEDS
    assert "is handed" in one
    assert one == other
