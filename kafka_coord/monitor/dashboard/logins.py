"""Decides who may act in the dashboard, based on the operators file, logins and sessions."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from kafka_coord.errors import SettingsError
from kafka_coord.frontends.socket.access import DenialLog, SocketAccess, User
from kafka_coord.renewed import Renewed

log = logging.getLogger(__name__)

SESSION_S = 8 * 3600.0
"""How long a login lasts, in seconds."""
MAX_SESSIONS = 100
"""The maximum number of sessions. When it is reached, a new login ends the oldest session."""
MAX_FAILURES = 5
FAILURES_S = 60.0
"""An address is locked out after :data:`MAX_FAILURES` failed logins within this many seconds."""
MAX_ADDRESSES = 10_000
MAX_TOKEN = 500
_NOT_FOR_OTHERS = 0o026


class Denied(Exception):
    """The request is refused. The message gives the reason, and ``status`` is the HTTP status of the response."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class OperatorsFile(Renewed[SocketAccess]):
    """The operators in a TOML file, in tables such as ``[operators.alice]``. :mod:`kafka_coord.frontends.socket.access`
    describes their fields. The file is read again when it changes. The constructor raises :class:`SettingsError` if the
    file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"operators file {path}", (path,), lambda: _load(path))


def _load(path: Path) -> SocketAccess:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the operators: {error.strerror}") from None
    if mode & _NOT_FOR_OTHERS:
        raise SettingsError(f"{path}: other users may read or change it; run chmod 600 {path}")
    return SocketAccess.load(path, "operators")


@dataclass(frozen=True, slots=True)
class LoginSession:
    """A login. Each action must include ``csrf``, which only the logged-in page knows. The cookie is not enough,
    because a browser also sends it to other ports of this host."""

    operator: User
    csrf: str
    ends_at: float


class Logins:
    """The operators' logins and sessions. Thread-safe. ``now`` returns monotonic seconds. Methods raise
    :class:`Denied`."""

    def __init__(self, operators: Callable[[], SocketAccess], now: Callable[[], float] = time.monotonic) -> None:
        self._operators, self._now = operators, now
        self._lock = threading.Lock()
        self._sessions: dict[bytes, LoginSession] = {}
        self._failures: dict[str, list[float]] = {}
        """Network → the times of its failed logins."""
        self._denials = DenialLog("dashboard operator")

    def log_in(self, token: str | None, certificate: str | None, address: str) -> tuple[str, LoginSession]:
        """Returns a new session and its id. The operator is identified by the token or, without a token, by the common
        name in the client's certificate."""
        operator = self.proven(token, certificate, address)
        name, now = secrets.token_urlsafe(32), self._now()
        session = LoginSession(operator, secrets.token_urlsafe(32), now + SESSION_S)
        with self._lock:
            self._sessions = {key: one for key, one in self._sessions.items() if one.ends_at > now}
            while len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[_key(name)] = session
        log.info(
            "an operator logged in operator=%s address=%s",
            *(operator.name, address),
            extra={"event": "operator_logged_in"},
        )
        return name, session

    def proven(self, token: str | None, certificate: str | None, address: str) -> User:
        """Returns the operator with ``token`` or, if that is ``None``, with ``certificate``."""
        fit = token is None or (token.isascii() and len(token) <= MAX_TOKEN)
        network, now = _network(address), self._now()
        with self._lock:  # held throughout, so that concurrent attempts all count
            recent = [at for at in self._failures.get(network, ()) if at > now - FAILURES_S]
            if len(recent) >= MAX_FAILURES:
                raise Denied(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too many failed logins from this address; try again in a minute",
                )
            proven = self._operators().proven(token, certificate if token is None else None) if fit else []
            if proven:
                return proven[0]
            self._failures.pop(network, None)  # so that it moves to the end, as the newest failure
            while len(self._failures) >= MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]
            self._failures[network] = [*recent, now]
            why = "no operator has this token" if token is not None else f"no operator has certificate {certificate!r}"
            self._denials.note(address, "not-authenticated", why, now)
        raise Denied(HTTPStatus.UNAUTHORIZED, why if token is not None or certificate else "log in with a token")

    def session(self, name: str) -> LoginSession | None:
        """Returns the session with the id ``name``. A session ends early if its operator's entry in the file is changed
        or removed."""
        session = self._sessions.get(_key(name))
        if session is None or session.ends_at <= self._now():
            return None
        return session if self._operators().user(session.operator.name) == session.operator else None

    def acting(self, name: str, csrf: str) -> User:
        """Returns the operator of the session ``name``. Rejects requests that lack the session's ``csrf``."""
        session = self.session(name)
        if session is None or not hmac.compare_digest(csrf.encode(), session.csrf.encode()):
            raise Denied(HTTPStatus.UNAUTHORIZED, "you are not logged in, or your session has ended: log in first")
        return session.operator

    def log_out(self, name: str) -> None:
        with self._lock:
            self._sessions.pop(_key(name), None)


def _key(name: str) -> bytes:
    """Returns the key of a session: a hash of its id, so that the timing of a lookup reveals nothing about the id."""
    return hashlib.sha256(name.encode()).digest()


def _network(address: str) -> str:
    """Returns the network that counts as one address: for IPv6, the /64, because one host can use all of it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
