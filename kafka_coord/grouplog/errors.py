"""The errors raised by writes to the groups log, one for each outcome.

An append has one of three outcomes besides success: it was not sent (:class:`~kafka_coord.kafka.errors.NotSent`), it
was refused (:class:`AppendRefused`), or nobody knows (:class:`TermEnded`: the term ends, because the log may hold the
records or not).
"""

from __future__ import annotations

from kafka_coord.errors import KafkaCoordError
from kafka_coord.kafka.errors import RIGHTS

MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, NOT_ENOUGH_REPLICAS = 10, 18, 19
TOO_LARGE = frozenset({MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE})
REFUSALS = TOO_LARGE | {NOT_ENOUGH_REPLICAS} | RIGHTS
"""All codes after which the broker has certainly appended nothing: it checks rights before it looks at the records
(``KafkaApis.handleProduceRequest``), the number of replicas before it appends (``Partition.appendRecordsToLeader``),
and the sizes before it assigns offsets for good (``UnifiedLog.append``). Keep this list closed: after any other code
the records may be in the log, and a later batch with the same sequence numbers would be answered as a duplicate."""


class TermEnded(KafkaCoordError):
    """This instance must no longer write to the partition, and it is unknown whether its last append was written."""


class NotProven(KafkaCoordError):
    """Neither the log nor ZooKeeper can prove now that the term goes on. The term has not ended."""


class AppendRefused(KafkaCoordError):
    """The records were refused, and nothing was appended. The term goes on. ``code`` is the broker's error."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code

    @property
    def is_too_large(self) -> bool:
        return self.code in TOO_LARGE

    @property
    def lacks_right(self) -> bool:
        """Whether the instance lacks a right."""
        return self.code in RIGHTS
