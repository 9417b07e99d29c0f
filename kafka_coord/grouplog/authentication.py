"""Authenticates this instance to its broker: SASL with PLAIN or SCRAM (RFC 5802).

Does no I/O: :func:`answers_to` is a generator that yields the messages to send and receives the broker's responses.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from kafka_coord.errors import SettingsError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MOST_ITERATIONS = 1_000_000

Exchange = Generator[bytes, bytes, None]


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """How to connect to the broker's listener. ``tls`` also applies to connections on behalf of clients. The
    credentials apply only to the instance's own connections."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> BrokerSecurity:
        """Reads librdkafka properties, as in the ``kafka`` section of the settings. Raises :class:`SettingsError`."""
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise SettingsError(f"kafka.security.protocol must be one of {', '.join(_PROTOCOLS)}, not {protocol!r}")
        tls = _tls(properties) if protocol.endswith("SSL") else None
        if not protocol.startswith("SASL"):
            return cls(tls)
        mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "(none)"
        if mechanism not in MECHANISMS:
            raise SettingsError(
                f"with --listen-kafka, kafka.sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism}"
            )
        username, password = properties.get("sasl.username"), properties.get("sasl.password")
        if not username or not password:
            raise SettingsError("--listen-kafka with SASL needs kafka.sasl.username and kafka.sasl.password")
        return cls(tls, mechanism, username, password)


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"))
        certificate = properties.get("ssl.certificate.location")
        if certificate is not None:
            context.load_cert_chain(certificate, properties.get("ssl.key.location"), properties.get("ssl.key.password"))
    except OSError as error:
        raise SettingsError(f"cannot set up TLS to the broker with the kafka.ssl.* options: {error}") from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() in {"", "none"}:
        context.check_hostname = False
    return context


def answers_to(security: BrokerSecurity, nonce: str | None = None) -> Exchange:
    """Yields the messages to send to the broker. Raises :class:`ValueError` or :class:`KeyError` if a response is
    invalid."""
    if security.mechanism == "PLAIN":
        yield f"\0{security.username}\0{security.password}".encode()
    else:
        digest = "sha256" if security.mechanism == "SCRAM-SHA-256" else "sha512"
        yield from _scram(security, digest, nonce or secrets.token_urlsafe(18))


def _scram(security: BrokerSecurity, digest: str, nonce: str) -> Exchange:
    name = security.username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode()
    given = dict(part.split("=", 1) for part in challenge.split(","))
    iterations = int(given["i"])
    if not given["r"].startswith(nonce) or not 1 <= iterations <= _MOST_ITERATIONS:
        raise ValueError("the broker's SCRAM challenge contains a wrong nonce or iteration count")
    salted = hashlib.pbkdf2_hmac(digest, security.password.encode(), base64.b64decode(given["s"]), iterations)
    key = hmac.digest(salted, b"Client Key", digest)
    last = f"c=biws,r={given['r']}"
    signed = f"{first},{challenge},{last}".encode()
    signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    final = yield f"{last},p={proof}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if not hmac.compare_digest(final.partition(b"v=")[2], base64.b64encode(expected)):
        raise ValueError("the broker did not prove that it knows the password")
