"""Tests that a pass decodes only values that were written since the previous pass."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.group_reader import GroupQuery, observe
from kafka_coord.coordinator.image import Snapshot
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.model import Ledger
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import connected_store


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_decoded_value_is_used_until_its_znode_is_written_again() -> None:
    store = connected_store(SimulatedZooKeeper())
    path, memory = layout.ledger("delays", "c1"), GroupMemory("delays")
    store.ensure_path(layout.owners("delays"))
    store.create(path, fields.dump(Ledger("c1", 1, generation=1).to_json()))

    def ledgers() -> dict[str, Ledger]:
        (found,) = observe(store, [GroupQuery(memory, {}, ())], epoch=1, options=CoordinatorOptions())
        assert isinstance(found, Snapshot)
        return dict(found.observation.ledgers)

    first = ledgers()["c1"]
    assert ledgers()["c1"] is first
    store.set(path, fields.dump(Ledger("c1", 1, generation=2).to_json()))
    assert ledgers()["c1"].generation == 2
    store.delete(path)
    assert not ledgers()
    assert path not in memory.known.decoded


@pytest.mark.usefixtures("quiet")
def test_a_coordinator_decodes_no_ledger_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: Counter[tuple[str, str, int]] = Counter()
    original = Ledger.from_json

    def from_json(value: object, where: str, *, consumer: str, znode_version: int) -> Ledger:
        ledger = original(value, where, consumer=consumer, znode_version=znode_version)  # type: ignore[arg-type]
        if znode_version:  # the checks of invariants decode without a version, so they do not count
            decoded[consumer, str(ledger.incarnation), znode_version] += 1
        return ledger

    monkeypatch.setattr(Ledger, "from_json", from_json)
    cluster = SimulatedCluster(7)
    assert cluster.verdict() is None
    elections = sum(change.path == "/consumers/coordinator" for t in cluster.server.log for change in t.changes)
    assert decoded
    assert max(decoded.values()) <= elections
