"""What the connector needs of the part that fetches: librdkafka in production, a model of it in simulations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from kafka_coord.channel.operations import Offsets
from kafka_coord.model import StartPoint, TopicPartition


class Fetchers(Protocol):
    """No method blocks. All are called on the connector's thread."""

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        """Take partitions over without fetching them yet. Leave those held already as they are."""

    def resolved(self) -> bool:
        """Whether it is known where to begin with all held partitions. If not, find out and wake the connector."""

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch them and hand their records out."""

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of these."""

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the application has records of these in hand. If so, wake the connector when it no longer has."""

    def held_partitions(self) -> Iterable[TopicPartition]:
        """All partitions held."""

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Forget stopped partitions. Returns what is still to be committed of them."""

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """What is to be committed now, of these partitions or of all."""

    def admissible(self, offsets: Offsets) -> Offsets:
        """Those of ``offsets`` that may be stored: of partitions held, and not back unless the application asked."""

    def stored(self, offsets: Offsets) -> None:
        """These offsets are committed."""

    def abandon(self) -> Iterable[TopicPartition]:
        """Let everything go at once. Returns what was held."""

    def orphans_in_hand(self) -> bool:
        """Whether the application still works on records of a lost incarnation. If so, wake the connector when it no
        longer does."""
