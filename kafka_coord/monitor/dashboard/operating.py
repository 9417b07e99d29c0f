"""Handles operator actions over HTTP: logins, and the actions of ``kafka-coord groups``.

An action is a POST with JSON. It must prove the operator's identity, and that no other site made the browser send it.
The second proof is a token that only the logged-in page knows. A request with ``Authorization: Bearer`` does not need
it, because browsers do not add this header automatically.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from kafka_coord.errors import (
    BrokerError,
    KafkaCoordError,
    MalformedValue,
    NotFound,
    RequestRefused,
    SettingsError,
    StoreUnavailable,
    Timeout,
)
from kafka_coord.frontends.socket.access import User
from kafka_coord.model import GroupKind
from kafka_coord.monitor import operate
from kafka_coord.monitor.actions import evict, rebalance
from kafka_coord.monitor.client_groups.asking import Instances
from kafka_coord.monitor.dashboard.logins import SESSION_S, Denied, Logins
from kafka_coord.monitor.dashboard.routes import PREFIX
from kafka_coord.monitor.documents import done_document
from kafka_coord.monitor.groups import kind_of
from kafka_coord.monitor.lag import BrokerLog
from kafka_coord.monitor.requests import Acting
from kafka_coord.monitor.reset import ResetRow, Rule, RuleKind, before_now_ms, compute, require_accepted, time_ms
from kafka_coord.monitor.resetting import Check, Plan, read_resettable, reset, reset_documents
from kafka_coord.monitor.scope import parse_scope
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

Body = Mapping[str, Any]
Answer = tuple[HTTPStatus, Any, list[tuple[str, str]]]
"""Status, document and headers."""

ANSWER_TIMEOUT_S = 30.0
MAX_BODY = 65_536
MAX_REASON = 1_000
MAX_DRY_RUNS = 100
DRY_RUN_S = 600.0
_ACCEPT = "to accept the notes, tick the box below them (accept_notes in the API)"
_ACTION = re.compile(re.escape(PREFIX) + r"/groups/([^/]+)/([a-z-]+)")
_STATUS = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (SettingsError, HTTPStatus.BAD_REQUEST),
    (MalformedValue, HTTPStatus.BAD_REQUEST),
    (RequestRefused, HTTPStatus.CONFLICT),
    (Timeout, HTTPStatus.GATEWAY_TIMEOUT),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (BrokerError, HTTPStatus.SERVICE_UNAVAILABLE),
    (KafkaCoordError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


@dataclass(frozen=True, slots=True)
class _DryRun:
    """A reset that was shown to the operator and awaits confirmation."""

    operator: User
    group: str
    kind: GroupKind
    rows: tuple[ResetRow, ...]
    rule: Rule
    reason: str
    pause: bool
    ends_at: float


class Operating:
    """Answers POST requests. ``open_store`` opens a session for one action. ``properties`` are librdkafka settings."""

    def __init__(
        self,
        logins: Logins,
        open_store: Callable[[], AbstractContextManager[Store]],
        properties: Mapping[str, str],
    ) -> None:
        self._logins, self._open_store, self._properties = logins, open_store, properties
        self._lock = threading.Lock()
        self._dry_runs: dict[str, _DryRun] = {}

    def who(self, environ: Mapping[str, Any]) -> User | None:
        """Returns the operator whose session the request's cookie names."""
        try:
            session = self._logins.session(_cookie(environ))
        except Denied:
            return None
        return session.operator if session is not None else None

    def answer(self, environ: dict[str, Any], path: str) -> Answer:
        """Answers a POST request."""
        try:
            return self._answer(environ, path, _body(environ))
        except Denied as error:
            return error.status, {"error": str(error)}, []
        except (KafkaCoordError, OSError) as error:
            status = next((one for kind, one in _STATUS if isinstance(error, kind)), HTTPStatus.SERVICE_UNAVAILABLE)
            return status, {"error": str(error)}, []
        except Exception:
            log.exception("a dashboard action failed path=%s", path)
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "an unexpected error; see the instance's log"}, []

    def _answer(self, environ: dict[str, Any], path: str, body: Body) -> Answer:
        if path == f"{PREFIX}/login":
            return self._log_in(environ, body)
        if path == f"{PREFIX}/logout":
            return self._log_out(environ)
        match = _ACTION.fullmatch(path)
        if match is None or (act := _ACTIONS.get(match[2])) is None:
            raise Denied(HTTPStatus.NOT_FOUND, f"unknown action; {PREFIX}/openapi.json lists the actions")
        operator, group = self._operator(environ), unquote(match[1])
        if not operator.may(group):
            raise Denied(HTTPStatus.FORBIDDEN, f"operator {operator.name} is not allowed to act on group {group!r}")
        environ["kafka_coord.lasts"]()
        return HTTPStatus.OK, self._acted(act, match[2], operator, group, str(environ["REMOTE_ADDR"]), body), []

    def _log_in(self, environ: Mapping[str, Any], body: Body) -> Answer:
        token = _text(body, "token") or None
        name, session = self._logins.log_in(token, environ.get("kafka_coord.certificate"), environ["REMOTE_ADDR"])
        document = {**operator_document(session.operator), "csrf": session.csrf, "valid_s": SESSION_S}
        return HTTPStatus.OK, document, [("Set-Cookie", _set_cookie(environ, name, round(SESSION_S)))]

    def _log_out(self, environ: Mapping[str, Any]) -> Answer:
        self._logins.log_out(_cookie(environ))
        return HTTPStatus.OK, operator_document(None), [("Set-Cookie", _set_cookie(environ, "", 0))]

    def _operator(self, environ: Mapping[str, Any]) -> User:
        scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if scheme.lower() == "bearer":
            return self._logins.proven(token.strip(), None, str(environ["REMOTE_ADDR"]))
        return self._logins.acting(_cookie(environ), str(environ.get("HTTP_X_CSRF_TOKEN", "")))

    def _acted(self, act: _Act, action: str, operator: User, group: str, address: str, body: Body) -> Any:
        notes: list[str] = []
        confirm = _text(body, "confirm") if act is _reset else ""
        check = partial(require_accepted, accepted=body.get("accept_notes") is True, how=_ACCEPT)
        confirmed = self.confirmed(operator, group, confirm, check) if confirm else None
        reason = confirmed.reason if confirmed is not None else _text(body, "reason")
        acting = Acting(f"{operator.name}@{address} over HTTP", reason, ANSWER_TIMEOUT_S, notes.append)
        asked = _Asked(self, operator, group, body, acting, confirmed, check)
        if act is _reset and confirmed is None:
            action += " (dry run)"
        if not acting.reason:
            raise Denied(HTTPStatus.BAD_REQUEST, "give a reason; the group's history records it")
        try:
            with self._open_store() as store:
                result = act(asked, Instances(store, self._properties), kind_of(store, group))
        except KafkaCoordError as error:
            log.warning(
                "action failed by=%r action=%r group=%r error=%s",
                *(acting.by, action, group, error),
                extra={"event": "http_action"},
            )
            raise
        log.info(
            "action by=%r action=%r group=%r reason=%r",
            *(acting.by, action, group, acting.reason),
            extra={"event": "http_action"},
        )
        return {**result, "notes": notes}

    def keep(self, dry_run: _DryRun) -> str:
        """Stores the dry run and returns the token that confirms it."""
        now = time.monotonic()
        confirm = secrets.token_urlsafe(16)
        with self._lock:
            kept = [(key, one) for key, one in self._dry_runs.items() if one.ends_at > now]
            self._dry_runs = dict([*kept, (confirm, dry_run)][-MAX_DRY_RUNS:])
        return confirm

    def confirmed(self, operator: User, group: str, confirm: str, check: Check) -> _DryRun:
        """Removes and returns the dry run, so it can be confirmed only once. If ``check`` refuses its rows, keeps it.
        Raises :class:`RequestRefused`."""
        with self._lock:
            dry_run = self._dry_runs.get(confirm)
            if dry_run is not None and (dry_run.operator, dry_run.group) == (operator, group):
                check(dry_run.rows)
                del self._dry_runs[confirm]
                if dry_run.ends_at > time.monotonic():
                    return dry_run
        raise RequestRefused("this dry run is no longer valid: review the change again. Nothing was changed")


@dataclass(frozen=True, slots=True)
class _Asked:
    operating: Operating
    operator: User
    group: str
    body: Body
    acting: Acting
    confirmed: _DryRun | None
    check: Check


_Act = Callable[[_Asked, Instances, GroupKind], dict[str, Any]]


def _pause(asked: _Asked, instances: Instances, kind: GroupKind) -> dict[str, Any]:
    _require_managed(kind, "paused")
    operate.pause(instances.store, asked.group, by=asked.acting.by, reason=asked.acting.reason)
    return {"answers": [done_document("pause", asked.group, f"group {asked.group} paused")]}


def _resume(asked: _Asked, instances: Instances, kind: GroupKind) -> dict[str, Any]:
    _require_managed(kind, "resumed")
    operate.resume(instances.store, asked.group, by=asked.acting.by, reason=asked.acting.reason)
    return {"answers": [done_document("resume", asked.group, f"group {asked.group} resumed")]}


def _rebalance(asked: _Asked, instances: Instances, kind: GroupKind) -> dict[str, Any]:
    _require_managed(kind, "rebalanced by hand")
    return {
        "answers": [rebalance(instances.store, asked.group, asked.acting, lambda pause: f"by {pause.by or 'unknown'}")]
    }


def _evict(asked: _Asked, instances: Instances, kind: GroupKind) -> dict[str, Any]:
    consumers = _texts(asked.body, "consumers")
    if not consumers:
        raise Denied(HTTPStatus.BAD_REQUEST, "name the consumers to evict")
    return {"answers": evict(instances, asked.group, kind, consumers, asked.acting)}


def _reset(asked: _Asked, instances: Instances, kind: GroupKind) -> dict[str, Any]:
    """Resets the group's offsets and returns the changes. Without ``confirm``, only returns the changes that a reset
    would make. With ``confirm``, sets exactly the offsets that were shown before. If any of them has a note, the
    operator must also accept the notes (``accept_notes``)."""
    wanted, acting = asked.confirmed, asked.acting
    if wanted is None:
        return _shown(asked, instances, kind)

    def again() -> Plan:
        (found,) = read_resettable(instances, [(wanted.group, wanted.kind)], str(wanted.rule), acting)
        now = (found.committed.get(row.tp) for row in wanted.rows)
        return found, tuple(replace(row, current_offset=one) for row, one in zip(wanted.rows, now, strict=True))

    found, rows = reset(instances.store, *again(), acting, pause=wanted.pause, again=again, check=asked.check)
    return {"rows": reset_documents(found, rows), "answers": [done_document("reset-offsets", asked.group, "")]}


def _shown(asked: _Asked, instances: Instances, kind: GroupKind) -> dict[str, Any]:
    rule, pause, topics = _rule(asked.body), asked.body.get("pause") is True, _texts(asked.body, "topics")
    if pause:
        _require_managed(kind, "paused")
    scope = parse_scope(topics, all_topics=not topics)
    (found,) = read_resettable(instances, [(asked.group, kind)], str(rule), asked.acting)
    with closing(BrokerLog(instances.store, asked.operating._properties)) as brokers:
        rows = compute(rule, found.chosen(scope), found.committed, brokers)
    ends_at = time.monotonic() + DRY_RUN_S
    dry_run = _DryRun(asked.operator, asked.group, kind, rows, rule, asked.acting.reason, pause, ends_at)
    confirm = asked.operating.keep(dry_run)
    return {"rows": reset_documents(found, rows), "rule": str(rule), "confirm": confirm, "valid_s": DRY_RUN_S}


_ACTIONS: Mapping[str, _Act] = {
    "pause": _pause,
    "resume": _resume,
    "rebalance": _rebalance,
    "evict": _evict,
    "reset-offsets": _reset,
}


def _rule(body: Body) -> Rule:
    kind, value = _text(body, "rule"), body.get("value")
    if kind not in {*RuleKind} - {RuleKind.FROM_FILE}:
        raise Denied(HTTPStatus.BAD_REQUEST, f"rule must be one of {', '.join({*RuleKind} - {RuleKind.FROM_FILE})}")
    rule = RuleKind(kind)
    if rule is RuleKind.TO_TIME:
        written = _text(body, "value")
        return Rule(rule, before_now_ms(written) if written[:1] in "Pp" else time_ms(written))
    if rule not in {RuleKind.TO_OFFSET, RuleKind.SHIFT_BY}:
        return Rule(rule)
    least = 0 if rule is RuleKind.TO_OFFSET else -(1 << 63)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
        raise Denied(
            HTTPStatus.BAD_REQUEST, f"{rule} needs an integer{' of 0 or more' if not least else ''} as its value"
        )
    return Rule(rule, value)


def _require_managed(kind: GroupKind, what: str) -> None:
    if kind is not GroupKind.MANAGED:
        raise RequestRefused(
            f"a client-assigned group cannot be {what}, because its members assign the partitions; nothing was changed"
        )


def operator_document(operator: User | None, *, actions: bool = True) -> dict[str, Any]:
    """Returns the document about the logged-in operator. ``actions`` says whether operators can log in."""
    groups = list(operator.groups) if operator is not None else []
    return {"actions": actions, "operator": operator.name if operator is not None else None, "groups": groups}


def _body(environ: Mapping[str, Any]) -> Body:
    """Reads the JSON object in a request's body. Rejects cross-origin requests. Raises :class:`Denied`."""
    origin = environ.get("HTTP_ORIGIN")
    if origin is not None and str(origin).partition("://")[2] != environ.get("HTTP_HOST"):
        raise Denied(HTTPStatus.FORBIDDEN, "cross-origin requests are not allowed")
    if str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower() != "application/json":
        raise Denied(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with Content-Type: application/json")
    length = str(environ.get("CONTENT_LENGTH", ""))
    if not (length.isascii() and length.isdigit()):
        raise Denied(HTTPStatus.LENGTH_REQUIRED, "send the body with a Content-Length")
    if len(length) > 9 or int(length) > MAX_BODY:
        raise Denied(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {MAX_BODY} bytes")
    raw = environ["wsgi.input"].read(int(length))
    if len(raw) < int(length):
        raise Denied(HTTPStatus.BAD_REQUEST, "the body is shorter than its Content-Length")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise Denied(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Denied(HTTPStatus.BAD_REQUEST, "the body is not an object")
    return body


def _text(body: Body, name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > MAX_REASON or not _is_encodable(value):
        raise Denied(HTTPStatus.BAD_REQUEST, f"{name} must be a string of at most {MAX_REASON} characters")
    return value.strip()


def _texts(body: Body, name: str) -> list[str]:
    values = body.get(name, [])
    if not isinstance(values, list):
        raise Denied(HTTPStatus.BAD_REQUEST, f"{name} must be a list of strings")
    return [found for value in values if (found := _text({name: value}, name))]


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON allows
        return False
    return True


def _cookie_name(environ: Mapping[str, Any]) -> str:
    """Returns the cookie's name. A browser sends a cookie to all ports of a host, so the name contains the port."""
    prefix = "__Host-" if environ["wsgi.url_scheme"] == "https" else ""
    return f"{prefix}kafka-coord-{environ['SERVER_PORT']}"


def _cookie(environ: Mapping[str, Any]) -> str:
    pairs = (part.strip().partition("=") for part in str(environ.get("HTTP_COOKIE", "")).split(";"))
    return next((value for name, _, value in pairs if name == _cookie_name(environ)), "")


def _set_cookie(environ: Mapping[str, Any], value: str, max_age_s: int) -> str:
    secure = "; Secure" if environ["wsgi.url_scheme"] == "https" else ""
    return f"{_cookie_name(environ)}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}"
