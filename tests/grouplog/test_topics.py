"""Tests of what a cooperative member must give up when a topic is made anew."""

from __future__ import annotations

from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.grouplog.topics import not_given_up
from kafka_coord.wire.consumer_protocol import assignment, encoded_assignment, encoded_subscription, without_topics
from kafka_coord.wire.messages import message


def subscribed(*topics: str, owned: str = "") -> bytes:
    if not owned:
        return encoded_subscription(*topics)
    form = message("ConsumerProtocolSubscription")
    mine = form.struct("TopicPartition")(topic=owned, partitions=(0,))
    return bytes(form.encode(form(topics=topics, owned_partitions=(mine,)), 1, bytearray((0, 1))))


def group(protocol_type: str, *metadata: bytes) -> GroupMetadata:
    made = GroupMetadata("group", protocol_type=protocol_type, protocol_name="any")
    for number, one in enumerate(metadata):
        member = MemberMetadata(f"m{number}", None, "", "", 10.0, 10.0, (Protocol("any", one),))
        made.add(member, protocol_type)
    return made


def test_only_what_a_member_says_that_it_owns_must_be_given_up() -> None:
    of_consumers = group(CONSUMER, subscribed("new", "other", owned="new"), subscribed("new"), b"?")
    assert not_given_up(of_consumers, ["new", "another"]) == {"new"}
    assert not_given_up(of_consumers, ["other"]) == frozenset()
    assert not_given_up(group("connect", subscribed("new", owned="new")), ["new"]) == frozenset()


def test_a_topic_is_taken_out_of_an_assignment_and_the_rest_stays() -> None:
    form = message("ConsumerProtocolAssignment")
    given = assignment(encoded_assignment([("new", 0), ("other", 1)]))
    data = bytes(
        form.encode(form(assigned_partitions=given.assigned_partitions, user_data=b"own"), 1, bytearray((0, 1)))
    )
    left = without_topics(data, {"new"})
    assert left[:2] == data[:2]
    assert [(one.topic, one.partitions) for one in assignment(left).assigned_partitions] == [("other", (1,))]
    assert assignment(left).user_data == b"own"
    assert without_topics(data, {"unknown"}) is data
    assert without_topics(b"of another protocol", {"new"}) == b"of another protocol"
