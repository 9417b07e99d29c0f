"""How far a consumer has come with one partition it holds. Plain state: its owner does the locking."""

from __future__ import annotations

import itertools

from confluent_kafka import OFFSET_BEGINNING

from kafka_coord.errors import NoOffset
from kafka_coord.model import NO_OFFSET, TopicPartition

_serials = itertools.count(1)


class HeldPartition:
    """A partition held by this incarnation, from its start-fetcher until its stop-fetcher was obeyed.

    ::

        committed ≤ consumed ≤ position          (offsets of the next record; NO_OFFSET where not known yet)

    The application has the records in [consumed, position) in hand. ``asked`` is the offset that the application
    committed itself. Only ``may_go_back`` lets a commit lower the stored offset, once: after a seek back, or when the
    log was cut below the committed offset.
    """

    __slots__ = (
        "asked",
        "begun",
        "committed",
        "consumed",
        "failure",
        "may_go_back",
        "partition",
        "paused",
        "position",
        "serial",
        "stopping",
    )

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.position = self.consumed = self.asked = self.committed = offset
        self.may_go_back = False
        self.begun = False
        """Its start was carried out: it may be fetched."""
        self.paused = False
        self.stopping = False
        self.failure: NoOffset | None = None
        """Why it cannot be read until the application seeks, if it cannot."""
        self.serial = next(_serials)
        """Records fetched under another serial are not wanted: they were asked for before a seek, a pause or a stop."""

    @property
    def wanted(self) -> bool:
        """Whether it should be fetched now."""
        return self.begun and not self.paused and not self.stopping and self.failure is None

    @property
    def fetch_from(self) -> int:
        """The offset to begin fetching at, as librdkafka writes it."""
        return self.position if self.position >= 0 else int(OFFSET_BEGINNING)

    def renew(self) -> None:
        """Makes everything fetched so far unwanted."""
        self.serial = next(_serials)

    def mark_consumed(self) -> None:
        """The application is done with all it was handed."""
        self.consumed = self.position

    def move_to(self, offset: int) -> None:
        """Goes on from ``offset`` (``NO_OFFSET``: the beginning of the log, wherever that is)."""
        self.position = self.consumed = offset
        if offset < self.committed:
            self.may_go_back = True

    def to_commit(self, *, auto_commit: bool) -> int | None:
        """The offset to store, ``None`` where there is nothing new."""
        return self.admit(self.consumed if auto_commit else self.asked)

    def admit(self, offset: int) -> int | None:
        """``offset`` if storing it changes anything and does not go back unasked, else ``None``."""
        if offset in (NO_OFFSET, self.committed) or (offset < self.committed and not self.may_go_back):
            return None
        return offset

    def stored(self, offset: int) -> None:
        """``offset`` is in ZooKeeper now."""
        self.committed = offset
        self.may_go_back = self.may_go_back and self.consumed < offset
