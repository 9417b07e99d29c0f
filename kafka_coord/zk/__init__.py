"""Access to ZooKeeper. Only this package imports kazoo.

:func:`connect` opens a :class:`~kafka_coord.zk.store.Store`, and :func:`connect_with` opens one with the user's
settings. Both load kazoo on first use, so code that needs only the store's interface or a simulated store does not.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_coord.settings import Settings, ZooKeeperSettings
    from kafka_coord.zk.options import ZkOptions
    from kafka_coord.zk.session import KazooStore, connect

__all__ = ["KazooStore", "SystemClock", "connect", "connect_with", "zookeeper_options"]


def __getattr__(name: str) -> Any:
    if name in {"KazooStore", "connect"}:
        from kafka_coord.zk import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class SystemClock:
    """Implements :class:`kafka_coord.zk.store.Clock`. Tests use other clocks, so that they do not have to wait."""

    def monotonic(self) -> float:
        """Returns the seconds since boot, including suspended time if the system reports it. On Linux,
        ``time.monotonic()`` stops while a laptop is suspended, so when it wakes up, a session deadline on that clock
        would still look valid although the server ended the session long ago."""
        try:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        except (AttributeError, OSError):  # not Linux
            return time.monotonic()

    def time(self) -> float:
        return time.time()


def connect_with(settings: ZooKeeperSettings, source: Settings | None = None) -> KazooStore:
    """Opens a ZooKeeper session, which the caller must close. Raises :class:`StoreUnavailable` and
    :class:`SettingsError`. ``source`` is where the settings come from: if its file has changed, new connections of the
    session use the credentials that are in it now."""
    from kafka_coord.zk.session import connect

    options = zookeeper_options(settings)
    if source is not None and source.file is not None and (reread := source.reread) is not None:
        options = replace(options, settings_file=source.file, reread=lambda: zookeeper_options(reread().zookeeper))
    return connect(
        settings.hosts,
        session_timeout_ms=settings.session_timeout_ms,
        connect_timeout_s=settings.connect_timeout_ms / 1000,
        options=options,
    )


def zookeeper_options(settings: ZooKeeperSettings) -> ZkOptions:
    """Returns the options for TLS, credentials and ACLs. Raises :class:`SettingsError` for an unusable identities
    file."""
    from kafka_coord.zk.acl import read_identities
    from kafka_coord.zk.options import Acl, Digest, Sasl, Tls, ZkOptions

    user, _, password = settings.digest.reveal().partition(":") if settings.digest else ("", "", "")
    tls = Tls(
        ca=_path(settings.tls_ca_file),
        cert=_path(settings.tls_cert_file),
        key=_path(settings.tls_key_file),
        key_password=settings.tls_key_password.reveal() if settings.tls_key_password else None,
        verify=settings.tls_verify,
    )
    sasl = Sasl(
        mechanism=settings.sasl_mechanism or "DIGEST-MD5",
        username=settings.sasl_username,
        password=settings.sasl_password.reveal() if settings.sasl_password else None,
    )
    return ZkOptions(
        tls=tls if settings.tls else None,
        digest=Digest(user, password) if settings.digest else None,
        sasl=sasl if settings.sasl_mechanism else None,
        acl=Acl(settings.acl),
        plan=read_identities(settings.identities) if settings.identities else None,
    )


def _path(path: Path | None) -> str | None:
    return str(path) if path else None
