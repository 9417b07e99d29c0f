"""What the connector needs of whatever fetches: librdkafka in production, a model of it in simulations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from kafka_coord.channel.operations import Offsets
from kafka_coord.model import StartPoint, TopicPartition


class Fetchers(Protocol):
    """Nothing here blocks, and all is called on the connector's thread."""

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        """Take partitions over, without fetching them yet. Those held already are left as they are."""

    def resolved(self) -> bool:
        """Whether all held partitions know where to begin; goes on finding out if not, and wakes the connector."""

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch them and hand their records out."""

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """From now on hand out nothing of them."""

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the application is not done with records of them; if so, wake the connector when it is."""

    def held_partitions(self) -> Iterable[TopicPartition]:
        """All that is held."""

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Forget stopped partitions; what of theirs is still to be committed."""

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """What is to be committed now, of these or of all."""

    def admissible(self, offsets: Offsets) -> Offsets:
        """Those of ``offsets`` that may be stored: of partitions held, and not going back unasked."""

    def stored(self, offsets: Offsets) -> None:
        """They are committed."""

    def abandon(self) -> Iterable[TopicPartition]:
        """Let everything go at once; what was held."""

    def orphans_in_hand(self) -> bool:
        """Whether the application still works on records of a lost incarnation; if so, wake when it no longer does."""
