"""A pass decodes only what was written since the previous one."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from kafka_coord.coordinator.memory import Decoded
from kafka_coord.model import Ledger
from kafka_coord.zk.store import Node, Stat
from tests.simulation.cluster import SimulatedCluster


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _written_at(mzxid: int) -> Node:
    return Node(b"{}", Stat(1, mzxid, 0, 0, 0, 0, 0, 2, 0, 1))


def test_a_value_holds_until_its_znode_is_written_again() -> None:
    decoded = Decoded()
    decoded.replace({"/a": (5, "first")})
    assert decoded.get("/a", _written_at(5)) == "first"
    assert decoded.get("/a", _written_at(6)) is None
    assert decoded.get("/b", _written_at(5)) is None


def test_what_a_look_did_not_find_is_not_kept() -> None:
    decoded = Decoded()
    decoded.replace({"/a": (5, "first"), "/b": (6, "second")})
    decoded.replace({"/b": (6, "second")})
    assert decoded.get("/a", _written_at(5)) is None
    assert decoded.get("/b", _written_at(6)) == "second"


@pytest.mark.usefixtures("quiet")
def test_a_coordinator_at_work_decodes_no_ledger_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: Counter[tuple[str, str, int]] = Counter()
    original = Ledger.from_json

    def from_json(value: object, consumer: str, znode_version: int, where: str) -> Ledger:
        ledger = original(value, consumer, znode_version, where)  # type: ignore[arg-type]
        if znode_version:  # the checks of invariants read without a version, so they decode each once too
            decoded[consumer, str(ledger.incarnation), znode_version] += 1
        return ledger

    monkeypatch.setattr(Ledger, "from_json", from_json)
    cluster = SimulatedCluster(7)
    assert cluster.verdict() is None
    elections = sum(change.path == "/consumers/coordinator" for t in cluster.server.log for change in t.changes)
    assert decoded
    assert max(decoded.values()) <= elections
