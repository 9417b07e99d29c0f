"""The errors of a broker's responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kafka_coord.classic_groups.errors import named
from kafka_coord.errors import BrokerError

RIGHTS = frozenset({29, 30, 31, 53})
"""TOPIC_, GROUP_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
_NOT_LEADER = 6
"""The code of NOT_LEADER_OR_FOLLOWER."""

T = TypeVar("T")


class LeadsNoMore(BrokerError):
    """Another broker leads the partition, as after a planned stop of this one, or soon will."""


class NotSent(BrokerError):
    """No byte of the request was sent, so it has had no effect."""


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
