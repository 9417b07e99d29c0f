"""Tests that the simulated ZooKeeper answers like the real one. ``SEQUENCES=1000`` compares more than the default of
50."""

import os
from contextlib import suppress

import pytest

from kafka_coord.zk import connect, session
from tests.simulation.comparison import Answers, sequence_of
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import connected_store
from tests.waiting import eventually

SEQUENCES = int(os.environ.get("SEQUENCES", "50"))
CLIENTS = 2


@pytest.mark.timeout(max(240, SEQUENCES))
def test_random_operations_get_equal_answers(zk_hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = connect(zk_hosts, session_timeout_ms=10_000)
    try:
        for seed in range(SEQUENCES):
            # the real store sets many watches in two ways: one at a time, or all in one request
            monkeypatch.setattr(session, "_MANY_WATCHES", (1, 1_000)[seed % 2])
            base.create(f"/s{seed}")
            _compare(seed, f"{zk_hosts}/s{seed}")
    finally:
        base.close()


def _compare(seed: int, hosts: str) -> None:
    server = SimulatedZooKeeper()

    ours = Answers(lambda: connected_store(server), CLIENTS)
    theirs = Answers(lambda: connect(hosts, session_timeout_ms=10_000), CLIENTS)
    story = []
    try:
        for client, what, call in sequence_of(seed, clients=CLIENTS):
            story.append(f"client {client}: {what}")
            expected, found = theirs.ask(client, call), ours.ask(client, call)
            assert found == expected, f"seed {seed}, after {story}"
            server.catch_up(server.replicas[0])
            for store in ours.stores:
                while store.has_notification():
                    store.deliver()
            for store in theirs.stores:
                store.sync()  # all earlier messages of the server have also arrived
            if ours.heard() != theirs.heard():  # an event may still be on its way to the thread that calls watchers
                with suppress(AssertionError):
                    eventually(lambda: ours.heard() == theirs.heard(), 3)
                assert ours.heard() == theirs.heard(), f"seed {seed}, after {story}"
    finally:
        for store in theirs.stores:
            store.close()
