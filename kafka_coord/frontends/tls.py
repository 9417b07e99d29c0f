"""Creates the listeners' TLS contexts and reads the names in client certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka_coord.errors import SettingsError


def tls_context(
    certificate: Path | None, key: Path | None, client_ca: Path | None = None, *, optional: bool = False
) -> ssl.SSLContext | None:
    """Returns the TLS context for a listener, or ``None`` without a ``certificate``. With ``client_ca``, clients must
    present a certificate signed by that CA, or may present none at all if ``optional`` is set. Raises
    :class:`SettingsError`."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cannot use {certificate} and its key for TLS: {error}") from None
    return context


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Returns the common name in a certificate from :meth:`ssl.SSLSocket.getpeercert`."""
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else None
