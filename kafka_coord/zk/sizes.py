"""Computes the sizes of operations, because ZooKeeper drops the connection if a request is too large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_coord.zk.store import Check, Create, Delete, Op, SetData

HEADER = 8
"""The size in bytes of the xid and the type that precede every request."""
_MULTI_HEADER = 9
_INT = 4
_VERBS: Mapping[type[Op], str] = {Check: "check", Create: "create", SetData: "set", Delete: "delete"}


def op_size(op: Op, path_prefix: int = 0, acl: int = 64) -> int:
    """Returns the size in bytes of one operation of a multi. ``path_prefix`` is the length of the chroot, and ``acl``
    is the size of the ACL."""
    size = _MULTI_HEADER + _INT + path_prefix + len(op.path.encode()) + _INT
    if isinstance(op, Create):
        return size + _INT + len(op.data) + acl
    if isinstance(op, SetData):
        return size + _INT + len(op.data)
    return size


def described(ops: Sequence[Op]) -> str:
    """Describes a multi for use in messages, such as ``multi of 3 operations (check /a, set /b, …)``."""
    shown = ", ".join(f"{_VERBS[type(op)]} {op.path}" for op in ops[:3])
    more = ", …" if len(ops) > 3 else ""
    return f"multi of {len(ops)} operations ({shown}{more})"
