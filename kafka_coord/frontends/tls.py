"""The certificates of the listeners, read again when they are renewed, and the names in client certificates."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka_coord.errors import SettingsError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often new connections look at the files, in seconds at least."""


class Certificate:
    """The certificate of one listener, with its key and the CA of its clients.

    With ``client_ca``, clients must present a certificate signed by that CA, or may present none at all if ``optional``
    is set. The files are read again when they change; new connections then use them. Files that cannot be used (a pair
    that does not fit, half written, unreadable, expired) change nothing: the last usable ones stay, with one warning.
    The constructor raises :class:`SettingsError`.
    """

    def __init__(
        self, certificate: Path, key: Path | None, client_ca: Path | None = None, *, optional: bool = False
    ) -> None:
        self._files = (certificate, key, client_ca)
        self._optional = optional
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen = self._versions()
        self._newest, self.ends_at = self._read()
        self.problem = ""
        """Why the files as they are now are not used, or "" if they are."""
        self.context = self._newest
        """The TLS context for the listener. Each handshake looks at the files."""
        self.context.sni_callback = self._renew

    def __str__(self) -> str:
        return str(self._files[0])

    def _renew(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Runs in each handshake, once the client has spoken."""
        if time.monotonic() >= self._looked + LOOK_S:
            self.look()
        connection.context = self._newest

    def look(self) -> None:
        """Reads the files again if they have changed."""
        with self._lock:
            self._looked = time.monotonic()
            versions = self._versions()
            if versions == self._seen:
                return
            self._seen = versions
            try:
                newest, ends_at = self._read()
                self.problem = f"{self} has expired" if ends_at <= time.time() else ""
            except SettingsError as error:
                self.problem = str(error)
            if self.problem:
                log.warning(
                    "still using the earlier certificate: %s", self.problem, extra={"event": "certificate_unusable"}
                )
                return
            self._newest, self.ends_at = newest, ends_at
        log.info("read a renewed certificate file=%s", self, extra={"event": "certificate_renewed"})

    def _versions(self) -> tuple[object, ...]:
        return tuple(None if file is None else version(file) for file in self._files)

    def _read(self) -> tuple[ssl.SSLContext, float]:
        """Returns the context, and the time at which the certificate ends (Unix time in seconds)."""
        certificate, key, client_ca = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL if self._optional else ssl.CERT_REQUIRED
            # CPython's own tests use this decoder; the library has no other
            ends = ssl._ssl._test_decode_cert(str(certificate))["notAfter"]  # type: ignore[attr-defined]
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"cannot use {certificate} and its key for TLS: {error}") from None
        return context, float(ssl.cert_time_to_seconds(ends))


def version(file: Path) -> object:
    """Returns a value that changes whenever the file does."""
    try:
        stat = file.stat()
    except OSError as error:
        return str(error)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Returns the common name in a certificate from :meth:`ssl.SSLSocket.getpeercert`."""
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else None
