"""Says who sent a request, for the groups' histories: the principal, the client id and the address.

The broker authenticates the client, and does not say as whom. The name is therefore the one with which the client logs
in; a request reaches this instance only after the broker has accepted the login. The broker may map it to another name
(``principal.builder.class``, ``sasl.kerberos.principal.to.local.rules``). Does no I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
import re

from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import peek, read_header
from kafka_coord.wire.messages import message

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that has not logged in."""
UNKNOWN = "User:?"
"""A client that has logged in with a mechanism that does not show its name, such as GSSAPI."""
MAX_CHARS = 100
"""The length to which each part of a description is cut."""

_GS2 = re.compile(rb"[ny](?:,|=[^,]*,)(?:a=[^,]*)?,")
"""The header with which a SCRAM or OAUTHBEARER message begins (RFC 5801)."""


def principal_of_login(frame: bytes) -> str | None:
    """Returns the principal that a SaslAuthenticate request logs in as, or ``None`` if the request does not contain it,
    such as a later message of the same login."""
    form = message("SaslAuthenticateRequest")
    _, version = peek(frame)
    try:
        _, at = read_header(frame, flexible=version in form.flexible)
        name = _name_in(form.decode(frame, version, at).auth_bytes)
    except (BadMessage, UnicodeDecodeError):
        return UNKNOWN
    return f"User:{name}" if name else None


def _name_in(login: bytes) -> str:
    header = _GS2.match(login)
    if header is None:  # PLAIN: [authzid] NUL authcid NUL password
        parts = login.split(b"\0")
        return parts[1].decode() if len(parts) == 3 else ""
    rest = login[header.end() :]
    if rest.startswith(b"n="):  # SCRAM
        return rest[2:].partition(b",")[0].decode().replace("=2C", ",").replace("=3D", "=")
    token = re.search(rb"\x01auth=Bearer ([^\x01]+)\x01", b"\x01" + rest.lstrip(b"\x01"))
    return _subject_of(token[1]) if token is not None else ""


def _subject_of(token: bytes) -> str:
    """Returns the subject of a JSON web token, or ``?`` if it is not one."""
    try:
        claims = json.loads(base64.urlsafe_b64decode(token.split(b".")[1] + b"=="))
        return str(claims["sub"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error, RecursionError):
        return "?"


def described(principal: str, client_id: str | None, address: str) -> str:
    """Returns one line such as ``User:alice (client id admin-1, 10.0.0.5:40112)``."""
    return f"{_cut(principal)} (client id {_cut(client_id or 'none')}, {address})"


def _cut(text: str) -> str:
    if text.isprintable() and len(text) <= MAX_CHARS:
        return text
    plain = "".join(char if char.isprintable() else "�" for char in text)
    return plain if len(plain) <= MAX_CHARS else f"{plain[: MAX_CHARS - 1]}…"
