"""Handles operator actions over HTTP: logins, and the actions of ``kafka-coord groups``.

An action is a POST with JSON. It must prove the operator's identity, and that no other site made the browser send it.
The second proof is a token that only the logged-in page knows. A request with ``Authorization: Bearer`` does not need
it, because browsers do not add this header automatically.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from msgspec import UNSET, DecodeError, json

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
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.group import AnswerDocument, Document
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.offsets import parse_scope
from kafka_coord.groups.requests import Acting
from kafka_coord.groups.reset import (
    Check,
    Plan,
    ResetRow,
    ResetRowDocument,
    ResetRule,
    RuleKind,
    before_now_ms,
    compute,
    require_accepted,
    reset,
    time_ms,
)
from kafka_coord.groups.verbs import VERBS, GroupVerbs, Verb
from kafka_coord.kafka.offsets import BrokerLog
from kafka_coord.model import GroupKind
from kafka_coord.monitor.dashboard.documents import (
    DoneDocument,
    ErrorDocument,
    EvictBody,
    NothingBody,
    ReasonBody,
    ResetBody,
    SessionDocument,
    TokenBody,
)
from kafka_coord.monitor.dashboard.logins import SESSION_S, Denied, Logins
from kafka_coord.monitor.dashboard.routes import PREFIX
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

Answer = tuple[HTTPStatus, Document, list[tuple[str, str]]]
"""Status, document and headers."""

T = TypeVar("T")
B = TypeVar("B", bound=ReasonBody | ResetBody)

ANSWER_TIMEOUT_S = 30.0
MAX_BODY = 65_536
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
    rule: ResetRule
    reason: str
    pause: bool
    ends_at: float


class DryRuns:
    """The dry runs that await confirmation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_token: dict[str, _DryRun] = {}

    def keep(self, dry_run: _DryRun) -> str:
        """Stores the dry run and returns the token that confirms it."""
        now = time.monotonic()
        confirm = secrets.token_urlsafe(16)
        with self._lock:
            kept = [(key, one) for key, one in self._by_token.items() if one.ends_at > now]
            self._by_token = dict([*kept, (confirm, dry_run)][-MAX_DRY_RUNS:])
        return confirm

    def confirmed(self, operator: User, group: str, confirm: str, check: Check) -> _DryRun:
        """Removes and returns the dry run, so it can be confirmed only once. If ``check`` refuses its rows, keeps it.
        Raises :class:`RequestRefused`."""
        with self._lock:
            dry_run = self._by_token.get(confirm)
            if dry_run is not None and (dry_run.operator, dry_run.group) == (operator, group):
                check(dry_run.rows)
                del self._by_token[confirm]
                if dry_run.ends_at > time.monotonic():
                    return dry_run
        raise RequestRefused("this dry run is no longer valid: review the change again. Nothing was changed")


class Operating:
    """Answers POST requests. ``open_store`` opens a session for one action. ``properties`` are librdkafka settings."""

    def __init__(
        self,
        logins: Logins,
        open_store: Callable[[], AbstractContextManager[Store]],
        properties: Mapping[str, str],
    ) -> None:
        self._logins, self._open_store, self._properties = logins, open_store, properties
        self._dry_runs = DryRuns()

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
            return self._answer(environ, path, _read(environ))
        except Denied as error:
            return error.status, ErrorDocument(error=str(error)), []
        except (KafkaCoordError, OSError) as error:
            status = next((one for kind, one in _STATUS if isinstance(error, kind)), HTTPStatus.SERVICE_UNAVAILABLE)
            return status, ErrorDocument(error=str(error)), []
        except Exception:
            log.exception("a dashboard action failed path=%s", path)
            return (
                HTTPStatus.INTERNAL_SERVER_ERROR,
                ErrorDocument(error="an unexpected error; see the instance's log"),
                [],
            )

    def _answer(self, environ: dict[str, Any], path: str, raw: bytes) -> Answer:
        if path == f"{PREFIX}/login":
            return self._log_in(environ, _body(raw, TokenBody))
        if path == f"{PREFIX}/logout":
            _body(raw, NothingBody)
            return self._log_out(environ)
        match = _ACTION.fullmatch(path)
        if match is None or (action := ACTIONS.get(match[2])) is None:
            raise Denied(HTTPStatus.NOT_FOUND, f"unknown action; {PREFIX}/openapi.json lists the actions")
        operator, group = self._operator(environ), unquote(match[1])
        if not operator.may(group):
            raise Denied(HTTPStatus.FORBIDDEN, f"operator {operator.name} is not allowed to act on group {group!r}")
        body = _body(raw, action.body)
        environ["kafka_coord.lasts"]()
        return HTTPStatus.OK, self._acted(action, operator, group, str(environ["REMOTE_ADDR"]), body), []

    def _log_in(self, environ: Mapping[str, Any], body: TokenBody) -> Answer:
        token = body.token.strip() or None
        name, session = self._logins.log_in(token, environ.get("kafka_coord.certificate"), environ["REMOTE_ADDR"])
        document = SessionDocument.of(session.operator, csrf=session.csrf, valid_s=SESSION_S)
        return HTTPStatus.OK, document, [("Set-Cookie", _set_cookie(environ, name, round(SESSION_S)))]

    def _log_out(self, environ: Mapping[str, Any]) -> Answer:
        self._logins.log_out(_cookie(environ))
        return HTTPStatus.OK, SessionDocument.of(None), [("Set-Cookie", _set_cookie(environ, "", 0))]

    def _operator(self, environ: Mapping[str, Any]) -> User:
        scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if scheme.lower() == "bearer":
            return self._logins.proven(token.strip(), None, str(environ["REMOTE_ADDR"]))
        return self._logins.acting(_cookie(environ), str(environ.get("HTTP_X_CSRF_TOKEN", "")))

    def _acted(
        self, action: HttpAction, operator: User, group: str, address: str, body: ReasonBody | ResetBody
    ) -> DoneDocument:
        begun = action.begin(_Asked(operator, group, body, self._dry_runs, self._properties))
        notes: list[str] = []
        acting = Acting(f"{operator.name}@{address} over HTTP", begun.reason, ANSWER_TIMEOUT_S, notes.append)
        if not acting.reason:
            raise Denied(HTTPStatus.BAD_REQUEST, "give a reason; the group's history records it")
        try:
            with self._open_store() as store:
                directory = GroupDirectory(AskedInstances(store, self._properties))
                result = begun.act(directory.find(group, begun.kind), acting)
        except KafkaCoordError as error:
            log.warning(
                "action failed by=%r action=%r group=%r error=%s",
                *(acting.by, begun.name, group, error),
                extra={"event": "http_action"},
            )
            raise
        log.info(
            "action by=%r action=%r group=%r reason=%r",
            *(acting.by, begun.name, group, acting.reason),
            extra={"event": "http_action"},
        )
        return DoneDocument(notes=notes, **result)


@dataclass(frozen=True, slots=True)
class _Asked(Generic[B]):
    operator: User
    group: str
    body: B
    dry_runs: DryRuns
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Begun:
    """An action about to be carried out: its name in the log, its reason, and what it does. ``act`` returns fields of
    :class:`DoneDocument`. ``kind`` is the kind of group that the operator saw, if the action depends on it."""

    name: str
    reason: str
    act: Callable[[GroupVerbs, Acting], dict[str, Any]]
    kind: GroupKind | None = None


def _verb(name: str, verb: Verb, asked: _Asked[ReasonBody]) -> _Begun:
    def act(groups: GroupVerbs, acting: Acting) -> dict[str, Any]:
        return {"answers": [verb.act(groups, asked.group, acting)]}

    return _Begun(name, asked.body.reason.strip(), act)


def _evict(asked: _Asked[EvictBody]) -> _Begun:
    def act(groups: GroupVerbs, acting: Acting) -> dict[str, Any]:
        consumers = [one for one in asked.body.consumers if one.strip()]  # a member's id may begin with a blank
        if not consumers:
            raise Denied(HTTPStatus.BAD_REQUEST, "name the consumers to evict")
        return {"answers": [*groups.evict(asked.group, consumers, acting)]}

    return _Begun("evict", asked.body.reason.strip(), act)


def _reset(asked: _Asked[ResetBody]) -> _Begun:
    """Without ``confirm``, only shows the changes that a reset would make. With ``confirm``, sets exactly the offsets
    that were shown before. If any of them has a note, the operator must also accept the notes (``accept_notes``)."""
    confirm = asked.body.confirm.strip()
    if not confirm:
        return _Begun("reset-offsets (dry run)", asked.body.reason.strip(), partial(_show_reset, asked))
    check = partial(require_accepted, accepted=asked.body.accept_notes, how=_ACCEPT)
    wanted = asked.dry_runs.confirmed(asked.operator, asked.group, confirm, check)
    return _Begun("reset-offsets", wanted.reason, partial(_confirmed_reset, wanted, check), wanted.kind)


def _confirmed_reset(wanted: _DryRun, check: Check, groups: GroupVerbs, acting: Acting) -> dict[str, Any]:
    def again() -> Plan:
        found = groups.resettable([wanted.group], str(wanted.rule), acting)[wanted.group]
        now = (found.committed.get(row.tp) for row in wanted.rows)
        return found, tuple(replace(row, current_offset=one) for row, one in zip(wanted.rows, now, strict=True))

    found, rows = reset(groups.store, *again(), acting, pause=wanted.pause, again=again, check=check)
    answers = [AnswerDocument.done("reset-offsets", wanted.group, "")]
    return {"answers": answers, "rows": [ResetRowDocument.of(found, row) for row in rows]}


def _show_reset(asked: _Asked[ResetBody], groups: GroupVerbs, acting: Acting) -> dict[str, Any]:
    rule, pause, topics = _rule(asked.body), asked.body.pause, _stripped(asked.body.topics)
    if pause:
        groups.require_pausable()
    scope = parse_scope(topics, all_topics=not topics)
    found = groups.resettable([asked.group], str(rule), acting)[asked.group]
    with closing(BrokerLog(groups.store, asked.properties)) as brokers:
        rows = compute(rule, found.chosen(scope), found.committed, brokers)
    ends_at = time.monotonic() + DRY_RUN_S
    dry_run = _DryRun(asked.operator, asked.group, groups.kind, rows, rule, acting.reason, pause, ends_at)
    return {
        "rows": [ResetRowDocument.of(found, row) for row in rows],
        "rule": str(rule),
        "confirm": asked.dry_runs.keep(dry_run),
        "valid_s": DRY_RUN_S,
    }


@dataclass(frozen=True, slots=True)
class HttpAction:
    """An action on a group. ``body`` is the type of the request's body. ``scripts/shapes`` writes it, the summary and
    the description into ``openapi.json``."""

    begin: Callable[[_Asked[Any]], _Begun]
    body: type[ReasonBody | ResetBody]
    summary: str
    description: str = ""


ACTIONS: Mapping[str, HttpAction] = {
    **{
        name: HttpAction(partial(_verb, name, verb), ReasonBody, verb.summary, verb.description)
        for name, verb in VERBS.items()
    },
    "evict": HttpAction(_evict, EvictBody, "Delete consumers' registrations"),
    "reset-offsets": HttpAction(
        _reset,
        ResetBody,
        "Show what a reset would change; with confirm, make the changes that were shown",
        "Without topics, all partitions of the group are reset. value is a number for to-offset and shift-by, and a "
        "time or an ISO 8601 duration for to-time. The confirm token in the response can be used once, within 10 "
        "minutes.",
    ),
}


def _rule(body: ResetBody) -> ResetRule:
    if body.rule is UNSET:
        raise Denied(HTTPStatus.BAD_REQUEST, "name a rule, such as to-earliest")
    rule, value = RuleKind(body.rule), body.value
    if rule is RuleKind.TO_TIME:
        written = value.strip() if isinstance(value, str) else ""
        return ResetRule(rule, before_now_ms(written) if written[:1] in "Pp" else time_ms(written))
    if rule not in {RuleKind.TO_OFFSET, RuleKind.SHIFT_BY}:
        return ResetRule(rule)
    least = 0 if rule is RuleKind.TO_OFFSET else -(1 << 63)
    if not isinstance(value, int) or not least <= value < 1 << 63:
        raise Denied(
            HTTPStatus.BAD_REQUEST, f"{rule} needs an integer{' of 0 or more' if not least else ''} as its value"
        )
    return ResetRule(rule, value)


def _read(environ: Mapping[str, Any]) -> bytes:
    """Reads a request's body. Rejects cross-origin requests. Raises :class:`Denied`."""
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
    return raw  # type: ignore[no-any-return]


def _body(raw: bytes, body: type[T]) -> T:
    """Decodes a body. Raises :class:`Denied`."""
    try:
        return json.decode(raw, type=body)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Denied(
            HTTPStatus.BAD_REQUEST, f"the body is not as {PREFIX}/openapi.json describes it: {error}"
        ) from None


def _stripped(texts: Sequence[str]) -> list[str]:
    return [found for text in texts if (found := text.strip())]


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
