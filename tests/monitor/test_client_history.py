"""Tests of the history of a client-assigned group, which is derived from its records."""

from __future__ import annotations

from kafka_coord.classic_groups.metadata import GroupMetadata, MemberMetadata, Protocol
from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.cli.groups.log import LogEntryDocument, _what
from kafka_coord.grouplog.records import (
    Claim,
    CommittedOffset,
    GroupEntry,
    OffsetEntry,
    claim_record,
    group_record,
    group_removal,
    heard_records,
    keep_alive_record,
)
from kafka_coord.groups.log import EntryKind, LogEntry, about_group, decisions, entry_of
from kafka_coord.model import Departure, DepartureKind
from kafka_coord.model.member import LEFT
from kafka_coord.model.operations import Cause
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.consumer_protocol import encoded_assignment, encoded_subscription
from tests.grouplog.offset_record import offset_record

_AT_MS = 1_700_000_000_000


def assigned(*partitions: int) -> bytes:
    return encoded_assignment(("flights", number) for number in partitions)


def written(
    generation: int, owned: dict[str, bytes], protocol: str = "range", topic: str = "flights", **departed: Departure
) -> LogEntry:
    group = GroupMetadata("delays", generation_id=generation, protocol_name=protocol if owned else None)
    group.departed = departed
    for name in owned:
        member = MemberMetadata(
            f"{name}-id", name, "client", "/127.0.0.1", 45.0, 300.0, (Protocol(protocol, encoded_subscription(topic)),)
        )
        group.add(member, "consumer")
    if not owned:
        group.protocol_type = "consumer"
    return entry_of(group_record(group, {f"{name}-id": held for name, held in owned.items()}, _AT_MS + generation))


def claimed(term: int) -> LogEntry:
    return entry_of(claim_record(Claim(term, "1@host", "nonce", "t1", 1)))


def test_each_generation_has_its_cause_moves_and_term() -> None:
    found = decisions(
        [
            claimed(7),
            written(1, {"a": assigned(0, 1, 2)}),
            written(2, {"a": assigned(0, 1), "b": assigned(2)}),
            claimed(8),
            written(3, {"b": assigned(0, 1, 2)}),
            written(4, {}),
        ],
        "delays",
    )
    assert [(one.generation, one.epoch, one.causes) for one in found] == [
        (1, 7, (Cause.MEMBER_JOINED,)),
        (2, 7, (Cause.MEMBER_JOINED,)),
        (3, 8, (Cause.MEMBER_LEFT,)),
        (4, 8, (Cause.MEMBER_LEFT,)),
    ]
    assert found[1].moves == {"a": {"lost": "flights[2]"}, "b": {"gained": "flights[2]"}}
    assert (found[1].moved, found[1].members, found[1].partitions) == (1, 2, 3)
    assert found[1].decided_at_ms == _AT_MS + 2
    assert found[2].reason == "member a left or timed out"


def test_causes_of_generations_without_a_joining_or_leaving_member() -> None:
    found = decisions(
        [
            written(1, {"a": assigned(0)}),
            written(2, {"a": assigned(0, 1)}),
            written(3, {"a": assigned(0, 1)}, protocol="sticky"),
            written(4, {"a": assigned(0, 1)}, protocol="sticky", topic="routes"),
            written(5, {"a": assigned(0, 1)}, protocol="sticky", topic="routes"),
        ],
        "delays",
    )
    assert [one.causes for one in found[1:]] == [
        (Cause.TOPIC_CHANGED,),
        (Cause.ASSIGNOR_CHANGED,),
        (Cause.MEMBER_CHANGED,),
        (Cause.MEMBER_CHANGED,),
    ]


def test_a_repeated_generation_is_listed_once_and_a_compacted_past_is_mentioned() -> None:
    found = decisions([written(9, {"a": assigned(0)}), written(9, {"a": assigned(0)})], "delays")
    assert [(one.generation, one.epoch, one.causes) for one in found] == [(9, 0, ())]
    assert found[0].reason == "earlier generations are no longer in the log"


def test_a_removed_group_starts_again_and_other_groups_are_left_out() -> None:
    other = entry_of(group_record(GroupMetadata("other", generation_id=3), {}, _AT_MS))
    gone = entry_of(group_removal("delays"))
    found = decisions([written(5, {"a": assigned(0)}), other, gone, written(1, {"b": assigned(0)})], "delays")
    assert [(one.generation, one.reason) for one in found][1:] == [(1, "member b joined")]


def test_records_are_distinguished_by_their_keys() -> None:
    wanted = about_group("delays")
    records = [
        claim_record(Claim(1, "1@host", "nonce", "t1", 1)),
        keep_alive_record(),
        group_removal("delays"),
        group_removal("delays2"),
        group_removal("delay"),
        LogRecord(None, None),
        LogRecord(b"", b""),
        LogRecord(b"\0\x7f", b"?"),
        LogRecord(b"\0\2\0\6delays", b"\0\3nonsense"),
    ]
    assert [wanted(one) for one in records] == [True, False, True, False, False, False, False, False, True]
    generations = about_group("delays", offsets=False)
    offset = offset_record(OffsetEntry("delays", "flights", 0, CommittedOffset(1)))
    assert (wanted(offset), generations(offset)) == (True, False)
    assert [one for one in records if generations(one)] == [one for one in records if wanted(one)]
    kinds = [entry_of(one).kind for one in records]
    assert kinds[:3] == [EntryKind.CLAIM, EntryKind.KEEP_ALIVE, EntryKind.GROUP]
    assert kinds[5:] == [EntryKind.UNREADABLE, EntryKind.UNREADABLE, EntryKind.UNKNOWN, EntryKind.UNREADABLE]
    assert isinstance(entry_of(records[2]).entry, GroupEntry)


def test_a_generation_says_how_each_member_went_and_by_whom() -> None:
    everyone = {name: assigned(number) for number, name in enumerate("abcde")}
    gone = {
        "a": LEFT,
        "b": Departure(DepartureKind.EXPIRED, 45_000),
        "c": Departure(DepartureKind.EVICTED, by="User:ann (client id admin, 10.0.0.6:1)"),
        "e": Departure(DepartureKind.REPLACED, by="client id two (/10.0.0.5)"),
    }
    _, found = decisions([written(1, everyone), written(2, {"d": assigned(0), "e": assigned(1)}, **gone)], "delays")
    assert found.reason == (
        "member a left; member b expired after 45 s; member c evicted by User:ann (client id admin, 10.0.0.6:1); "
        "member e replaced by client id two (/10.0.0.5)"
    )
    assert set(found.causes) == {
        Cause.MEMBER_LEFT,
        Cause.MEMBER_EXPIRED,
        Cause.MEMBER_EVICTED,
        Cause.MEMBER_REPLACED,
    }


def test_a_note_of_who_was_heard_is_an_entry_of_its_own_kind() -> None:
    (record,) = heard_records(Heard(7, {("delays", "a"): None, ("delays", "b"): 31_000}))
    entry = entry_of(record)
    assert (entry.kind, entry.group) == (EntryKind.HEARD, None)
    assert _what(entry) == "term 7 has heard 1 member, but not b of delays (31 s left)"
    assert LogEntryDocument.of(entry).value == {
        "term": 7,
        "members": [
            {"group": "delays", "member": "a", "left_ms": None},
            {"group": "delays", "member": "b", "left_ms": 31_000},
        ],
    }
