"""Builds the responses that describe managed groups to Kafka's own tools."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import CONSUMER
from kafka_coord.coordinator.image import Image
from kafka_coord.frontends.kafka.answers import OPERATIONS_NOT_ASKED
from kafka_coord.frontends.kafka.group import Described, DescribedMember
from kafka_coord.frontends.kafka.managed.classic import PROTOCOL as CLASSIC
from kafka_coord.frontends.kafka.managed.heartbeats import PROTOCOL
from kafka_coord.frontends.kafka.managed.topics import TopicIds
from kafka_coord.model import NO_PARTITIONS, PartitionSet
from kafka_coord.wire.consumer_protocol import encoded_assignment, encoded_subscription
from kafka_coord.wire.messages import message

ASSIGNORS = {"uniform": "sticky", "range": "range"}
"""Maps each of Kafka's assignors to the closest assignor of kafka-coord."""
_KAFKAS_NAMES = {engines: kafkas for kafkas, engines in ASSIGNORS.items()}
_TYPES, _OTHER = {PROTOCOL: 1, CLASSIC: 0}, -1
"""The member types in ConsumerGroupDescribe, by protocol."""


class State(StrEnum):
    """The group states of KIP-848."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class KnownMember(NamedTuple):
    """A member that this instance serves."""

    member_id: str
    epoch: int
    is_static: bool = False


class GroupView(NamedTuple):
    """One group. ``seen`` is ``None`` if the group does not exist or cannot be read (see ``error``). ``served``
    contains the members that this instance serves, by consumer name. ``operations`` are those that the client may
    perform on the group, as bits."""

    group: str
    error: Error
    seen: Image | None = None
    served: Mapping[str, KnownMember] = {}
    ids: TopicIds | None = None
    operations: int = OPERATIONS_NOT_ASKED

    @property
    def state(self) -> State:
        return State.DEAD if self.seen is None else state_of(self.seen)


def state_of(seen: Image) -> State:
    target = seen.assignment
    if not seen.members:
        return State.EMPTY
    if target is None or not seen.members.keys() <= target.members.keys():
        return State.ASSIGNING
    is_reached = all(_owned(seen, one) == target.members[one] for one in seen.members)
    is_waiting = any(channel.commands for channel in seen.channels.values())
    return State.STABLE if is_reached and not is_waiting else State.RECONCILING


def topics_of(seen: Image) -> set[str]:
    """Returns the topics of all partitions that members own or should own."""
    sets = [ledger.owned for ledger in seen.ledgers.values()]
    sets += seen.assignment.members.values() if seen.assignment is not None else ()
    return {topic for partitions in sets for topic in partitions.topics}


def described(view: GroupView) -> Any:
    """Describes one group for ConsumerGroupDescribe."""
    form = message("ConsumerGroupDescribeResponse")
    of_group, seen = form.struct("DescribedGroup"), view.seen
    if view.error is not Error.NONE or seen is None or view.ids is None:
        error = view.error or Error.GROUP_ID_NOT_FOUND
        words = _WORDS.get(error, "").format(view.group) or None
        return of_group(error_code=error, error_message=words, group_id=view.group)
    target, generation = seen.assignment, _generation(seen)
    return of_group(
        group_id=view.group,
        group_state=view.state,
        group_epoch=generation,
        assignment_epoch=generation,
        assignor_name=_KAFKAS_NAMES.get(target.assignor, target.assignor) if target is not None else "",
        members=tuple(_member(form, view, seen, view.ids, consumer) for consumer in sorted(seen.members)),
        authorized_operations=view.operations,
    )


_WORDS = {
    Error.GROUP_ID_NOT_FOUND: "Group {} not found.",
    Error.TOPIC_AUTHORIZATION_FAILED: (
        "The described group uses topics that the client is not authorized to describe."
    ),
}
"""The messages of Kafka's ConsumerGroupDescribe."""


def _member(form: Any, view: GroupView, seen: Image, ids: TopicIds, consumer: str) -> Any:
    member = seen.members[consumer]
    served = view.served.get(consumer, KnownMember(consumer, _generation(seen)))
    owned, target = _owned(seen, consumer), _wanted(seen, consumer)
    return form.struct("Member")(
        member_id=served.member_id,
        instance_id=consumer if served.is_static else None,
        rack_id=member.rack,
        member_epoch=served.epoch,
        client_id=member.client or "",
        client_host=f"/{member.host or ''}",
        subscribed_topic_names=tuple(sorted(member.subscription.topics)),
        subscribed_topic_regex=member.subscription.pattern,
        assignment=_assignment(form, ids, owned),
        target_assignment=_assignment(form, ids, target),
        member_type=_TYPES.get(member.protocol or "", _OTHER),
    )


def _generation(seen: Image) -> int:
    return seen.assignment.generation if seen.assignment is not None else 0


def _owned(seen: Image, consumer: str) -> PartitionSet:
    ledger = seen.ledgers.get(consumer)
    return ledger.owned if ledger is not None else NO_PARTITIONS


def _wanted(seen: Image, consumer: str) -> PartitionSet:
    return seen.assignment.members.get(consumer, NO_PARTITIONS) if seen.assignment is not None else NO_PARTITIONS


def _assignment(form: Any, ids: TopicIds, partitions: PartitionSet) -> Any:
    of_topic = form.struct("TopicPartitions")
    return form.struct("Assignment")(
        topic_partitions=tuple(
            of_topic(topic_id=ids.get(topic) or bytes(16), topic_name=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in partitions.by_topic()
        )
    )


def described_as_classic(view: GroupView) -> Described:
    """Describes one group as if it were a classic group, for tools that do not support KIP-848."""
    seen = view.seen
    if seen is None:
        return Described(State.DEAD, "", "", ())
    is_settled = view.state in {State.EMPTY, State.STABLE}
    return Described(
        view.state if is_settled else "PreparingRebalance",
        CONSUMER,
        seen.assignment.assignor if seen.assignment is not None and is_settled else "",
        tuple(_classic_member(view, seen, consumer) for consumer in sorted(seen.members)),
    )


def _classic_member(view: GroupView, seen: Image, consumer: str) -> DescribedMember:
    member = seen.members[consumer]
    served = view.served.get(consumer, KnownMember(consumer, 0))
    held = _owned(seen, consumer)
    owned = ((topic, number) for topic, numbers in held.by_topic() for number in numbers)
    subscribed = {*held.topics, *_wanted(seen, consumer).topics, *member.subscription.topics}
    return DescribedMember(
        served.member_id,
        consumer if served.is_static else None,
        member.client or "",
        f"/{member.host or ''}",
        encoded_subscription(*sorted(subscribed)),
        encoded_assignment(owned),
    )
