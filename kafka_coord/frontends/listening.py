"""What listeners need before a client may speak: certificates and the names in them, TLS handshakes, limited in number
and duration, and one or two file descriptors for each connection."""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.errors import SettingsError
from kafka_coord.renewed import Lifetime, Renewed

LOOK_S = 1.0
"""How often new connections look at the files, in seconds at least."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS for a listener, and the time in which its certificate and the CA of its clients are valid."""

    context: ssl.SSLContext
    lifetime: Lifetime | None

    @classmethod
    def read(cls, certificate: Path, key: Path | None, client_ca: Path | None, *, optional: bool) -> ServerTls:
        """Raises :class:`SettingsError`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key, "")  # otherwise OpenSSL may ask for a password
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
            return cls(context, Lifetime.of(certificate, client_ca))
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"cannot use {certificate} and its key for TLS: {error}") from None


class Certificate(Renewed[ServerTls]):
    """The certificate of one listener, with its key and the CA of its clients. New connections use renewed files.

    With ``client_ca``, clients must present a certificate signed by that CA, or may present none at all if ``optional``
    is set. The constructor raises :class:`SettingsError`.
    """

    def __init__(
        self, certificate: Path, key: Path | None, client_ca: Path | None = None, *, optional: bool = False
    ) -> None:
        super().__init__(
            f"certificate {certificate}",
            (certificate, key, client_ca),
            lambda: ServerTls.read(certificate, key, client_ca, optional=optional),
            lifetime=lambda found: found.lifetime,
            every_s=LOOK_S,
        )
        self.context = self.newest().context
        """The TLS context for the listener. Each handshake looks at the files."""
        self.context.sni_callback = self._renew

    def _renew(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Runs in each handshake, once the client has spoken."""
        connection.context = self.newest().context


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Returns the common name in a certificate from :meth:`ssl.SSLSocket.getpeercert`."""
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else None


HANDSHAKE_S = 5.0
"""The time limit for a TLS handshake, in seconds."""
MAX_HANDSHAKES = 128
"""The maximum number of concurrent TLS handshakes. Any other connections wait, which costs little."""


class Handshakes:
    """The handshakes of one listener. Use only on the event loop."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._places = asyncio.Semaphore(MAX_HANDSHAKES)

    async def secure(self, raw: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport | None:
        """Performs the handshake. Returns the transport that ``protocol`` must use from then on, or ``None`` if the
        connection has been closed. Run this in a task, as soon as ``raw`` is connected. Raises :class:`OSError` if the
        handshake fails."""
        # connection_made is too early to pause: in Python 3.11.2, the transport starts reading right after it
        raw.pause_reading()
        async with self._places:
            return await asyncio.get_running_loop().start_tls(
                raw, protocol, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )


OTHER_DESCRIPTORS = 200
"""How many file descriptors are reserved for everything except client connections."""


def allowed_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def allow_descriptors(wanted: int) -> int:
    """Raises the limit on open files to ``wanted``, or as far as the process is allowed to. Returns the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed_descriptors() < wanted:
        with suppress(ValueError, OSError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return allowed_descriptors()
