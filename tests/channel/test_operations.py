"""Tests of the channel's requests as values: their fences, how they are divided, and the order of commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.channel.operations import (
    MAX_REQUEST_BYTES,
    Registration,
    acknowledge_op,
    chunks,
    command_op,
    decode_offset,
    in_order,
    look_op,
    offset_op,
)
from kafka_coord.errors import MalformedValue
from kafka_coord.model import CommandId, CommandType, PartitionSet, Request, RequestType, StopFetcher, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, Create, Delete, SetData

REGISTRATION = Registration("g", "c", incarnation=77, token=3, session_id=1)


def test_every_request_begins_with_the_checks_of_the_registration_and_its_token() -> None:
    stop = CommandId(4, CommandType.STOP_FETCHER, "stop-0000000004")
    offsets = [offset_op("g", TopicPartition("t", p), p, exists=p % 2 == 0) for p in range(2)]

    (request,) = chunks(offsets, [acknowledge_op(REGISTRATION, stop)], REGISTRATION.fence())

    assert request == (
        Check("/consumers/groups/g/ids/c"),
        Check("/consumers/groups/g/channel/c", 3),
        SetData("/consumers/groups/g/offsets/t/0", b"0"),
        Create("/consumers/groups/g/offsets/t/1", b"1"),
        Delete("/consumers/groups/g/channel/c/stop-0000000004"),
    )


def test_many_offsets_are_divided_into_requests_and_the_last_one_has_the_deletion() -> None:
    topic = "t" * 200
    offsets = [offset_op("g", TopicPartition(topic, p), 1 << 60, exists=True) for p in range(5_000)]
    last = Delete("/last")

    requests = list(chunks(offsets, [last], REGISTRATION.fence()))

    assert len(requests) > 1
    assert all(request[:2] == REGISTRATION.fence() for request in requests)
    assert [op for request in requests for op in request[2:]] == [*offsets, last]
    assert requests[-1][-1] == last
    sizes = [sum(len(op.path) + len(getattr(op, "data", b"")) for op in request) for request in requests]
    assert max(sizes) < MAX_REQUEST_BYTES


def test_without_offsets_there_is_one_request_with_the_deletion() -> None:
    (request,) = chunks([], [Delete("/last")], REGISTRATION.fence())
    assert request == (*REGISTRATION.fence(), Delete("/last"))


@given(st.permutations([f"{prefix}{n:010d}" for n in range(4) for prefix in ("start-", "stop-")] + ["note", "stop-x"]))
def test_commands_of_all_types_are_in_the_order_of_their_numbers(names: list[str]) -> None:
    commands, strays = in_order(names)
    assert [command.sequence for command in commands] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert strays == ("note", "stop-x")


def test_a_command_is_a_sequential_znode_with_the_prefix_of_its_type() -> None:
    stop = StopFetcher(1, 1, 77, PartitionSet.of([TopicPartition("t", 0)]), "why")
    op = command_op("g", "c", stop)
    assert (op.path, op.sequence, op.ephemeral) == ("/consumers/groups/g/channel/c/stop-", True, False)


@pytest.mark.parametrize("data", [b"", b"-1", b"1.5", b"twelve", b"9" * 20, str(1 << 63).encode(), b"\xff", b"1 2"])
def test_the_error_for_an_invalid_offset_has_its_path(data: bytes) -> None:
    with pytest.raises(MalformedValue, match=r"/offsets/t/0: .* is not an offset"):
        decode_offset(data, "/offsets/t/0")


@given(st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_offsets_are_decimal(offset: int) -> None:
    op = offset_op("g", TopicPartition("t", 0), offset, exists=True)
    assert decode_offset(op.data, op.path) == offset


def test_a_changed_subscription_requests_a_pass_over_the_group() -> None:
    op = look_op("g", "c", 7)
    assert (op.path, op.sequence) == (layout.REQUEST_PREFIX, True)
    request = Request.from_json(fields.load(op.data, ""), "request-0000000001")
    assert (request.type, request.group, request.by) == (RequestType.LOOK, "g", "c")
