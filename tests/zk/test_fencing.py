"""Tests of writes fenced by a coordinator epoch: units are whole and ordered, and a deposed coordinator writes none."""

from __future__ import annotations

import pytest

from kafka_coord.errors import BadVersion, Fenced, MultiFailed, RequestTooLarge
from kafka_coord.zk.fencing import MAX_BYTES, MAX_OPS, unit_at_fault, write_fenced
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Check, Create, Op, SetData, Stat
from tests.zk.sessions import OpenStore

pytestmark = pytest.mark.zookeeper

EPOCH = "/epoch"


@pytest.fixture
def fence(store: KazooStore) -> Check:
    store.create(EPOCH, b"1")
    return Check(EPOCH, 0)


class Counting:
    """Counts the multis of a store."""

    def __init__(self, store: KazooStore) -> None:
        self._store = store
        self.multis: list[list[Op]] = []
        self.acl_bytes = store.acl_bytes
        self.session = store.session

    def multi(self, ops: list[Op]) -> object:
        self.multis.append(list(ops))
        return self._store.multi(ops)


def test_units_share_a_multi_and_each_gets_its_results(store: KazooStore, fence: Check) -> None:
    counting = Counting(store)
    results = write_fenced(counting, fence, [[Create("/a"), SetData("/a", b"1")], [], [Create("/b")]])  # type: ignore[arg-type]

    assert [len(found) for found in results] == [2, 0, 1]
    assert results[0][0] == "/a"
    assert isinstance(results[0][1], Stat)
    assert results[2] == ("/b",)
    assert [ops[0] for ops in counting.multis] == [fence]


def test_a_deposed_coordinator_writes_nothing(store: KazooStore, fence: Check, open_store: OpenStore) -> None:
    open_store().set(EPOCH, b"2")

    with pytest.raises(Fenced, match="was changed or deleted") as caught:
        write_fenced(store, fence, [[Create("/a")]])

    assert isinstance(caught.value.__cause__, MultiFailed)
    assert isinstance(caught.value.__cause__.cause, BadVersion)
    assert store.exists("/a") is None


def test_a_deleted_epoch_also_fences(store: KazooStore, fence: Check) -> None:
    store.delete(EPOCH)
    with pytest.raises(Fenced):
        write_fenced(store, fence, [[Create("/a")]])


def test_nothing_is_written_in_another_session_than_the_one_that_was_elected(
    store: KazooStore, fence: Check, open_store: OpenStore
) -> None:
    counting = Counting(store)
    ended = open_store().session.session_id

    with pytest.raises(Fenced, match="session ended"):
        write_fenced(counting, fence, [[Create("/a")]], ended)  # type: ignore[arg-type]

    assert counting.multis == []
    write_fenced(counting, fence, [[Create("/a")]], store.session.session_id)  # type: ignore[arg-type]
    assert store.exists("/a") is not None


def test_a_failure_of_another_operation_does_not_count_as_fenced(store: KazooStore, fence: Check) -> None:
    with pytest.raises(MultiFailed) as caught:
        write_fenced(store, fence, [[Create("/a")], [SetData("/none", b"")]])
    assert caught.value.index == 1
    assert store.exists("/a") is None


def test_units_are_divided_into_requests_by_bytes_and_count_and_never_split(store: KazooStore, fence: Check) -> None:
    counting = Counting(store)
    big = [[Create(f"/big{n}"), SetData(f"/big{n}", bytes(300_000))] for n in range(4)]
    small = [[Create(f"/small{n}-{m}") for m in range(3)] for n in range(400)]

    results = write_fenced(counting, fence, [*big, *small])  # type: ignore[arg-type]

    assert len(results) == 404
    assert len(store.children("/")) == 1 + 4 + 1_200
    assert len(counting.multis) >= 3
    for ops in counting.multis:
        assert ops[0] == fence
        assert len(ops) <= MAX_OPS + 1
        assert sum(len(op.data) for op in ops if isinstance(op, SetData)) <= MAX_BYTES
        for n in range(4):
            assert len([op for op in ops if op.path == f"/big{n}"]) in {0, 2}
        for n in range(400):
            assert len([op for op in ops if op.path.startswith(f"/small{n}-")]) in {0, 3}


def test_a_unit_too_large_for_a_request_is_refused_and_earlier_units_are_written(
    store: KazooStore, fence: Check
) -> None:
    with pytest.raises(RequestTooLarge):
        write_fenced(store, fence, [[Create("/a")], [Create("/b", bytes(1_100_000))], [Create("/c")]])
    assert store.children("/") == ("a", "epoch")


def test_without_units_no_request_is_sent(store: KazooStore, fence: Check) -> None:
    counting = Counting(store)
    assert write_fenced(counting, fence, []) == []  # type: ignore[arg-type]
    assert counting.multis == []


def test_the_operation_that_fails_names_its_unit() -> None:
    units = [[Check("/a", 0)] * 2, [Check("/b", 0)]]
    assert [unit_at_fault(units, index) for index in range(3)] == [0, 0, 1]
