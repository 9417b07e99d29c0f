"""The interface through which the connector uses the fetchers: librdkafka in production, and a model in simulations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from kafka_coord.channel.operations import Offsets
from kafka_coord.model import StartPoint, TopicPartition


class Fetchers(Protocol):
    """The fetchers of one consumer. No method blocks. The connector's thread calls all methods."""

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        """Take over partitions without fetching them yet. Partitions that are already held stay unchanged."""

    def unresolved(self) -> Mapping[TopicPartition, str]:
        """Return the held partitions that start at an end that is not known yet, each with the reason, which is "" as
        long as none is known. Request the missing ends, and wake the connector once one is known or refused."""

    def listed_ends(self) -> Offsets:
        """Return the ends that were listed for unresolved partitions and are not resolved yet."""

    def resolve(self, offsets: Offsets) -> None:
        """Start unresolved partitions at ``offsets``, which the group has stored. :meth:`begin` must follow."""

    def refused(self) -> Mapping[str, str]:
        """Return the topics that the member is not allowed to read, each with the reason."""

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch the given partitions and hand out their records."""

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop returning records of the given partitions."""

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether the application has records of the given partitions in hand. If so, wake the connector once
        the application has finished them."""

    def held_partitions(self) -> Iterable[TopicPartition]:
        """Return all held partitions."""

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Forget the given partitions, which are stopped, and return the offsets that must still be committed for
        them."""

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """Return the offsets to commit now for the given partitions, or for all held partitions."""

    def admissible(self, offsets: Offsets) -> Offsets:
        """Return the part of ``offsets`` that may be stored. Each partition must be held. An offset may be lower than
        the stored one only if the application requested that."""

    def stored(self, offsets: Offsets) -> None:
        """Record that ``offsets`` are committed."""

    def abandon(self) -> Iterable[TopicPartition]:
        """Release all partitions at once and return those that were held."""

    def orphans_in_hand(self) -> bool:
        """Return whether the application is still working on records of a lost incarnation. If so, wake the connector
        once the application has finished them."""
