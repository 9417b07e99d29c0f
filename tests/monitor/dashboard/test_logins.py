"""Tests of logins, sessions and their limits, and of the file of operators."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.monitor.dashboard import logins
from kafka_coord.monitor.dashboard.logins import Denied, Logins, OperatorsFile
from tests.monitor.dashboard.served import operators_file

pytestmark = pytest.mark.usefixtures("renewed_at_once")

TOKEN = "a long token"  # noqa: S105


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return operators_file(tmp_path, alice=TOKEN, bob="another")


@pytest.fixture
def made(file: Path, clock: Clock) -> Logins:
    return Logins(OperatorsFile(file).newest, clock)


def status(logins: Logins, token: str | None, address: str = "192.0.2.7", certificate: str | None = None) -> int:
    """The status of a refused token, or 0 if it is accepted."""
    try:
        logins.proven(token, certificate, address)
    except Denied as denied:
        return denied.status
    return 0


def test_a_token_starts_a_session_of_limited_duration(made: Logins, clock: Clock) -> None:
    name, session = made.log_in(TOKEN, None, "192.0.2.7")
    assert made.acting(name, session.csrf).name == "alice"
    clock.now += logins.SESSION_S - 1
    assert made.session(name) is not None
    clock.now += 2
    assert made.session(name) is None


def test_an_action_needs_the_csrf_token_of_its_own_session(made: Logins) -> None:
    name, session = made.log_in(TOKEN, None, "192.0.2.7")
    _, other = made.log_in("another", None, "192.0.2.8")
    for cookie, csrf in ((name, ""), (name, other.csrf), (name, name), ("", session.csrf), ("é", "é")):
        with pytest.raises(Denied, match="log in first"):
            made.acting(cookie, csrf)
    made.log_out(name)
    with pytest.raises(Denied):
        made.acting(name, session.csrf)


def test_after_too_many_wrong_tokens_from_a_network_the_right_one_must_wait_too(made: Logins, clock: Clock) -> None:
    for _ in range(logins.MAX_FAILURES):
        assert status(made, "wrong") == 401
    assert status(made, "wrong") == status(made, TOKEN) == 429
    assert status(made, TOKEN, "192.0.2.8") == 0
    clock.now += logins.FAILURES_S + 1
    assert status(made, TOKEN) == 0
    for last in range(logins.MAX_FAILURES):
        assert status(made, "wrong", f"2001:db8::{last}") == 401
    assert status(made, TOKEN, "2001:db8::99") == 429
    assert status(made, TOKEN, "2001:db8:0:1::1") == 0


def test_the_numbers_of_remembered_failures_and_sessions_are_bounded(
    made: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "MAX_ADDRESSES", 3)
    monkeypatch.setattr(logins, "MAX_SESSIONS", 3)
    for last in range(10):
        assert status(made, "wrong", f"192.0.2.{last}") == 401
    assert len(made._failures) == 3
    names = [made.log_in(TOKEN, None, "198.51.100.1")[0] for _ in range(5)]
    assert [made.session(name) is not None for name in names] == [False, False, True, True, True]


@pytest.mark.parametrize("token", ["", "é", "\ud800", "x" * 10_000, "wrong"])
def test_only_the_right_token_is_accepted(made: Logins, token: str) -> None:
    assert status(made, token) == 401


def test_only_certificates_in_the_file_are_accepted(file: Path, clock: Clock) -> None:
    file.write_text('[operators.carol]\ncertificate = "carol.example.org"\ngroups = ["delays"]\n')
    made = Logins(OperatorsFile(file).newest, clock)
    assert status(made, None, certificate="carol.example.org") == 0
    for stranger in (None, "", "mallory", "carol.example.org.evil"):
        assert status(made, None, certificate=stranger, address=f"of {stranger}") == 401
    assert status(made, "wrong", certificate="carol.example.org") == 401, "the token must have priority"
    carol = made.proven(None, "carol.example.org", "192.0.2.7")
    assert [carol.may(group) for group in ("delays", "delays2", "other")] == [True, False, False]


def test_a_session_ends_when_its_operator_or_token_is_removed_from_the_file(made: Logins, file: Path) -> None:
    alices, _ = made.log_in(TOKEN, None, "192.0.2.7")
    bobs, _ = made.log_in("another", None, "192.0.2.7")
    operators_file(file.parent, alice=TOKEN)
    assert made.session(alices) is not None
    assert made.session(bobs) is None
    operators_file(file.parent, alice="a new token")
    assert made.session(alices) is None
    assert status(made, TOKEN) == 401


def test_a_file_that_cannot_be_used_changes_nothing(made: Logins, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    name, _ = made.log_in(TOKEN, None, "192.0.2.7")
    written = file.read_text()
    file.write_text("[operators.alice]\n")
    assert status(made, TOKEN) == status(made, TOKEN) == 0
    assert made.session(name) is not None
    levels = [record.levelname for record in caplog.records if record.levelname != "INFO"]
    assert levels == ["WARNING"], "the warning must be logged once"
    file.write_text(written)
    os.chmod(file, 0o666)  # noqa: S103
    assert status(made, TOKEN) == 0
    file.unlink()
    assert status(made, TOKEN) == 0


@pytest.mark.parametrize("mode", [0o604, 0o640 | 0o020, 0o602, 0o644, 0o666])
def test_a_file_that_others_may_read_or_change_is_refused(file: Path, mode: int) -> None:
    os.chmod(file, mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        OperatorsFile(file)
