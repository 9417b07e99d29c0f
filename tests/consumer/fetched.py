"""Messages like those of librdkafka."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.model import TopicPartition

PARTITION = TopicPartition("flights", 0)


@dataclass(frozen=True)
class Message:
    """A message with the methods of librdkafka's messages that the consumer calls."""

    at: int

    def offset(self) -> int:
        return self.at


def messages(count: int) -> list[Message]:
    """Messages whose offsets lack every third one, as in a compacted topic."""
    return [Message(offset) for offset in range(count * 2) if offset % 3][:count]
