"""Tests of the recorded kinds of groups."""

from __future__ import annotations

import asyncio

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import Fenced
from kafka_coord.frontends.kafka.kinds import Kinds
from kafka_coord.frontends.kafka.native import joined
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.model import GroupKind
from kafka_coord.model.names import partition_of
from kafka_coord.wire.frames import answer_start
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import (
    Acknowledged,
    GroupRecord,
    Seen,
    acknowledge,
    forget_kind,
    read_acknowledged,
    read_kinds,
    record_kind,
    record_new,
    undo_move,
)
from kafka_coord.zk.store import Check, Op, OpResult
from tests.simulation.store import SimulatedStore, connected_store

GROUP = "delays"
PARTITION = partition_of(GROUP)
NATIVE, CLIENT_ASSIGNED, MANAGED = GroupKind.NATIVE, GroupKind.CLIENT_ASSIGNED, GroupKind.MANAGED


@pytest.fixture
def store() -> SimulatedStore:
    made = connected_store()
    made.ensure_path(layout.log_partition(PARTITION))
    return made


def fence(version: int = 0) -> Check:
    return Check(layout.log_partition(PARTITION), version)


def test_the_first_record_of_a_group_stays(store: SimulatedStore) -> None:
    odd = "a name that ZooKeeper cannot hold/"
    record_new(store, PARTITION, {GROUP: CLIENT_ASSIGNED, odd: NATIVE}, fence())
    found = record_new(store, PARTITION, {GROUP: NATIVE}, fence())
    assert found.groups == {GROUP: GroupRecord(CLIENT_ASSIGNED), odd: GroupRecord(NATIVE)}
    assert found == record_new(store, PARTITION, {GROUP: NATIVE}, fence()), "nothing is written"
    assert store.exists(layout.group(GROUP)) is None


def test_a_group_that_was_created_in_zookeeper_meanwhile_is_managed(store: SimulatedStore) -> None:
    store.ensure_path(layout.group(GROUP))
    found = record_new(store, PARTITION, {GROUP: CLIENT_ASSIGNED}, fence())
    assert found.groups[GROUP].kind is MANAGED
    assert store.exists(layout.group(GROUP)) is not None


def test_only_the_term_of_the_partition_records(store: SimulatedStore) -> None:
    with pytest.raises(Fenced):
        record_new(store, PARTITION, {GROUP: NATIVE}, fence(7))
    assert not read_kinds(store)


def test_a_concurrent_change_is_not_lost(store: SimulatedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(name for name in map(str, range(10_000)) if partition_of(name) == PARTITION)
    record_new(store, PARTITION, {GROUP: NATIVE}, fence())
    multi, first = store.multi, [other]

    def meddle(ops: list[Op]) -> tuple[OpResult, ...]:
        if first:
            record_new(store, PARTITION, {first.pop(): MANAGED}, fence())
        return multi(ops)

    monkeypatch.setattr(store, "multi", meddle)
    record_kind(store, GROUP, fence(), kind=CLIENT_ASSIGNED, fenced=True)
    assert read_kinds(store) == {GROUP: GroupRecord(CLIENT_ASSIGNED, fenced=True), other: GroupRecord(MANAGED)}
    assert read_kinds(store, [other]) == {other: GroupRecord(MANAGED)}
    forget_kind(store, GROUP)
    assert GROUP not in read_kinds(store)


def test_a_move_is_undone_only_while_it_goes_on(store: SimulatedStore) -> None:
    """Whoever does not know whether the move was recorded must not make the group native: members may have
    committed to it since."""
    record_new(store, PARTITION, {GROUP: NATIVE}, fence())
    record_kind(store, GROUP, fence(), kind=NATIVE, moving="a")
    assert undo_move(store, GROUP, fence())[0]
    assert read_kinds(store) == {GROUP: GroupRecord(NATIVE)}
    record_kind(store, GROUP, fence(), kind=NATIVE, moving="b")
    record_kind(store, GROUP, fence(), kind=CLIENT_ASSIGNED, moving="", fenced=True)
    assert not undo_move(store, GROUP, fence())[0]
    assert read_kinds(store) == {GROUP: GroupRecord(CLIENT_ASSIGNED, fenced=True)}


def test_instances_acknowledge_with_what_they_have_seen(store: SimulatedStore) -> None:
    record_new(store, PARTITION, {GROUP: NATIVE}, fence())
    told = Acknowledged(3, {GROUP: {"m-1": Seen(7, 45_000, 300_000)}})
    acknowledge(store, PARTITION, 2, Acknowledged(1))
    acknowledge(store, PARTITION, 2, told)
    assert read_acknowledged(store, PARTITION, [1, 2]) == {2: told}


def refusal(version: int) -> bytes:
    form = message("JoinGroupResponse")
    answer = form(error_code=Error.INCONSISTENT_GROUP_PROTOCOL, member_id="m-1", protocol_name="")
    return bytes(form.encode(answer, version, bytearray(answer_start(form, version))))


def code(frame: bytes, version: int) -> int:
    form = message("JoinGroupResponse")
    told = form.decode(frame, version, answer_start(form, version))
    assert told.member_id == "m-1"
    return int(told.error_code)


@pytest.mark.parametrize("version", range(LOCAL[11][1].first, LOCAL[11][1].last + 1))
def test_a_member_that_the_fence_may_have_refused_looks_up_its_coordinator_again(version: int) -> None:
    async def play() -> list[int]:
        kinds, found = Kinds(), []

        async def told(**changes: str) -> None:
            await kinds.record(GROUP, NATIVE, **changes)
            found.append(code(joined(kinds, GROUP, refusal(version), version), version))

        found.append(code(joined(kinds, GROUP, refusal(version), version), version))  # nothing is known of it
        await told()
        await told(moving="a")
        await told()  # the fence leaves only after that
        return found

    again, final = Error.COORDINATOR_NOT_AVAILABLE, Error.INCONSISTENT_GROUP_PROTOCOL
    assert asyncio.run(play()) == [again, final, again, again]
