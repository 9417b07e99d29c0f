"""A committed offset with its details: the leader epoch and the client's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from kafka_coord.errors import MalformedValue
from kafka_coord.model.codec import Count, JsonObject
from kafka_coord.model.partitions import TopicPartition
from kafka_coord.model.retention import Retention


class CommittedOffset(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1, gc=False):
    """A group's committed offset for one partition. ``leader_epoch`` is -1 if the client did not send one. The garbage
    collector does not track it, because a partition of the groups log may hold a million.

    The JSON form lacks the time, which the znode's stat records, and the topic's identity, which managed groups store
    once for each topic. ``topic_id`` is the identity of the topic that the offset belongs to (``TopicInfo.identity``),
    or empty if it is unknown. ``expires_at_ms`` is when the offset expires (ms since 1970), if the client has said so,
    or else -1.
    """

    offset: Count
    leader_epoch: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = -1
    metadata: str = ""
    committed_at_ms: int = 0
    topic_id: str = ""
    expires_at_ms: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] = -1
    of_znode: ClassVar[tuple[str, ...]] = ("committed_at_ms", "topic_id")

    def is_expired(self, now_ms: int, retention: Retention, since_ms: int) -> bool:
        """Returns whether an offset that nobody needs has expired, as in Kafka (KIP-211): at the time that the client
        has set, or the retention after the later of the commit and ``since_ms``. Times are in ms since 1970."""
        if self.expires_at_ms >= 0:
            return self.expires_at_ms <= now_ms
        return retention.expires_at_ms(max(since_ms, self.committed_at_ms)) <= now_ms

    @property
    def is_bare(self) -> bool:
        """Whether the offset has no details."""
        return self.leader_epoch < 0 and not self.metadata and self.expires_at_ms < 0

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self)
        if self.committed_at_ms or self.topic_id:
            for name in self.of_znode:
                value.pop(name, None)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        """Raises :class:`MalformedValue`, also for metadata that would not fit in a response to a client."""
        try:
            found = msgspec.convert(value, cls)
        except msgspec.ValidationError:
            found = super().from_json(value, where, **known)
        if found.committed_at_ms or found.topic_id:
            found = replace(found, committed_at_ms=0, topic_id="")
        if found.metadata and len(found.metadata.encode()) >= 1 << 15:
            raise MalformedValue(where, f"field 'metadata' is too long ({len(found.metadata)} characters)", "metadata")
        return found


GONE_FOR_MS = 86_400_000
"""How long the offsets of a deleted topic are kept, in ms: one day."""


def is_gone_long_enough(gone_since_ms: int, now_ms: int) -> bool:
    """Returns whether the offsets of a topic that was first found missing at ``gone_since_ms`` are to be deleted."""
    return gone_since_ms + GONE_FOR_MS <= now_ms


OffsetDetails = Mapping[TopicPartition, CommittedOffset]
"""Maps partitions to committed offsets with details."""
