"""Tests of the recorded kinds of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import Fenced, MultiFailed, StoreUnavailable
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.instances import Instances
from kafka_coord.frontends.kafka.native import _BEAT as BEAT
from kafka_coord.frontends.kafka.native import _SOON_MS, FENCE, Back, Kinds, NativeGroups, PassedOn
from kafka_coord.model import GroupKind
from kafka_coord.model.names import partition_of
from kafka_coord.wire.frames import RequestHeader, answer_frame, answer_start
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import (
    AT_REST,
    Acknowledged,
    GroupRecord,
    RecordChanged,
    Seen,
    acknowledge,
    forget_kind,
    give_up,
    read_acknowledged,
    read_given_up,
    read_kinds,
    record_kind,
    record_new,
)
from kafka_coord.zk.store import Check, Op, OpResult
from tests.frontends.kafka.callers import OpenCaller
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
    record_kind(store, GROUP, fence(), kind=CLIENT_ASSIGNED, fenced="a")
    assert read_kinds(store) == {GROUP: GroupRecord(CLIENT_ASSIGNED, fenced="a"), other: GroupRecord(MANAGED)}
    assert read_kinds(store, [other]) == {other: GroupRecord(MANAGED)}
    with pytest.raises(RecordChanged):
        record_kind(store, GROUP, fence(), GroupRecord(NATIVE), kind=MANAGED)


def test_a_record_goes_with_its_group_unless_the_brokers_keep_something_of_it(store: SimulatedStore) -> None:
    record_new(store, PARTITION, {GROUP: NATIVE}, fence())
    for changes in ({"moving": "a"}, {"moving": "", "fenced": "a"}):
        record_kind(store, GROUP, fence(), kind=CLIENT_ASSIGNED, **changes)
        forget_kind(store, GROUP)
        assert GROUP in read_kinds(store)
    record_kind(store, GROUP, fence(), kind=NATIVE, fenced="")
    forget_kind(store, GROUP)
    assert GROUP not in read_kinds(store)


def lost(store: SimulatedStore, monkeypatch: pytest.MonkeyPatch, *, effective: bool) -> None:
    """Has the next write no known outcome, whether or not it takes effect."""
    multi = store.multi

    def once(ops: list[Op]) -> tuple[OpResult, ...]:
        monkeypatch.setattr(store, "multi", multi)
        if effective:
            multi(ops)
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(store, "multi", once)


def moving(store: SimulatedStore) -> Kinds:
    """The kinds of an instance that has begun a move, ``a``."""
    kinds = Kinds(store)

    async def begin() -> None:
        await kinds.begin(PARTITION, 0, {})
        await kinds.record_first(GROUP, NATIVE)
        await kinds.record(GROUP, NATIVE, GroupRecord(NATIVE), moving="a")

    asyncio.run(begin())
    return kinds


@pytest.mark.parametrize("effective", [True, False])
def test_a_move_whose_end_is_unknown_is_undone_only_if_the_record_says_that_it_goes_on(
    store: SimulatedStore, monkeypatch: pytest.MonkeyPatch, effective: bool
) -> None:
    """Whoever does not know whether the move was recorded must not make the group native: members may have
    committed to it since."""
    kinds = moving(store)
    frozen, ended = GroupRecord(NATIVE, moving="a"), GroupRecord(CLIENT_ASSIGNED, fenced="a")
    lost(store, monkeypatch, effective=effective)
    with pytest.raises(StoreUnavailable):
        asyncio.run(kinds.record(GROUP, CLIENT_ASSIGNED, frozen, moving="", fenced="a"))
    undoing = asyncio.run(kinds.claim_undo(GROUP, "a"))
    assert (undoing is None) is effective
    assert read_kinds(store)[GROUP] == (ended if effective else GroupRecord(NATIVE, moving=undoing or ""))
    if not effective:
        with pytest.raises(RecordChanged):  # the move cannot end well any more
            asyncio.run(kinds.record(GROUP, CLIENT_ASSIGNED, frozen, moving="", fenced="a"))


def test_only_the_move_that_is_meant_is_undone(store: SimulatedStore) -> None:
    """One that began later goes on, and what is at rest stays so."""
    kinds = moving(store)
    assert asyncio.run(kinds.claim_undo(GROUP, "b")) is None
    assert read_kinds(store)[GROUP].moving == "a"
    asyncio.run(kinds.record(GROUP, CLIENT_ASSIGNED, moving="", fenced="a"))
    assert asyncio.run(kinds.claim_undo(GROUP, "")) is None
    assert read_kinds(store)[GROUP] == GroupRecord(CLIENT_ASSIGNED, fenced="a")


@pytest.mark.parametrize("effective", [True, False])
def test_an_undoing_whose_outcome_is_unknown_is_found_again(
    store: SimulatedStore, monkeypatch: pytest.MonkeyPatch, effective: bool
) -> None:
    kinds = moving(store)
    lost(store, monkeypatch, effective=effective)
    with pytest.raises(StoreUnavailable):
        asyncio.run(kinds.claim_undo(GROUP, "a"))
    undoing = asyncio.run(kinds.claim_undo(GROUP, "a"))
    assert undoing is not None
    assert asyncio.run(kinds.claim_undo(GROUP, undoing)) == undoing, "as the next term finds it"


def test_a_write_of_unknown_outcome_has_none_once_it_was_found_out(
    store: SimulatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still under way, and comes after what was read: the record must not change then."""
    kinds = moving(store)
    asyncio.run(kinds.record(GROUP, CLIENT_ASSIGNED, moving="", fenced="a"))
    late: list[list[Op]] = []
    multi = store.multi

    def under_way(ops: list[Op]) -> tuple[OpResult, ...]:
        monkeypatch.setattr(store, "multi", multi)
        late.append(ops)
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(store, "multi", under_way)
    with pytest.raises(StoreUnavailable):
        asyncio.run(kinds.record(GROUP, NATIVE))
    asyncio.run(kinds.find_out(PARTITION))
    with pytest.raises(MultiFailed):
        multi(late.pop())
    assert read_kinds(store)[GROUP] == GroupRecord(CLIENT_ASSIGNED, fenced="a")


OTHER = next(name for name in map(str, range(10_000)) if partition_of(name) == PARTITION)


@pytest.mark.parametrize(
    "write",
    [
        lambda kinds: kinds.begin(PARTITION, 0, {OTHER: True}),
        lambda kinds: kinds.record_first(OTHER, CLIENT_ASSIGNED),
        lambda kinds: kinds.record(OTHER, CLIENT_ASSIGNED),
        lambda kinds: kinds.claim_undo(GROUP, "a"),
        lambda kinds: kinds.forget(OTHER, in_term=True),
    ],
    ids=["begin", "record_first", "record", "claim_undo", "forget"],
)
def test_whoever_writes_first_after_the_znode_was_deleted_writes_what_was_known_again(
    store: SimulatedStore, write: Callable[[Kinds], Coroutine[Any, Any, Any]]
) -> None:
    """The instance with the term may not have heard of it yet. Or it has begun its term since: then nobody had it when
    the instances heard."""
    kinds = moving(store)
    store.delete(layout.kinds(PARTITION))
    asyncio.run(write(kinds))
    assert read_kinds(store)[GROUP].moving.endswith("a")


def test_an_instance_that_records_under_an_old_term_hears_that_it_was_deposed(store: SimulatedStore) -> None:
    """Otherwise it waits for ever for what only a newer term can record."""
    kinds, deposed = moving(store), list[int]()
    kinds.on_deposed = deposed.append
    store.set(layout.log_partition(PARTITION), b"", -1)
    with pytest.raises(Fenced):
        asyncio.run(kinds.find_out(PARTITION))
    assert deposed == [PARTITION]


def test_only_a_record_that_is_read_now_says_that_a_group_is_at_rest(store: SimulatedStore) -> None:
    kinds = moving(store)
    with pytest.raises(RecordChanged):
        asyncio.run(kinds.require(GROUP, AT_REST))
    record_kind(store, GROUP, fence(), kind=NATIVE, moving="")
    assert kinds.unsettled(PARTITION), "it has not heard yet"
    asyncio.run(kinds.require(GROUP, AT_REST))


def test_instances_acknowledge_with_what_they_have_seen(store: SimulatedStore) -> None:
    record_new(store, PARTITION, {GROUP: NATIVE}, fence())
    told = Acknowledged(3, {GROUP: {"m-1": Seen(7, 45_000, 300_000)}})
    acknowledge(store, PARTITION, 2, Acknowledged(1))
    acknowledge(store, PARTITION, 2, told)
    assert read_acknowledged(store, PARTITION, [1, 2]) == {2: told}


def test_who_has_given_up_is_known_after_a_restart_until_the_group_is_back(store: SimulatedStore) -> None:
    record_new(store, PARTITION, {GROUP: NATIVE}, fence())
    give_up(store, PARTITION, 1, {"stay": ["a-1"]})
    give_up(store, PARTITION, 1, {"stay": ["b-1"]})
    give_up(store, PARTITION, 2, {"stay": ["c-1"], "another": ["d-1"]})
    assert read_given_up(store, PARTITION, "stay", "another") == [{"a-1", "b-1", "c-1"}, {"d-1"}]
    give_up(store, PARTITION, 1, {})
    give_up(store, PARTITION, 2, {"another": ["d-1"]})
    assert read_given_up(store, PARTITION, "stay") == [frozenset()]


def test_a_member_id_is_given_up_by_its_own_client_alone() -> None:
    """Members may share a connection: then nobody knows who of them joins again."""
    frames = [
        ("a connection of its own", "Heartbeat", "a-1"),
        ("a connection of its own", "JoinGroup", ""),
        ("a connection of its own", "JoinGroup", "a-2"),
        ("shared", "Heartbeat", "b-1"),
        ("shared", "Heartbeat", "c-1"),
        ("shared", "JoinGroup", ""),
        ("another", "JoinGroup", "d-1"),
        ("shared", "LeaveGroup", "c-1"),
    ]
    assert asyncio.run(known_after(frames)) == ({"a-1", "c-1"}, {"c-1"}, {"a-1", "b-1", "c-1"})


async def known_after(frames: Sequence[tuple[str, str, str]]) -> Back:
    """Returns what an instance knows of members after requests from several connections."""
    instances = Instances(lambda: None, 1, dict)  # type: ignore[arg-type, return-value]
    kinds = Kinds()
    native, lines = NativeGroups(instances, kinds), dict[str, OpenCaller]()
    await kinds.record(GROUP, NATIVE, fenced="a")
    for line, name, member_id in frames:
        form = message(f"{name}Request")
        caller = lines.setdefault(line, OpenCaller("h"))
        caller.number = 1 + list(lines).index(line)
        call = Call(RequestHeader(form.api_key or 0, 5, 1, "x"), form(group_id=GROUP, member_id=member_id), caller)
        if name in {"JoinGroup", "LeaveGroup"}:
            await native._gives_up(name, call)
        native._begun(name, call, [GROUP], refused)
    return await kinds.known_of(GROUP)


@pytest.mark.parametrize(
    ("changes", "interval_ms"), [([], 5_000), ([{"fenced": "a"}], _SOON_MS), ([{"fenced": "a"}, {}], _SOON_MS)]
)
def test_members_of_a_group_that_is_given_back_ask_the_broker_often(
    changes: Sequence[dict[str, str]], interval_ms: int
) -> None:
    """The broker tells a member what to read when it asks, which is each 5 s by default."""
    asked, form = message(f"{BEAT}Request"), message(f"{BEAT}Response")
    call = Call(RequestHeader(asked.api_key or 0, 1, 1, "x"), asked(group_id=GROUP, member_id="m-1"), OpenCaller("h"))
    frame = answer_frame(call.header, form, form(member_id="m-1", member_epoch=7, heartbeat_interval_ms=5_000))[4:]

    async def play() -> bytes:
        native = Described(())
        for one in changes:
            await native.kinds.record(GROUP, NATIVE, **{"fenced": "", **one})
        change = native._begun(BEAT, call, [GROUP], refused).change
        assert change is not None
        return await change(frame)

    told = form.decode(asyncio.run(play()), 1, answer_start(form, 1))
    assert (told.heartbeat_interval_ms, told.member_epoch, told.error_code) == (interval_ms, 7, 0)


@pytest.mark.parametrize(("name", "again"), [("SyncGroup", 27), (BEAT, 14)])
@pytest.mark.parametrize(("there", "is_given"), [(("m-1",), True), (("m-1", FENCE), False), ((), False), (None, False)])
def test_nothing_is_given_to_a_member_while_a_fence_is_in_the_brokers_group(
    name: str, again: int, there: Sequence[str] | None, is_given: bool
) -> None:
    """An instance without a session does not know that a group is being taken over, and nobody waits for it. The fence
    removes the members one by one, and the broker gives the others what a frozen one reads."""
    assert asyncio.run(told(name, there)) == ([0, 0] if is_given else [0, again])


async def refused(_call: Call) -> Any:
    return message("OffsetFetchResponse")(error_code=Error.NOT_COORDINATOR)


@pytest.mark.parametrize(
    ("there", "error"), [(("m-1", FENCE), 0), ((FENCE,), Error.NOT_COORDINATOR), ((), 0), (None, 0)]
)
def test_no_offset_is_told_of_a_group_in_which_the_fence_is_alone(there: Sequence[str] | None, error: int) -> None:
    """The broker does not refuse to tell what was committed before the group was taken over."""
    form = message("OffsetFetchRequest")
    call = Call(RequestHeader(form.api_key or 0, 5, 1, "x"), form(group_id=GROUP, topics=()), OpenCaller("h"))
    answer = message("OffsetFetchResponse")
    frame = answer_frame(call.header, answer, answer())[4:]
    change = Described(there)._begun("OffsetFetch", call, [GROUP], refused).change
    assert change is not None
    assert answer.decode(asyncio.run(change(frame)), 5, answer_start(answer, 5)).error_code == error


def test_a_heartbeat_waits_until_a_take_over_has_ended() -> None:
    """Only the brokers know whether the member's session goes on."""

    async def play() -> tuple[bool, PassedOn | None]:
        native, form = Described(()), message("HeartbeatRequest")
        native._newest = newest  # type: ignore[method-assign]
        call = Call(RequestHeader(form.api_key or 0, 4, 1, "x"), form(group_id=GROUP), OpenCaller("h"))
        await native.kinds.record(GROUP, NATIVE, moving="a")
        waiting = asyncio.create_task(native.passes("Heartbeat", call, refused))
        await asyncio.sleep(0.05)
        was_done = waiting.done()
        await native.kinds.record(GROUP, NATIVE)
        return was_done, await waiting

    was_done, passed = asyncio.run(play())
    assert not was_done
    assert passed is not None


async def newest(_name: str) -> int:
    return 4


async def told(name: str, there: Sequence[str] | None) -> list[int]:
    """Returns the errors that a member is told whose assignment is none, and some."""
    native = Described(there)
    form = message(f"{name}Response")
    caller = OpenCaller("h")
    asked = message(f"{name}Request")
    call = Call(RequestHeader(asked.api_key or 0, 1, 1, "x"), asked(group_id=GROUP, member_id="m-1"), caller)
    errors = []
    for is_given in (False, True):
        answer: Any = form(error_code=0, assignment=b"x" if is_given else b"")
        if name == BEAT:
            part = form.struct("TopicPartitions")(topic_id=bytes(16), partitions=(0,))
            found = form.struct("Assignment")(topic_partitions=(part,) if is_given else ())
            answer = form(error_code=0, member_id="m-1", assignment=found)
        frame = bytes(form.encode(answer, 1, bytearray(answer_start(form, 1))))
        change = native._begun(name, call, [GROUP], refused).change
        assert change is not None
        errors.append(int(form.decode(await change(frame), 1, answer_start(form, 1)).error_code))
    return errors


class Described(NativeGroups):
    """The brokers say that these members are in every group."""

    def __init__(self, there: Sequence[str] | None) -> None:
        super().__init__(Instances(lambda: None, 1, dict), Kinds())  # type: ignore[arg-type, return-value]
        self._there = there

    async def described(self, _node: object, _group: str) -> Any | None:
        members = [SimpleNamespace(member_id=one, instance_id=one * (one == FENCE)) for one in self._there or ()]
        return None if self._there is None else SimpleNamespace(members=members)


def test_a_group_is_surely_native_only_while_no_move_may_have_left_a_fence() -> None:
    async def play() -> list[bool]:
        kinds = Kinds()
        found = [kinds.is_surely_native(GROUP)]
        for changes in ({}, {"fenced": "a"}, {}, {"moving": "a"}, {}):
            await kinds.record(GROUP, NATIVE, **changes)
            found.append(kinds.is_surely_native(GROUP))
        return found

    assert asyncio.run(play()) == [False, True, False, False, False, False]
