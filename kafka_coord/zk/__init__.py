"""Access to ZooKeeper. Only this package imports kazoo.

:func:`connect` opens a :class:`~kafka_coord.zk.store.Store`. It is imported on first use, so code that needs only the
store's interface or a simulated store does not load kazoo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_coord.zk.session import KazooStore, connect

__all__ = ["KazooStore", "connect"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from kafka_coord.zk import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
