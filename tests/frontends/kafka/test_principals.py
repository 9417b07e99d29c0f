"""Tests of how a client that asks for a change is described."""

from __future__ import annotations

import base64
import json

import pytest

from kafka_coord.frontends.kafka.access import UNKNOWN, described, principal_of_login
from kafka_coord.wire.frames import RequestHeader, request_frame
from kafka_coord.wire.messages import message


def login(auth: bytes, version: int) -> bytes:
    form = message("SaslAuthenticateRequest")
    header = RequestHeader(36, version, 7, "admin-1", version in form.flexible)
    return request_frame(header, form, form(auth_bytes=auth))[4:]


def token(claims: object) -> bytes:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    return b"n,,\x01auth=Bearer e30." + body + b".sig\x01\x01"


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("auth", "principal"),
    [
        (b"\0alice\0secret", "User:alice"),
        (b"alice\0alice\0secret", "User:alice"),
        (b"n,,n=bob=2Cjr,r=nonce", "User:bob,jr"),
        (b"n,a=admin,n=bob,r=nonce", "User:bob"),
        (b"c=biws,r=nonce,p=proof", None),
        (token({"sub": "svc"}), "User:svc"),
        (token({}), "User:?"),
        (token([]), "User:?"),
        (b"n,,\x01auth=Bearer nonsense\x01\x01", "User:?"),
        (b"\0\xff\xfe\0secret", UNKNOWN),
        (b"`\x82\x02", None),
        (b"", None),
    ],
)
def test_the_principal_is_the_name_of_the_login(auth: bytes, principal: str | None, version: int) -> None:
    assert principal_of_login(login(auth, version)) == principal


def test_a_frame_that_cannot_be_read_has_an_unknown_principal() -> None:
    assert principal_of_login(login(b"\0alice\0secret", 1)[:-3]) == UNKNOWN


def test_a_description_is_one_short_line_whatever_the_client_id_is() -> None:
    assert described("User:alice", "admin-1", "10.0.0.5:40112") == "User:alice (client id admin-1, 10.0.0.5:40112)"
    odd = described("User:a\nb", "\x1b[31m" + "x" * 10_000, "h:1")
    assert odd.isprintable()
    assert len(odd) < 250
