"""Translates kazoo's exceptions into this project's errors."""

from __future__ import annotations

from kazoo import exceptions as kazoo
from kazoo.handlers.threading import KazooTimeoutError

from kafka_coord.errors import (
    BadVersion,
    NoAuth,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionLost,
    StoreError,
    StoreUnavailable,
)

_FACTS: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (kazoo.NoNodeError, NoNode, "the znode (for a create, its parent) does not exist"),
    (kazoo.NodeExistsError, NodeExists, "the znode already exists"),
    (kazoo.NotEmptyError, NotEmpty, "the znode has children"),
    (kazoo.BadVersionError, BadVersion, "the znode's version has changed, because someone else has written to it"),
    (kazoo.NoAuthError, NoAuth, "the znode's ACL does not allow it with these credentials"),
    (kazoo.InvalidACLError, NoAuth, "the ACL to set is not valid: is this session authenticated?"),
    (kazoo.AuthFailedError, NoAuth, "ZooKeeper refused the credentials"),
    (kazoo.SessionClosedRequireSaslError, NoAuth, "ZooKeeper accepts only clients that authenticate with SASL"),
    (kazoo.NoChildrenForEphemeralsError, StoreError, "an ephemeral znode cannot have children"),
    (kazoo.UnimplementedError, StoreError, "this ZooKeeper server is too old for the operation"),
    (kazoo.QuotaExceededError, StoreError, "the quota set in ZooKeeper for this path is exhausted"),
    (kazoo.BadArgumentsError, StoreError, "ZooKeeper rejected the arguments (is the path invalid?)"),
    (kazoo.MarshallingError, StoreError, "ZooKeeper could not read the request"),
    (kazoo.SessionExpiredError, SessionLost, "the session has ended; pending requests may have taken effect"),
    (
        kazoo.ConnectionLoss,
        StoreUnavailable,
        "the connection broke before a response arrived; the request may have taken effect",
    ),
    (KazooTimeoutError, StoreUnavailable, "no response in time; the request may have taken effect"),
)


def translated(error: Exception, doing: str, path: str = "", hint: str = "") -> StoreError:
    """Returns the typed error for an exception that kazoo raised. ``doing`` names the operation, such as "set" or
    "multi of 3 operations". Any error that is not clearly a refusal becomes :class:`StoreUnavailable`.
    """
    where = f"{doing} {path}".strip()
    for raised, ours, sentence in _FACTS:
        if isinstance(error, raised):
            return ours(f"{where}: {sentence}{hint}", path)
    return StoreUnavailable(f"{where}: {type(error).__name__} {error}; whether it took effect is unknown{hint}", path)


def is_answer(error: Exception) -> bool:
    """Returns whether the server sent the error in response to the request, which proves that the session is alive."""
    return isinstance(error, kazoo.ZookeeperError) and not isinstance(
        error,
        kazoo.ConnectionLoss
        | kazoo.SessionExpiredError
        | kazoo.AuthFailedError
        | kazoo.SessionMovedError
        | kazoo.OperationTimeoutError,
    )
