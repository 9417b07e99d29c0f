"""A committed offset with its details: the leader epoch and the client's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.partitions import TopicPartition
from kafka_coord.model.retention import Retention


class CommittedOffset(NamedTuple):
    """A group's committed offset for one partition. ``leader_epoch`` is -1 if the client did not send one. The type is
    a named tuple to save memory, because a partition of the groups log may hold a million offsets.

    ``topic_id`` is the identity of the topic that the offset belongs to (``TopicInfo.identity``), or empty if it is
    unknown. ``expires_at_ms`` is when the offset expires (ms since 1970), if the client has said so, or else -1.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int = 0
    topic_id: str = ""
    expires_at_ms: int = -1

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
        """Returns the JSON form, without the time, which the znode's stat records, and without the topic's identity,
        which managed groups store once for each topic."""
        value: dict[str, Any] = {"version": fields.VERSION, "offset": self.offset}
        if self.leader_epoch >= 0:
            value["leader_epoch"] = self.leader_epoch
        if self.metadata:
            value["metadata"] = self.metadata
        if self.expires_at_ms >= 0:
            value["expires_at_ms"] = self.expires_at_ms
        return value

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> CommittedOffset:
        """Reads the value strictly. Raises :class:`MalformedValue`, also for a valid value that would not fit in a
        response to a client."""
        epoch = fields.number(value, "leader_epoch", where, -1, at_least=-1)
        if epoch >= 1 << 31:
            raise MalformedValue(where, f"field 'leader_epoch' is {epoch}, not a 32-bit integer", "leader_epoch")
        metadata = fields.text(value, "metadata", where, "")
        if len(metadata.encode()) >= 1 << 15:
            raise MalformedValue(where, f"field 'metadata' is too long ({len(metadata)} characters)", "metadata")
        offset = fields.number(value, "offset", where, at_least=0)
        expires_at_ms = fields.number(value, "expires_at_ms", where, -1, at_least=-1)
        return cls(offset, epoch, metadata, expires_at_ms=expires_at_ms)


GONE_FOR_MS = 86_400_000
"""How long the offsets of a deleted topic are kept, in ms: one day."""


def is_gone_long_enough(gone_since_ms: int, now_ms: int) -> bool:
    """Returns whether the offsets of a topic that was first found missing at ``gone_since_ms`` are to be deleted."""
    return gone_since_ms + GONE_FOR_MS <= now_ms


OffsetDetails = Mapping[TopicPartition, CommittedOffset]
"""Maps partitions to committed offsets with details."""
