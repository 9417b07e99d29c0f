"""The certificates of the listeners, and the names in client certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.errors import SettingsError
from kafka_coord.renewed import Renewed, ends_at

LOOK_S = 1.0
"""How often new connections look at the files, in seconds at least."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS for a listener. Its certificate ends at ``ends_at``, in seconds since 1970."""

    context: ssl.SSLContext
    ends_at: float

    @classmethod
    def read(cls, certificate: Path, key: Path | None, client_ca: Path | None, *, optional: bool) -> ServerTls:
        """Raises :class:`SettingsError`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
            return cls(context, ends_at(certificate))
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
            ends_at=lambda found: found.ends_at,
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
