"""Tests of the socket channel's users: how they authenticate, and which groups they may join."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kafka_coord.channel.messages import Register
from kafka_coord.errors import SettingsError
from kafka_coord.frontends.socket.access import DenialLog, SocketAccess
from kafka_coord.model import Member, Subscription

SECRET = hashlib.sha256(b"sesame").hexdigest()


def access(tmp_path: Path, text: str) -> SocketAccess:
    path = tmp_path / "users.toml"
    path.write_text(text)
    return SocketAccess.load(path)


def register(group: str, secret: str | None = None) -> Register:
    return Register(group, Member("c1", 0, Subscription.to(["flights"])), secret=secret)


@pytest.fixture
def users(tmp_path: Path) -> SocketAccess:
    return access(
        tmp_path,
        f"""
        [users.etl]
        secret_sha256 = "{SECRET}"
        groups = ["delays", "etl-.*"]
        [users.worker]
        certificate = "worker.example.org"
        groups = [".*"]
        """,
    )


@pytest.mark.parametrize(
    ("group", "secret", "certificate", "code"),
    [
        ("delays", "sesame", None, None),
        ("etl-1", "sesame", None, None),
        ("delays-2", "sesame", None, "not-authorised"),
        ("delays", "Sesame", None, "not-authenticated"),
        ("delays", None, None, "not-authenticated"),
        ("delays", SECRET, None, "not-authenticated"),
        ("anything", None, "worker.example.org", None),
        ("anything", "sesame", "worker.example.org", None),
        ("anything", None, "other.example.org", "not-authenticated"),
    ],
)
def test_a_user_is_identified_by_its_secret_or_certificate(users, group, secret, certificate, code):
    refusal = users.why_not(group, secret, certificate)
    assert (refusal.code if refusal else None) == code


def test_the_expressions_for_groups_are_re2_and_take_linear_time(tmp_path):
    groups = """["etl-[0-9]{1,3}", "(a+)+b", "\\\\pLx"]"""
    users = access(tmp_path, f'[users.a]\ncertificate = "a"\ngroups = {groups}')
    assert users.why_not("etl-123", None, "a") is None
    assert users.why_not("\u00fcx", None, "a") is None
    assert users.why_not("a" * 200, None, "a") is not None


def test_a_secret_is_never_repeated(users):
    assert "sesame" not in repr(register("delays", "sesame"))
    refusal = users.why_not("other", "sesame", None)
    assert "sesame" not in refusal.message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", r"\[users.NAME\]"),
        ("[users]", r"\[users.NAME\]"),
        ("[other]\nx = 1", r"\[users.NAME\]"),
        ("[users.a]\ngroups = ['.*']", "no one can authenticate as this user"),
        (f"[users.a]\nsecret_sha256 = '{SECRET}'", "groups"),
        (f"[users.a]\nsecret_sha256 = '{SECRET}'\ngroups = ['(']", "groups"),
        (f"[users.a]\nsecret_sha256 = '{SECRET}'\ngroups = ['etl-(?!prod)']", "RE2"),
        (f"[users.a]\nsecret_sha256 = '{SECRET}'\ngroups = ['delays,etl']", "write 'delays|etl'"),
        ("[users.a]\nsecret_sha256 = 'sesame'\ngroups = ['.*']", "sha256sum"),
        ("[users.a]\nsecret = 'sesame'\ngroups = ['.*']", "certificate, groups, secret_sha256"),
        ("[users.a", "not TOML"),
    ],
)
def test_the_error_for_an_unusable_file_says_what_to_do(tmp_path, text, what):
    with pytest.raises(SettingsError, match=what):
        access(tmp_path, text)


def test_denials_are_logged_without_the_secret_and_a_flood_of_them_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    denials = DenialLog()
    caplog.set_level("WARNING")
    for number in range(50):
        denials.note(f"10.0.0.1:{number}", "not-authenticated", "no user has this secret", 100.0 + number)
    assert len(caplog.records) == DenialLog.MOST
    assert "10.0.0.1:0" in caplog.records[0].getMessage()
    caplog.clear()
    denials.note("10.0.0.2:1", "not-authorised", "user etl is not allowed to join group 'x'", 170.0)
    assert [record.getMessage() for record in caplog.records] == [
        "denied access to 40 more socket consumers in the last period",
        "denied access to socket consumer address=10.0.0.2:1 code=not-authorised"
        " reason=\"user etl is not allowed to join group 'x'\"",
    ]
