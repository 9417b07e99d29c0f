"""The exceptions that this project raises, with the CLI's exit code for each.

::

    KafkaCoordError                       1
    ├── SettingsError                     2   a flag, variable or file has an invalid value
    │   ├── InvalidName                   2   a group, consumer or topic name that Kafka would not allow
    │   └── InvalidPattern                2   a regular expression that the linear-time engine rejects
    ├── MalformedValue                    3   a znode, command or file cannot be decoded
    │   └── UnknownVersion                3   well formed, but in a version that this release does not support
    ├── StoreError                        4   ZooKeeper refused an operation or could not be reached
    │   ├── StoreUnavailable              4   no response in time: the operation may have taken effect
    │   │   └── SessionLost               4   the session has ended: ephemerals and watches are gone
    │   ├── NoNode, NodeExists, NotEmpty  4   the znode is missing, already exists, or has children
    │   ├── BadVersion                    4   someone has written to the znode since it was read
    │   ├── NoAuth                        4   the ACL forbids it
    │   ├── RequestTooLarge               4   the request would exceed ZooKeeper's jute.maxbuffer
    │   ├── MultiFailed                   4   one operation of a multi failed, so none took effect
    │   └── Fenced                        4   another instance has taken over, so this one may no longer write
    ├── BrokerError                       5   no usable broker was found
    ├── RequestRefused                    6   the current state forbids the request; nothing was changed
    │   ├── TreeRefused                   6   there is no coordination tree that this process may serve
    │   └── TreeUnfinished                6   a command is still making the coordination tree
    ├── NotFound                          7   no such group, consumer, topic or coordinator
    ├── Timeout                           8   the awaited event did not happen in time
    ├── DevClusterError                   9   the local ZooKeeper or Kafka could not be started
    ├── VerificationFailed               10   the demo or a check found lost or duplicate records
    └── ConsumerError                    11
        ├── ConsumerClosed               11   used after close
        ├── ConsumerIdInUse              11   another live consumer holds this name
        ├── MembershipLost               11   the registration is gone: no more commits are allowed
        └── NoOffset                     11   no offset stored, or out of range, and auto_offset_reset is "error"
"""

from __future__ import annotations

_MAX_REASON_CHARS = 1_000


class KafkaCoordError(Exception):
    """The base class of this project's errors. ``exit_code`` is the exit code of the CLI."""

    exit_code = 1


class SettingsError(KafkaCoordError, ValueError):
    """A setting is invalid. The message names the setting, its value and the allowed values."""

    exit_code = 2


class InvalidName(SettingsError):
    """A name breaks Kafka's rule for topic names, which applies to all names here: it must match
    ``[a-zA-Z0-9._-]{1,249}`` and must not be ``.`` or ``..``."""


class InvalidPattern(SettingsError):
    """The linear-time engine cannot compile a topic pattern."""


class MalformedValue(KafkaCoordError, ValueError):
    """A value cannot be decoded.

    ``where`` is the path of its znode or file, and ``field`` is the offending field, or "". A long ``reason`` is
    truncated, so that a huge value cannot fill the logs.
    """

    exit_code = 3

    def __init__(self, where: str, reason: str, field: str = "") -> None:
        reason = reason if len(reason) <= _MAX_REASON_CHARS else f"{reason[:_MAX_REASON_CHARS]}…"
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason
        self.field = field


class UnknownVersion(MalformedValue):
    """A well-formed value has a ``version`` that this release does not support. Such values are left unchanged."""


class StoreError(KafkaCoordError):
    """ZooKeeper refused an operation, or could not be reached. ``path`` is the znode in question."""

    exit_code = 4

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class StoreUnavailable(StoreError):
    """ZooKeeper did not respond in time. A write may or may not have taken effect, so read back before you retry."""


class SessionLost(StoreUnavailable):
    """The session has ended or never existed, so its ephemerals and watches are gone. A write may have taken effect."""


class NoNode(StoreError):
    """The znode does not exist or, for a create, its parent does not."""


class NodeExists(StoreError):
    """The znode already exists."""


class NotEmpty(StoreError):
    """The znode has children, so it cannot be deleted."""


class BadVersion(StoreError):
    """The znode's version is not the expected one: someone has written to the znode since it was read."""


class NoAuth(StoreError):
    """The znode's ACL does not allow this operation."""


class RequestTooLarge(StoreError):
    """The request would exceed ZooKeeper's ``jute.maxbuffer`` (1 MB by default)."""


class MultiFailed(StoreError):
    """A multi failed as a whole. ``index`` is the first operation that failed, and ``cause`` is its error."""

    def __init__(self, message: str, path: str, index: int, cause: StoreError) -> None:
        super().__init__(message, path)
        self.index = index
        self.cause = cause


class Fenced(StoreError):
    """The epoch (or term) check failed: another instance has taken over, so this one may no longer write."""


class BrokerError(KafkaCoordError):
    """No Kafka broker could be found or used."""

    exit_code = 5


class RequestRefused(KafkaCoordError):
    """The current state does not allow the request. Nothing was changed."""

    exit_code = 6


class TreeRefused(RequestRefused):
    """There is no coordination tree that this process may serve: it is missing, another one, or superseded, by the tree
    ``newer`` if that is known."""

    def __init__(self, message: str, newer: str = "") -> None:
        super().__init__(message)
        self.newer = newer


class TreeUnfinished(RequestRefused):
    """A command is still making the coordination tree, so nobody serves it yet."""


class NotFound(KafkaCoordError):
    """The group, consumer, topic or coordinator does not exist."""

    exit_code = 7


class Timeout(KafkaCoordError):
    """The operation timed out. If it was an operator's request, the request stays queued."""

    exit_code = 8


class DevClusterError(KafkaCoordError):
    """``kafka_coord.dev`` could not start or stop its local ZooKeeper or Kafka."""

    exit_code = 9


class VerificationFailed(KafkaCoordError):
    """A verification found lost records, duplicates that were not allowed, or wrong counts."""

    exit_code = 10


class ConsumerError(KafkaCoordError):
    """The base class of the errors that :class:`kafka_coord.Consumer` raises."""

    exit_code = 11


class ConsumerClosed(ConsumerError):
    """The consumer was used after ``close()``."""


class ConsumerIdInUse(ConsumerError):
    """Another live consumer in the group holds this name."""


class MembershipLost(ConsumerError):
    """The consumer's registration is gone, so the consumer can no longer commit."""


class NoOffset(ConsumerError):
    """A partition has no usable offset, and ``auto_offset_reset`` is ``error``."""
