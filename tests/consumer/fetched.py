"""Messages as librdkafka would give them."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.model import TopicPartition

PARTITION = TopicPartition("flights", 0)


@dataclass(frozen=True)
class Message:
    """The calls that the consumer makes on librdkafka's message."""

    at: int

    def offset(self) -> int:
        return self.at


def messages(count: int) -> list[Message]:
    """Offsets with every third one missing, as in a compacted topic."""
    return [Message(offset) for offset in range(count * 2) if offset % 3][:count]
