"""The simulated ZooKeeper answers as the real one does. ``SEQUENCES=1000`` compares more (50 by default)."""

import os

from kafka_coord.dev.simulation.comparison import Answers, sequence_of
from kafka_coord.dev.simulation.scheduler import VirtualClock
from kafka_coord.dev.simulation.server import SimulatedZooKeeper
from kafka_coord.dev.simulation.store import Quiet, SimulatedStore
from kafka_coord.zk import connect
from tests.waiting import eventually

SEQUENCES = int(os.environ.get("SEQUENCES", "50"))
CLIENTS = 2


def test_random_operations_are_answered_alike(zk_hosts: str) -> None:
    base = connect(zk_hosts, session_timeout_ms=10_000)
    try:
        for seed in range(SEQUENCES):
            base.create(f"/s{seed}")
            _compare(seed, f"{zk_hosts}/s{seed}")
    finally:
        base.close()


def _compare(seed: int, hosts: str) -> None:
    server = SimulatedZooKeeper()
    simulated = [SimulatedStore(server, VirtualClock(), Quiet(), 10_000) for _ in range(CLIENTS)]
    for store in simulated:
        store.connect(server.replicas[0])
    real = [connect(hosts, session_timeout_ms=10_000) for _ in range(CLIENTS)]

    ours, theirs = Answers(simulated), Answers(real)
    story = []
    try:
        for client, what, call in sequence_of(seed, clients=CLIENTS):
            story.append(f"client {client}: {what}")
            expected, found = theirs.ask(client, call), ours.ask(client, call)
            assert found == expected, f"seed {seed}, after {story}"
            for store in simulated:
                while store.has_notification():
                    store.deliver()
            for store in real:
                store.sync()  # what the server sent before it has arrived with it
            if ours.heard() != theirs.heard():  # on its way to the thread that calls watchers
                eventually(lambda: ours.heard() == theirs.heard(), 3)
    finally:
        for store in real:
            store.close()
