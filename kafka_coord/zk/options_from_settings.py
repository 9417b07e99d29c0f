"""Opens a ZooKeeper session with the user's settings. Loads kazoo only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kafka_coord.settings import ZooKeeperSettings

if TYPE_CHECKING:
    from kafka_coord.zk.options import ZkOptions
    from kafka_coord.zk.session import KazooStore


def connect_with(settings: ZooKeeperSettings) -> KazooStore:
    """Opens a ZooKeeper session, which the caller must close. Raises :class:`StoreUnavailable` and
    :class:`SettingsError`."""
    from kafka_coord.zk.session import connect

    return connect(
        settings.hosts,
        session_timeout_ms=settings.session_timeout_ms,
        connect_timeout_s=settings.connect_timeout_ms / 1000,
        options=zookeeper_options(settings),
    )


def zookeeper_options(settings: ZooKeeperSettings) -> ZkOptions:
    """Returns the options for TLS, credentials and ACLs. Raises :class:`SettingsError` for an unusable identities
    file."""
    from kafka_coord.zk.acl_identities import read_identities
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
