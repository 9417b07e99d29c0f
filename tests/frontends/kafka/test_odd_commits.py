"""Commits whose values fit in a request, but not in what is stored or answered later."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from typing import Any

from msgspec import structs

from kafka_coord.channel.operations import decode_offset, offset_op
from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import MalformedValue
from kafka_coord.frontends.kafka import answers
from kafka_coord.frontends.kafka.group import Fetched, expires_at_ms, take_out_large, take_out_negative
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.grouplog.records import OffsetEntry, offset_records, read_record
from kafka_coord.model import CommittedOffset, TopicPartition
from kafka_coord.wire.messages import message

FLIGHTS = "flights", 0
NOW_MS, LONGEST = 1_732_060_800_000, (1 << 63) - 1
TOPIC_ID = "TMyOC9fMQO2RvZzC_cfMOw"


def read_back(one: CommittedOffset) -> CommittedOffset | None:
    (record,) = offset_records("g", {FLIGHTS: one})
    entry = read_record(record)
    assert isinstance(entry, OffsetEntry)
    return entry.value


def test_an_offset_below_0_would_keep_its_partition_from_being_started_so_a_managed_group_refuses_it() -> None:
    written = offset_op("g", TopicPartition(*FLIGHTS), -1, exists=False).data
    try:
        decode_offset(written, "/offset")
    except MalformedValue:
        pass
    else:
        raise AssertionError("the coordinator can read it")
    offsets = {FLIGHTS: CommittedOffset(-1), ("flights", 1): CommittedOffset(0)}
    assert take_out_negative(offsets) == {FLIGHTS: Error.INVALID_REQUEST}
    assert list(offsets) == [("flights", 1)]


def test_the_longest_retention_that_a_client_can_ask_for_is_kept() -> None:
    assert expires_at_ms(NOW_MS, -1) == -1
    assert expires_at_ms(NOW_MS, 60_000) == NOW_MS + 60_000
    one = CommittedOffset(7, metadata="m", expires_at_ms=expires_at_ms(NOW_MS, LONGEST))
    assert CommittedOffset.from_json(one.to_json(), "/details") == one
    assert read_back(one) == one
    identified = structs.replace(one, topic_id=TOPIC_ID)
    assert read_back(identified) == identified


def test_metadata_that_no_response_could_carry_is_too_large_also_if_the_broker_would_allow_it() -> None:
    longest, longer = CommittedOffset(7, metadata="x" * 32_767), CommittedOffset(7, metadata="ä" * 16_384)
    offsets = {FLIGHTS: longest, ("flights", 1): longer}
    assert take_out_large(offsets, 1_000_000) == {("flights", 1): Error.OFFSET_METADATA_TOO_LARGE}
    assert read_back(longest) == longest
    assert take_out_large({FLIGHTS: longest}, 4096) == {FLIGHTS: Error.OFFSET_METADATA_TOO_LARGE}


def test_a_damaged_offset_costs_only_its_own_partition() -> None:
    found = {
        TopicPartition("flights", 0): CommittedOffset(5),
        TopicPartition("flights", 1): MalformedValue("/o", "12o"),
        TopicPartition("flights", 2): None,
    }
    nothing: Any = None

    async def fetched() -> Any:
        token = asyncio.get_running_loop().create_future()
        ManagedTerms._fetched(nothing, token, ChainMap(), found)
        return await token

    error, offsets = asyncio.run(fetched())
    assert error is Error.NONE
    assert offsets == Fetched({FLIGHTS: CommittedOffset(5)}, frozenset({("flights", 1)}))
    form = message("OffsetFetchRequest")
    for version in (1, 7, 8):
        named = (form.struct("OffsetFetchRequestTopic")(name="flights", partition_indexes=(0, 1, 2)),)
        for asked, numbers in ((named, [0, 1, 2]), (None, [0, 1])):
            told = answered(answers.FetchedGroup("g", asked, Error.NONE, offsets, frozenset()), version)
            parts = [part for topic in told.topics for part in topic.partitions]
            assert [one.partition_index for one in parts] == numbers, version
            codes = [Error.NONE, Error.UNKNOWN_SERVER_ERROR, Error.NONE]
            assert [one.error_code for one in parts] == codes[: len(numbers)]
            assert [one.committed_offset for one in parts] == [5, -1, -1][: len(numbers)]
            hidden = answered(answers.FetchedGroup("g", asked, Error.NONE, offsets, frozenset({"flights"})), version)
            left = {part.error_code for topic in hidden.topics for part in topic.partitions}
            assert left == (set() if asked is None else {Error.TOPIC_AUTHORIZATION_FAILED}), "nothing hidden is told"


def answered(found: answers.FetchedGroup, version: int) -> Any:
    """Returns what a client reads of the group in the response."""
    form = message("OffsetFetchResponse")
    read = form.decode(form.encode(answers.fetched([found], version), version), version, 0)
    return read.groups[0] if version >= 8 else read
