"""The errors raised by writes to the groups log, one for each outcome.

An append has one of three outcomes besides success: it was not sent (:class:`NotSent`), it was refused
(:class:`AppendRefused`), or nobody knows (:class:`TermEnded`: the term ends, because the log may hold the records or
not).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kafka_coord.classic_groups.errors import named
from kafka_coord.errors import BrokerError, KafkaCoordError

MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, NOT_ENOUGH_REPLICAS = 10, 18, 19
TOO_LARGE = frozenset({MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE})
RIGHTS = frozenset({29, 30, 31, 53})
"""TOPIC_, GROUP_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
_NOT_LEADER = 6
"""The code of NOT_LEADER_OR_FOLLOWER."""
REFUSALS = TOO_LARGE | {NOT_ENOUGH_REPLICAS} | RIGHTS
"""All codes after which the broker has certainly appended nothing: it checks rights before it looks at the records
(``KafkaApis.handleProduceRequest``), the number of replicas before it appends (``Partition.appendRecordsToLeader``),
and the sizes before it assigns offsets for good (``UnifiedLog.append``). Keep this list closed: after any other code
the records may be in the log, and a later batch with the same sequence numbers would be answered as a duplicate."""

T = TypeVar("T")


class TermEnded(KafkaCoordError):
    """This instance must no longer write to the partition, and it is unknown whether its last append was written."""


class LeadsNoMore(BrokerError):
    """Another broker leads the partition, as after a planned stop of this one, or soon will."""


class NotSent(BrokerError):
    """No byte of the request was sent, so it has had no effect."""


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


class RightMissing(BrokerError):
    """The broker denies this instance a right that it needs. ``code`` is the broker's error."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(f"{reason}: {named(code)}")
        self.code = code


def failure(what: str, code: int) -> BrokerError:
    """Returns the error for a request that the broker answered with ``code``. ``what`` says what could not be done."""
    if code in RIGHTS:
        return RightMissing(what, code)
    return (LeadsNoMore if code == _NOT_LEADER else BrokerError)(f"{what}: {named(code)}")


def only(found: Sequence[T], what: str) -> T:
    """Returns the one element that a response holds about the one thing that was asked for. Raises
    :class:`BrokerError` if the response holds none or several. ``what`` says of what, in the plural."""
    if len(found) != 1:
        raise BrokerError(f"the response describes {len(found)} {what}, although one was asked for")
    return found[0]


def of_group(groups: Sequence[T], group: str) -> T:
    """Returns what a response holds about ``group``, among its ``groups``. Raises :class:`BrokerError` if the response
    does not hold it once."""
    return only([one for one in groups if getattr(one, "group_id", None) == group], f"groups {group!r}")
