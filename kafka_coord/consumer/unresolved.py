"""Keeps, for the group, the first end of each partition that starts at its end, and what the member may not read.

A partition without a position is held, but not fetched. The group remembers that its end is awaited, so whoever lists
that end first (the member, or the elected instance with its own rights) stores it, and a later owner starts there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kafka_coord.channel.interface import MemberChannel
from kafka_coord.channel.operations import Registration
from kafka_coord.consumer.fetcher_interface import Fetchers
from kafka_coord.errors import MalformedValue, MembershipLost, StoreError, StoreUnavailable
from kafka_coord.model import TopicPartition

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often, in seconds, the member looks whether the elected instance has listed an end."""
_RETRY_S = 0.25


class UnresolvedPartitions:
    """The unresolved partitions and refused topics of one member. For the connector's thread."""

    def __init__(self, channel: MemberChannel, fetchers: Fetchers) -> None:
        self._channel = channel
        self._fetchers = fetchers
        self._awaited: dict[TopicPartition, str] = {}
        """The partitions whose ends the group is known to await, with the recorded reasons."""
        self._refused: Mapping[str, str] = {}
        self._look_at = 0.0
        self._complaint = ""

    def reset(self) -> None:
        """Forgets what was recorded for an incarnation that has ended."""
        self._awaited.clear()
        self._refused = {}

    def await_ends(self, registration: Registration) -> None:
        """Records for the group which ends are awaited. Raises :class:`StoreUnavailable` and
        :class:`MembershipLost`."""
        unresolved = self._fetchers.unresolved()
        self._awaited = {tp: reason for tp, reason in self._awaited.items() if tp in unresolved}
        new = {tp: reason for tp, reason in unresolved.items() if self._awaited.get(tp) != reason}
        if not new:
            return
        try:
            self._channel.await_ends(registration, new)
        except (MembershipLost, StoreUnavailable):
            raise
        except StoreError as error:
            self._complain(f"could not record the awaited ends of {len(new)} partitions: {error}")
        self._awaited |= new

    def keep_ends(self, registration: Registration) -> None:
        """Stores the listed ends as the group's offsets, or takes over the offsets that it has. Raises
        :class:`StoreUnavailable` and :class:`MembershipLost`."""
        ends = self._fetchers.listed_ends()
        if ends:
            self._start_at(self._channel.keep_ends(registration, ends))

    def step(self, registration: Registration, now: float) -> float:
        """Does what is due. Returns the (monotonic) time for the next call. Raises :class:`MembershipLost`."""
        try:
            self._step(registration, now)
        except MembershipLost:
            raise
        except StoreUnavailable as error:
            log.debug("got no response about unresolved partitions: %s", error)
            return now + _RETRY_S
        except (StoreError, MalformedValue) as error:
            self._complain(f"could not record what is unresolved: {error}")
        busy = self._awaited or self._refused or self._fetchers.refused() or self._fetchers.unresolved()
        return now + _RETRY_S if busy else float("inf")

    def _step(self, registration: Registration, now: float) -> None:
        refused = dict(self._fetchers.refused())
        if refused != self._refused:
            self._channel.refuse(registration, refused)
            self._refused = refused
        self.keep_ends(registration)
        self.await_ends(registration)
        if not self._awaited:
            self._look_at = now + LOOK_S
        elif now >= self._look_at:
            self._look_at = now + LOOK_S
            stored = self._committed(list(self._awaited))
            self._start_at({tp: offset for tp, offset in stored.items() if offset is not None})

    def _committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """Returns the stored offsets. Whoever has written one that cannot be decoded must not delay the others."""
        try:
            return self._channel.committed(partitions)
        except MalformedValue as error:
            if len(partitions) == 1:
                self._complain(f"holding {partitions[0]} without reading until its offset is repaired: {error}")
                return {}
        half = len(partitions) // 2
        return {**self._committed(partitions[:half]), **self._committed(partitions[half:])}

    def _start_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        self._fetchers.resolve(offsets)
        self._fetchers.begin(offsets)
        self._channel.started_at(offsets)

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("%s", complaint)
        self._complaint = complaint
