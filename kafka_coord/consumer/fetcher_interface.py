"""The interface of the fetchers as the connector uses it: librdkafka in production, a model of it in simulations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from kafka_coord.channel.operations import Offsets
from kafka_coord.model import StartPoint, TopicPartition


class Fetchers(Protocol):
    """The fetchers of one consumer. No method blocks; the connector's thread calls all of them."""

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        """Take partitions over without fetching them yet. Partitions that are already held stay unchanged."""

    def resolved(self) -> bool:
        """Whether the start offset of every held partition is known. If not, find out the missing ones and wake the
        connector."""

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions and hand out their records."""

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no more records of these partitions."""

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the application has records of these partitions in hand. If so, wake the connector once it has
        finished them."""

    def held_partitions(self) -> Iterable[TopicPartition]:
        """All partitions held."""

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Forget stopped partitions. Returns their offsets that are still to be committed."""

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """The offsets to commit now, for these partitions or for all."""

    def admissible(self, offsets: Offsets) -> Offsets:
        """The part of ``offsets`` that may be stored: only for partitions held, and lower than the stored offset only
        if the application asked for that."""

    def stored(self, offsets: Offsets) -> None:
        """Note that these offsets are committed."""

    def abandon(self) -> Iterable[TopicPartition]:
        """Release all partitions at once. Returns those that were held."""

    def orphans_in_hand(self) -> bool:
        """Whether the application still works on records of a lost incarnation. If so, wake the connector once it has
        finished them."""
