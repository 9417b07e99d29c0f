"""Knows which topics exist: offsets belong to a topic's id, not to its name (ADR 42).

A topic is *seen* (it has an identity), *gone* (it is certain that it does not exist), or unknown: nobody could be asked
about it. What belongs to a topic that is gone is hidden, and valid again if the same id returns. Nothing is concluded
from a topic that is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka_coord.classic_groups.metadata import CONSUMER, ClassicState, GroupMetadata
from kafka_coord.model import CommittedOffset, TopicInfo
from kafka_coord.wire.consumer_protocol import assignment, subscription


class LogTopics:
    """The topics as last seen. This class never asks anybody, so all topics stay unknown to it; see its subclasses."""

    def __init__(self) -> None:
        self._known: dict[str, TopicInfo | None] = {}
        self._last: dict[str, TopicInfo] = {}
        self.followed: set[str] = set()

    async def learn(self, topics: Iterable[str], *, follow: bool = False) -> None:
        """Finds out the current state of ``topics``. If nobody can be asked, what was known stays known. If ``follow``
        is set, later changes are noticed as well."""

    async def unseen(self, partitions: Collection[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """Returns those of the partitions that the elected coordinator cannot have seen yet, although brokers know
        them."""
        del partitions
        return frozenset()

    def note(self, topic: str, seen: TopicInfo | None) -> None:
        """Notes that the topic was seen, or (``None``) that it is gone."""
        self._known[topic] = seen
        if seen is not None:
            self._last[topic] = seen

    def identity(self, topic: str) -> str:
        """Returns the topic's identity, or an empty string if it is gone or unknown."""
        seen = self._known.get(topic)
        return seen.identity if seen is not None else ""

    def last_identity(self, topic: str) -> str:
        """Returns the identity with which the topic was last seen, or an empty string if it has never been seen."""
        seen = self._last.get(topic)
        return seen.identity if seen is not None else ""

    def is_followed(self, topic: str) -> bool:
        """Returns whether changes of the topic are noticed."""
        return topic in self.followed

    def is_gone(self, topic: str) -> bool:
        return topic in self._known and self._known[topic] is None

    def is_another(self, topic: str, identity: str) -> bool:
        """Returns whether the topic of this name is known to be another one than that with the given identity."""
        seen = self._known.get(topic)
        return seen is not None and bool(identity) and not seen.is_same(identity)

    def is_still(self, topic: str, given: str) -> bool:
        """Returns whether a generation that was given the topic with the identity ``given`` reads the present topic. If
        that identity is empty, because nobody had seen the topic yet, it does not as soon as the topic is seen."""
        return not (self.is_another(topic, given) if given else self.identity(topic))

    def belongs(self, topic: str, identity: str) -> bool:
        """Returns whether what was stored for the topic with the given identity is valid now. If either is unknown, it
        is assumed to be valid."""
        return not self.is_gone(topic) and not self.is_another(topic, identity)


def current_offsets(
    stored: Mapping[tuple[str, int], CommittedOffset], topics: LogTopics
) -> dict[tuple[str, int], CommittedOffset]:
    """Returns the offsets that belong to the present topics."""
    return {where: one for where, one in stored.items() if topics.belongs(where[0], one.topic_id)}


def assigned_topics(assignments: Iterable[bytes]) -> frozenset[str]:
    """Returns the topics that the assignments name. Ignores assignments that are not a consumer's."""
    return frozenset(
        part.topic for data in assignments if (found := assignment(data)) for part in found.assigned_partitions
    )


def not_given_up(group: GroupMetadata, topics: Collection[str]) -> frozenset[str]:
    """Returns those of ``topics`` of which members own partitions, as they said when they joined. Only cooperative
    clients join without giving up their partitions first."""
    if group.protocol_type != CONSUMER or not topics:
        return frozenset()
    joined = (subscription(member.metadata(group.protocol_name)) for member in group.members.values())
    owned = {part.topic for one in joined if one is not None for part in one.owned_partitions}
    return frozenset(owned.intersection(topics))


def all_subscribed_topics(group: GroupMetadata) -> frozenset[str] | None:
    """Returns the topics that the members subscribe to, or ``None`` if any member's subscription is unknown: the group
    has not settled, or it does not use the consumer protocol (Kafka Connect, raw assignments)."""
    if group.protocol_type != CONSUMER or group.state is not ClassicState.STABLE:
        return None
    subscriptions = [subscription(one.metadata(group.protocol_name)) for one in group.members.values()]
    if not all(subscriptions):
        return None
    return frozenset(topic for one in subscriptions for topic in one.topics)
