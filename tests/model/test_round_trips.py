"""Tests that every value survives a round trip through JSON bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kafka_coord.errors import MalformedValue
from kafka_coord.model import (
    Action,
    Assignment,
    Cause,
    CommittedOffset,
    CoordinatorInfo,
    Decision,
    GroupSettings,
    Ledger,
    Member,
    PartitionSet,
    Pause,
    Request,
    RequestType,
    TopicPartition,
    command_from_json,
    history_to_json,
)
from kafka_coord.model.histories import (
    MAX_ACTIONS,
    MAX_ACTIONS_BYTES,
    MAX_CHANGE,
    Trail,
    about_group,
    change_to_group,
    encoded_actions,
    newest,
)
from kafka_coord.model.json_fields import dump, load
from kafka_coord.model.operations import MAX_HISTORY
from kafka_coord.model.partitions import parse_ranges, ranges
from tests.model import values

_SETTINGS = settings(max_examples=40)


def through_bytes(value: Any) -> dict[str, Any]:
    return load(dump(value.to_json()), "/somewhere")


@_SETTINGS
@given(values.members)
def test_a_registration(member):
    kept = structs.replace(member, timestamp=member.timestamp[:40])
    assert Member.from_json(through_bytes(kept), "/x", consumer=member.consumer, incarnation=member.incarnation) == kept


@_SETTINGS
@given(values.ledgers())
def test_a_ledger(ledger):
    assert (
        Ledger.from_json(through_bytes(ledger), "/x", consumer=ledger.consumer, znode_version=ledger.znode_version)
        == ledger
    )


@_SETTINGS
@given(values.assignments())
def test_a_target(assignment):
    assert Assignment.from_json(through_bytes(assignment), "/x", znode_version=assignment.znode_version) == assignment


def test_stream_0_is_the_default_and_is_not_stored():
    written = {"incarnation": 1, "owned": {"t": "0-3"}, "streams": {"t": {"0": "0-1", "2": "3"}}}

    ledger = Ledger.from_json(written, "/x", consumer="c", znode_version=0)

    assert dict(ledger.streams) == {TopicPartition("t", 3): 2}


@_SETTINGS
@given(values.stops | values.starts)
def test_a_command(command):
    assert command_from_json(through_bytes(command), "/x") == command


@_SETTINGS
@given(values.requests)
def test_a_request(request):
    assert Request.from_json(through_bytes(request), "/x", request_id=request.request_id) == request


@_SETTINGS
@given(values.group_settings, values.pauses, values.coordinators)
def test_settings_pauses_and_coordinators(group_settings, pause, coordinator):
    assert GroupSettings.from_json(through_bytes(group_settings), "/x") == group_settings
    assert Pause.from_json(through_bytes(pause), "/x") == pause
    assert CoordinatorInfo.from_json(through_bytes(coordinator), "/x") == coordinator


@_SETTINGS
@given(values.committed_offsets)
def test_a_committed_offset(offset):
    assert CommittedOffset.from_json(through_bytes(offset), "/x") == offset


@_SETTINGS
@given(st.lists(values.decisions, max_size=4))
def test_a_history(decisions):
    value = history_to_json(tuple(decisions))
    assert Trail.from_json(load(dump(value), "/x"), "/x").decisions == tuple(decisions)


def test_a_history_keeps_the_newest_actions_within_its_size():
    actions = [Action("evict", "alice@here", at, "why", "c" * 1_500) for at in range(300)]

    kept = newest(encoded_actions(actions))

    assert MAX_ACTIONS_BYTES - 3_000 < sum(map(len, kept)) <= MAX_ACTIONS_BYTES
    value = load(b'{"version":1,"decisions":[],"actions":[%b]}' % b",".join(kept), "/x")
    assert Trail.from_json(value, "/x").actions == tuple(actions[-len(kept) :])
    assert Trail.from_json(value, "/x").decisions == ()
    assert len(newest(encoded_actions([Action("pause", "a", at) for at in range(300)]))) == MAX_ACTIONS


@_SETTINGS
@given(values.decisions)
def test_a_history_keeps_the_newest_decisions(decision):
    old = structs.replace(decision, generation=1)
    new = structs.replace(decision, generation=2)

    written = history_to_json((*[old] * 5, *[new] * MAX_HISTORY))

    assert Trail.from_json(written, "/x").decisions == (new,) * MAX_HISTORY


@_SETTINGS
@given(st.sets(values.numbers))
def test_ranges(numbers):
    assert parse_ranges(ranges(frozenset(numbers)), "/x") == numbers


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((0,), "0"), ((0, 1), "0-1"), ((0, 1, 2, 3, 7), "0-3,7"), ((5, 3), "3,5"), ((9, 8, 1), "1,8-9")],
)
def test_ranges_as_text(numbers, text):
    assert ranges(numbers) == ranges(frozenset(numbers)) == text


@_SETTINGS
@given(values.small_sets, values.small_sets, st.lists(values.small_sets))
def test_partition_sets_behave_like_sets(one, other, more):
    left, right = set(one), set(other)
    assert set(one | other) == left | right
    assert set(one - other) == left - right
    assert set(one & other) == left & right
    assert one.isdisjoint(other) == left.isdisjoint(right)
    assert (one == other) == (left == right)
    assert len(one) == len(left)
    assert list(one) == sorted(left)
    assert PartitionSet.of(one) == one
    assert hash(PartitionSet.of(one)) == hash(one)
    assert all(partition in one for partition in left)
    assert bool(one) == bool(left)


def test_a_decision_of_an_earlier_release_has_no_cause_and_unknown_causes_are_ignored() -> None:
    written = Decision(1, 1, "member c1 joined", "sticky", 1, 1, 1, 0, causes=(Cause.MEMBER_JOINED,)).to_json()
    assert written["causes"] == ("member-joined",)
    later = Decision.from_json({**written, "causes": ["moon-phase", "member-joined"]}, "/here")
    assert later.causes == (Cause.MEMBER_JOINED,)
    del written["causes"]
    earlier = Decision.from_json(written, "/here")
    assert earlier.causes == ()
    assert earlier.cause is None
    with pytest.raises(MalformedValue):
        Decision.from_json({**written, "causes": "member-joined"}, "/here")


def test_a_request_for_many_partitions_is_written_with_only_the_beginning_of_its_change():
    many = PartitionSet({"flights": range(60_000)})
    request = Request(RequestType.DELETE_OFFSETS, "delays", partitions=many, change="flights " + "0: 17 → -, " * 60_000)
    read = Request.from_json(load(dump(request.to_json()), "/r"), "/r")
    assert read.partitions == many
    assert read.change == request.change[:MAX_CHANGE]


_NAMES = st.sampled_from(["a", "a b", "a b c", 'a "b', '"a', "", " ", "a ", "a\n"]) | st.text(max_size=4)


@given(st.lists(_NAMES, min_size=2, max_size=2), st.sampled_from(["", "b", "b c1", "evicted b c"]))
def test_a_change_to_one_group_is_never_taken_for_a_change_to_another(names: list[str], change: str) -> None:
    one, other = names
    assert change_to_group(one, about_group(one, change)) == change
    if other != one:
        assert change_to_group(other, about_group(one, change)) is None
