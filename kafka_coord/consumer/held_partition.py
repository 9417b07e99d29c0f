"""A consumer's progress in one partition that it holds. While the partition is being fetched, only a holder of the
stream's lock may change it."""

from __future__ import annotations

import itertools

from confluent_kafka import OFFSET_BEGINNING

from kafka_coord.errors import NoOffset
from kafka_coord.model import NO_OFFSET, TopicPartition

_serials = itertools.count(1)


class HeldPartition:
    """A partition that the current incarnation holds, from its start-fetcher until its stop-fetcher is carried out.

    ::

        committed ≤ consumed ≤ position          (offsets of the next record; NO_OFFSET if not known yet)

    ``handed`` follows the last record that was handed out. The fetcher may know that no record lies between it and a
    later offset, ``reached``: only transaction markers, aborted records or a gap left by compaction do. ``position`` is
    the later of the two, so it passes such offsets only once every record before them has been handed out.

    The application has the records in [consumed, handed) in hand. ``asked`` is the offset that the application itself
    has committed. ``committed`` may exceed the others only after a seek back, or after the log was truncated;
    ``may_go_back`` then lets one commit lower the stored offset.
    """

    __slots__ = (
        "asked",
        "begun",
        "committed",
        "consumed",
        "failure",
        "handed",
        "may_go_back",
        "partition",
        "paused",
        "reached",
        "serial",
        "stopping",
    )

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.handed = self.consumed = self.asked = self.committed = offset
        self.reached = NO_OFFSET
        self.may_go_back = False
        self.begun = False
        """Whether the start-fetcher was carried out, so that the partition may be fetched."""
        self.paused = False
        self.stopping = False
        self.failure: NoOffset | None = None
        """Why the partition cannot be read until the application seeks, or ``None`` if it can be read."""
        self.serial = next(_serials)
        """The serial of the current fetch. Records with another serial were fetched before a seek, a pause or a stop,
        so they are dropped."""

    @property
    def position(self) -> int:
        """The offset of the next record to hand out."""
        return max(self.handed, self.reached)

    @position.setter
    def position(self, offset: int) -> None:
        self.handed, self.reached = offset, NO_OFFSET

    def reach(self, offset: int) -> None:
        """Records that no record lies between the last one handed out and ``offset``. These offsets count as consumed
        together with the records before them. An empty log has nothing to pass."""
        if offset == 0:
            return
        all_consumed = self.consumed >= self.handed
        self.reached = max(self.reached, offset)
        if all_consumed:
            self.mark_consumed()

    @property
    def wanted(self) -> bool:
        """Whether the partition should be fetched now."""
        return self.begun and not self.paused and not self.stopping and self.failure is None

    @property
    def fetch_from(self) -> int:
        """The offset from which to fetch, in librdkafka's notation."""
        return self.position if self.position >= 0 else int(OFFSET_BEGINNING)

    def renew(self) -> None:
        """Discards everything fetched so far by changing the serial."""
        self.serial = next(_serials)

    def mark_consumed(self) -> None:
        """Counts all records handed out as consumed."""
        self.consumed = self.position

    def start_at(self, offset: int) -> None:
        """Starts a partition without a position at an offset that the group has stored."""
        self.position = self.consumed = self.asked = self.committed = offset

    def move_to(self, offset: int) -> None:
        """Continues reading from ``offset``. ``NO_OFFSET`` stands for the current beginning of the log."""
        self.position = self.consumed = offset
        if offset < self.committed:
            self.may_go_back = True

    def to_commit(self, *, auto_commit: bool) -> int | None:
        """Returns the offset to store, or ``None`` if there is nothing new."""
        return self.admit(self.consumed if auto_commit else self.asked)

    def admit(self, offset: int) -> int | None:
        """Returns ``offset`` if it may be stored, otherwise ``None``. It must differ from the stored offset, and it may
        be lower only if ``may_go_back`` is set."""
        if offset in (NO_OFFSET, self.committed) or (offset < self.committed and not self.may_go_back):
            return None
        return offset

    def stored(self, offset: int) -> None:
        """Records that ZooKeeper has stored ``offset``. It may be of a commit from before a seek back, of which there
        can be several under way."""
        self.committed = offset
        self.may_go_back = self.consumed < offset
