"""Authenticates this instance to its broker: SASL with PLAIN or SCRAM (RFC 5802).

Only :func:`broker_security` does I/O. :func:`answers_to` is a generator that yields the messages to send and receives
the broker's responses.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from kafka_coord.errors import SettingsError
from kafka_coord.renewed import Lifetime, Renewed

log = logging.getLogger(__name__)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MOST_ITERATIONS = 1_000_000

T = TypeVar("T")
Exchange = Generator[bytes, bytes, None]


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """How to connect to the broker's listener. ``tls`` also applies to connections on behalf of clients. The
    credentials apply only to the instance's own connections. ``lifetime`` is the time in which the instance's
    certificate and its CA are valid."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    lifetime: Lifetime | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> BrokerSecurity:
        """Reads librdkafka properties, as in the ``kafka`` section of the settings. Raises :class:`SettingsError`."""
        _say_what_is_not_used(tuple(sorted(filter(_is_about_security, set(properties) - _USED))))
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise SettingsError(f"kafka.security.protocol must be one of {', '.join(_PROTOCOLS)}, not {protocol!r}")
        tls, lifetime = _tls(properties) if protocol.endswith("SSL") else (None, None)
        if not protocol.startswith("SASL"):
            return cls(tls, lifetime=lifetime)
        mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "(none)"
        if mechanism not in MECHANISMS:
            raise SettingsError(
                f"with --listen-kafka, kafka.sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism}"
            )
        username, password = properties.get("sasl.username"), properties.get("sasl.password")
        if not username or not password:
            raise SettingsError("--listen-kafka with SASL needs kafka.sasl.username and kafka.sasl.password")
        return cls(tls, mechanism, username, password, lifetime)


_USED = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)


def _is_about_security(name: str) -> bool:
    return name.startswith(("ssl.", "sasl.", "security.", "enable.ssl.", "enable.sasl."))


_OF_OLD_BROKERS = frozenset({"api.version.request", "broker.version.fallback"})


def knows_all(properties: Mapping[str, str]) -> bool:
    """Returns whether this project's own connections can do what librdkafka would do with the properties."""
    others = properties.keys() - _USED
    if any(map(_is_about_security, others)) or not others.isdisjoint(_OF_OLD_BROKERS):
        return False
    try:
        BrokerSecurity.of(properties)
    except SettingsError:
        return False
    return True


@cache
def _say_what_is_not_used(names: tuple[str, ...]) -> None:
    """Warns once about properties that librdkafka knows, but that do not apply to this program's own connections."""
    if names:
        log.warning(
            "ignoring kafka.%s for connections without librdkafka, which know only %s",
            ", kafka.".join(names),
            ", ".join(sorted(_USED)),
            extra={"event": "properties_not_used"},
        )


_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")


class SettingsFileProperties(Mapping[str, str]):
    """librdkafka properties that are read from a settings file again when it has changed."""

    def __init__(self, file: Path, read: Callable[[], Mapping[str, str]]) -> None:
        self.file = file
        self._renewed = Renewed(f"properties for the brokers from {file}", (file,), read)

    def check(self) -> None:
        """Raises :class:`SettingsError` if the file as it is now cannot be used."""
        self._renewed.newest()
        if self._renewed.problem:
            raise SettingsError(self._renewed.problem)

    def __getitem__(self, key: str) -> str:
        return self._renewed.newest()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._renewed.newest())

    def __len__(self) -> int:
        return len(self._renewed.newest())


def files_of(properties: Mapping[str, str]) -> tuple[Path, ...]:
    """Returns the files from which others may renew what is in the properties."""
    files = tuple(Path(properties[name]) for name in _FILES if properties.get(name))
    return (properties.file, *files) if isinstance(properties, SettingsFileProperties) else files


def broker_security(properties: Mapping[str, str]) -> Renewed[BrokerSecurity]:
    """Returns how to connect to the broker, read again when its files have changed. ``properties`` are those of
    librdkafka. Raises :class:`SettingsError`."""
    return renewed_from(properties, lambda: BrokerSecurity.of(properties), lambda found: found.lifetime)


def renewed_from(
    properties: Mapping[str, str], read: Callable[[], T], lifetime: Callable[[T], Lifetime | None] | None = None
) -> Renewed[T]:
    """Returns what ``read`` makes of the properties, read again when a file of theirs has changed. Raises
    :class:`SettingsError`. ``lifetime`` defaults to that of the certificate that the properties name."""

    def checked() -> T:
        if isinstance(properties, SettingsFileProperties):
            properties.check()
        return read()

    def named(_value: T) -> Lifetime | None:
        with suppress(OSError):
            return Lifetime.of(properties.get("ssl.certificate.location"))
        return None

    return Renewed("credentials for the brokers", files_of(properties), checked, lifetime=lifetime or named)


PLAINTEXT = Renewed.fixed(BrokerSecurity())


def _tls(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, Lifetime | None]:
    ca, certificate = properties.get("ssl.ca.location"), properties.get("ssl.certificate.location")
    directory = ca if ca is not None and Path(ca).is_dir() else None
    try:
        context = ssl.create_default_context(cafile=None if directory else ca, capath=directory)
        if certificate is not None:
            password = properties.get("ssl.key.password", "")  # without one, OpenSSL may ask for it
            context.load_cert_chain(certificate, properties.get("ssl.key.location"), password)
        lifetime = Lifetime.of(certificate, ca)
    except OSError as error:
        raise SettingsError(f"cannot set up TLS to the broker with the kafka.ssl.* options: {error}") from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() in {"", "none"}:
        context.check_hostname = False
    return context, lifetime


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
