"""What a connection to ZooKeeper identifies itself with, read again for each new connection."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.errors import SettingsError
from kafka_coord.renewed import Renewed, ends_at
from kafka_coord.zk.options import Tls, ZkOptions


@dataclass(frozen=True, slots=True)
class Credentials:
    """The TLS context, the digest credentials as ``user:password``, and the arguments for SASL. ``ends_at`` is when the
    client's certificate ends, in seconds since 1970."""

    tls: ssl.SSLContext | None
    ends_at: float | None
    digest: str | None
    sasl: Mapping[str, str] | None

    @classmethod
    def of(cls, options: ZkOptions) -> Credentials:
        """Reads the files of the options. Raises :class:`SettingsError`."""
        arguments = options.client_arguments()
        tls, ends = (None, None) if options.tls is None else _context(options.tls)
        digest = options.digest
        written = None if digest is None else f"{digest.username}:{digest.password}"
        return cls(tls, ends, written, arguments.get("sasl_options"))


def renewed_credentials(options: ZkOptions) -> Renewed[Credentials]:
    """Raises :class:`SettingsError`."""
    tls = options.tls
    files = [] if tls is None else [Path(file) for file in (tls.ca, tls.cert, tls.key) if file]
    reread = options.reread or (lambda: options)
    return Renewed(
        "credentials for ZooKeeper",
        (*files, options.settings_file),
        lambda: Credentials.of(reread()),
        ends_at=lambda found: found.ends_at,
    )


def _context(tls: Tls) -> tuple[ssl.SSLContext, float | None]:
    """Returns the context, and when the client's certificate ends. Like kazoo's, it does not compare the server's name
    with its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    ends = None
    try:
        if tls.ca:
            context.load_verify_locations(tls.ca)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key, tls.key_password)
            ends = ends_at(tls.cert)
    except OSError as error:  # which includes ssl.SSLError
        raise SettingsError(f"cannot set up TLS to ZooKeeper with {tls.cert or tls.ca}: {error}") from None
    return context, ends
