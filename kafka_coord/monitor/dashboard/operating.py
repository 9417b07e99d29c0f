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
from kafka_coord.groups.requests import REFUSED, Acting, require_assignor
from kafka_coord.groups.reset import (
    Check,
    OffsetChangeDocument,
    Plan,
    ResetRow,
    ResetRule,
    RuleKind,
    before_now_ms,
    compute,
    require_accepted,
    reset,
    time_ms,
)
from kafka_coord.groups.verbs import VERBS, DryRun, GroupVerbs, Verb, dry_pauses
from kafka_coord.kafka.offsets import BrokerLog
from kafka_coord.model import GroupKind
from kafka_coord.model.sequences import some
from kafka_coord.monitor.dashboard.documents import (
    ActionBody,
    ConvertBody,
    ConvertManyBody,
    DoneDocument,
    ErrorDocument,
    EvictBody,
    ManyBody,
    NothingBody,
    ResetBody,
    SessionDocument,
    SettingsBody,
    TokenBody,
    TopicsBody,
)
from kafka_coord.monitor.dashboard.logins import SESSION_S, Denied, Logins
from kafka_coord.monitor.dashboard.routes import PREFIX
from kafka_coord.zk.brokers import await_new
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

Answer = tuple[HTTPStatus, Document, list[tuple[str, str]]]
"""Status, document and headers."""

T = TypeVar("T")
B = TypeVar("B", bound=ActionBody)

ANSWER_TIMEOUT_S = 30.0
MAX_BODY = 65_536
MAX_DRY_RUNS = 100
DRY_RUN_S = 600.0
_ACCEPT = "to accept the notes, tick the box below them (accept_notes in the API)"
_ACTION = re.compile(re.escape(PREFIX) + r"/groups/([^/]+)/([a-z-]+)")
_OF_MANY = re.compile(re.escape(PREFIX) + r"/actions/([a-z-]+)")
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
class _Asked(Generic[B]):
    """An operator's request. ``groups`` are the groups to act on, and ``found`` the verbs of each."""

    found: Mapping[str, GroupVerbs]
    directory: GroupDirectory
    body: B
    acting: Acting
    properties: Mapping[str, str]

    @property
    def group(self) -> str:
        return next(iter(self.found))

    @property
    def groups(self) -> GroupVerbs:
        return self.found[self.group]


@dataclass(frozen=True, slots=True)
class _Planned:
    """An action that can be carried out. ``shown`` and the result of ``act`` are fields of :class:`DoneDocument`.
    ``rows`` are the new offsets whose notes the operator must accept. ``act`` gets the verbs of each group anew,
    because the action may be carried out minutes later, in another ZooKeeper session."""

    act: Callable[[Mapping[str, GroupVerbs], Acting, Check], dict[str, Any]]
    shown: dict[str, Any]
    rows: tuple[ResetRow, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shown:
    """An action that was shown to the operator and awaits confirmation. ``kinds`` are those of the groups that were
    shown."""

    operator: User
    path: str
    kinds: Mapping[str, GroupKind]
    reason: str
    planned: _Planned
    ends_at: float


class DryRuns:
    """The actions that await confirmation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_token: dict[str, _Shown] = {}

    def keep(self, waiting: _Shown) -> str:
        """Stores the action and returns the token that confirms it."""
        now = time.monotonic()
        confirm = secrets.token_urlsafe(16)
        with self._lock:
            kept = [(key, one) for key, one in self._by_token.items() if one.ends_at > now]
            self._by_token = dict([*kept, (confirm, waiting)][-MAX_DRY_RUNS:])
        return confirm

    def confirmed(self, operator: User, path: str, confirm: str, check: Callable[[_Shown], None]) -> _Shown:
        """Removes and returns the action, so it can be confirmed only once. If ``check`` refuses it, keeps it. Raises
        :class:`RequestRefused`."""
        with self._lock:
            waiting = self._by_token.get(confirm)
            if waiting is not None and (waiting.operator, waiting.path) == (operator, path):
                check(waiting)
                del self._by_token[confirm]
                if waiting.ends_at > time.monotonic():
                    return waiting
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
        action, named = _named(path)
        operator, body = self._operator(environ), _body(raw, action.body)
        groups = list(dict.fromkeys(body.groups)) if isinstance(body, (ManyBody, ConvertManyBody)) else [str(named)]
        if denied := [group for group in groups if not operator.may(group)]:
            raise Denied(HTTPStatus.FORBIDDEN, f"operator {operator.name} is not allowed to act on group {denied[0]!r}")
        environ["kafka_coord.lasts"]()
        return HTTPStatus.OK, self._acted(action, operator, groups, path, str(environ["REMOTE_ADDR"]), body), []

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
        self, action: HttpAction, operator: User, groups: Sequence[str], path: str, address: str, body: ActionBody
    ) -> DoneDocument:
        confirm, waiting, notes = body.confirm.strip(), None, list[str]()
        check = partial(require_accepted, accepted=body.accept_notes, how=_ACCEPT)
        if confirm:
            approve = partial(_approve, action, groups, body, check)
            waiting = self._dry_runs.confirmed(operator, path, confirm, approve)
        reason = waiting.reason if waiting is not None else body.reason.strip()
        if not reason:
            raise Denied(HTTPStatus.BAD_REQUEST, "give a reason; the group's history records it")
        acting = Acting(f"{operator.name}@{address} over HTTP", reason, ANSWER_TIMEOUT_S, notes.append)
        is_dry = waiting is None and (body.dry_run or action.needs_confirmation)
        about = (acting.by, f"{action.name} (dry run)" if is_dry else action.name, some(groups))
        try:
            with self._open_store() as store:
                directory = GroupDirectory(AskedInstances(store, self._properties))
                if waiting is not None:
                    kinds = waiting.kinds
                    found = {group: directory.find(group, kinds[group]) for group in kinds}
                    result = waiting.planned.act(found, acting, check)
                else:
                    found = {group: _find(directory, group, body) for group in groups}
                    planned = action.plan(_Asked(found, directory, body, acting, self._properties))
                    if is_dry:
                        kinds = {group: one.kind for group, one in found.items()}
                        ends_at = time.monotonic() + DRY_RUN_S
                        kept = self._dry_runs.keep(_Shown(operator, path, kinds, reason, planned, ends_at))
                        result = {**planned.shown, "confirm": kept, "valid_s": DRY_RUN_S}
                    else:
                        result = planned.act(found, acting, check)
        except KafkaCoordError as error:
            log.warning(
                "action failed by=%r action=%r group=%r error=%s", *about, error, extra={"event": "http_action"}
            )
            raise
        log.info("action by=%r action=%r group=%r reason=%r", *about, reason, extra={"event": "http_action"})
        return DoneDocument(notes=notes, **result)


def _named(path: str) -> tuple[HttpAction, str | None]:
    """Returns the action that a path names, and the group, or ``None`` if the body names the groups."""
    match = _ACTION.fullmatch(path)
    if match is not None and (action := ACTIONS.get(match[2])) is not None:
        return action, unquote(match[1])
    match = _OF_MANY.fullmatch(path)
    if match is not None and (action := OF_MANY.get(match[1])) is not None:
        return action, None
    raise Denied(HTTPStatus.NOT_FOUND, f"unknown action; {PREFIX}/openapi.json lists the actions")


def _find(directory: GroupDirectory, group: str, body: ActionBody) -> GroupVerbs:
    if isinstance(body, ResetBody) and body.create and directory.may_create(group, None):
        return directory.new
    return directory.find(group)


def _approve(action: HttpAction, groups: Sequence[str], body: ActionBody, check: Check, waiting: _Shown) -> None:
    """Raises :class:`RequestRefused` unless the operator has accepted all that the action needs."""
    check(waiting.planned.rows)
    if action.is_final and body.name != groups[0]:
        raise RequestRefused(
            f"this cannot be undone: type the group's name (name in the API), {groups[0]}. Nothing was changed"
        )


def _at_once(act: Callable[[GroupVerbs, Acting], Sequence[AnswerDocument]], dry_run: DryRun) -> _Planned:
    """Returns an action on one group that does not change offsets to what was shown."""

    def acted(found: Mapping[str, GroupVerbs], acting: Acting, _: Check) -> dict[str, Any]:
        (groups,) = found.values()
        return {"answers": [*act(groups, acting)]}

    return _Planned(acted, {"effects": [*dry_run.effects], "rows": [*dry_run.rows]})


def _verb(verb: Verb, asked: _Asked[ActionBody]) -> _Planned:
    group = asked.group
    dry_run = asked.groups.dry_verb(group) if asked.body.dry_run else DryRun(())
    return _at_once(lambda groups, acting: [verb.act(groups, group, acting)], dry_run)


def _of_each(
    name: str,
    named: Mapping[str, GroupVerbs],
    act: Callable[[GroupVerbs, str, Acting], AnswerDocument],
    effects: Sequence[str],
) -> _Planned:
    """Returns an action on several groups. If it is refused for one, the others go on."""

    def acted(found: Mapping[str, GroupVerbs], acting: Acting, _: Check) -> dict[str, Any]:
        answers = []
        for group, groups in found.items():
            try:
                answers.append(act(groups, group, acting))
            except (RequestRefused, NotFound) as error:
                answers.append(AnswerDocument.done(name, group, str(error), REFUSED))
        return {"answers": answers}

    if not named:
        raise Denied(HTTPStatus.BAD_REQUEST, "name the groups")
    return _Planned(acted, {"effects": [*effects]})


def _verb_of_many(name: str, verb: Verb, asked: _Asked[ManyBody]) -> _Planned:
    return _of_each(name, asked.found, verb.act, dry_pauses(asked.found, pauses=name == "pause").effects)


def _kind(body: ConvertBody) -> GroupKind:
    if body.to is UNSET:
        raise Denied(HTTPStatus.BAD_REQUEST, "name the kind that the group is to be")
    return GroupKind(body.to)


def _convert(asked: _Asked[ConvertBody]) -> _Planned:
    group, to = asked.group, _kind(asked.body)
    dry_run = asked.groups.dry_convert(group, to) if asked.body.dry_run else DryRun(())
    return _at_once(lambda groups, acting: [GroupDirectory(groups.instances).convert(group, to, acting)], dry_run)


def _convert_many(asked: _Asked[ConvertManyBody]) -> _Planned:
    to, effects = _kind(asked.body), list[str]()
    for group, groups in asked.found.items() if asked.body.dry_run else ():
        try:
            effects += groups.dry_convert(group, to).effects
        except (RequestRefused, NotFound) as error:
            effects.append(f"group {group} is left out: {error}")

    def act(groups: GroupVerbs, group: str, acting: Acting) -> AnswerDocument:
        return GroupDirectory(groups.instances).convert(group, to, acting)

    return _of_each("convert", asked.found, act, effects)


def _evict(asked: _Asked[EvictBody]) -> _Planned:
    consumers = [one for one in asked.body.consumers if one.strip()]  # a member's id may begin with a blank
    if not consumers:
        raise Denied(HTTPStatus.BAD_REQUEST, "name the consumers to evict")
    group = asked.group
    dry_run = DryRun(())
    if asked.body.dry_run:
        with closing(BrokerLog(asked.directory.store, asked.properties)) as brokers:
            dry_run = asked.groups.dry_evict(group, consumers, brokers.known_ranges)
    return _at_once(lambda groups, acting: groups.evict(group, consumers, acting), dry_run)


def _settings(asked: _Asked[SettingsBody]) -> _Planned:
    group, changes = asked.group, asked.body.changes()
    if not changes:
        raise Denied(HTTPStatus.BAD_REQUEST, f"name a setting: {', '.join(SettingsBody.names())}")
    if changes.get("assignor") is not None:
        require_assignor(changes["assignor"])
    dry_run = asked.groups.dry_settings(group, changes)
    return _at_once(lambda groups, acting: [groups.change_settings(group, changes, acting)], dry_run)


def _delete(asked: _Asked[ActionBody]) -> _Planned:
    group = asked.group
    with closing(BrokerLog(asked.directory.store, asked.properties)) as brokers:
        dry_run = asked.groups.dry_delete(group, brokers.known_ranges)
    return _at_once(lambda groups, acting: [groups.delete(group, acting)], dry_run)


def _delete_offsets(asked: _Asked[TopicsBody]) -> _Planned:
    group, topics = asked.group, _stripped(asked.body.topics)
    chosen = parse_scope(topics, all_topics=not topics).choose(asked.groups.committed(group)[1], group)
    with closing(BrokerLog(asked.directory.store, asked.properties)) as brokers:
        dry_run = asked.groups.dry_delete_offsets(group, chosen, brokers.known_ranges)

    def act(groups: GroupVerbs, acting: Acting) -> list[AnswerDocument]:
        return [groups.delete_offsets(group, chosen, groups.committed(group)[0], acting)]

    return _at_once(act, dry_run)


def _reset(asked: _Asked[ResetBody]) -> _Planned:
    """Once confirmed, sets exactly the offsets that were shown. If any of them has a note, the operator must also
    accept the notes (``accept_notes``)."""
    rule, group, pause, topics = _rule(asked.body), asked.group, asked.body.pause, _stripped(asked.body.topics)
    if pause:
        asked.groups.require_pausable()
    scope = parse_scope(topics, all_topics=not topics)
    copied = rule.copied(asked.directory, [group])
    is_new = asked.body.create and not asked.groups.exists([group])[group]
    named = [(group, asked.groups)]
    await_new(asked.directory.store, scope.topics)
    (found,) = asked.directory.resettable(named, str(rule), asked.acting, [group] if is_new else [])
    with closing(BrokerLog(asked.directory.store, asked.properties)) as brokers:
        rows = compute(rule, found.chosen(scope, copied), found.committed, brokers, copied)

    def act(verbs: Mapping[str, GroupVerbs], acting: Acting, check: Check) -> dict[str, Any]:
        def again() -> Plan:
            now = verbs[group].resettable([group], str(rule), acting)[group]
            return now, tuple(replace(row, current_offset=now.committed.get(row.tp)) for row in rows)

        if is_new:
            verbs[group].create(group, acting)
        done, after = reset(verbs[group].store, *again(), acting, pause=pause, again=again, check=check)
        answers = [AnswerDocument.done("reset-offsets", group, "")]
        return {"answers": answers, "rows": [OffsetChangeDocument.of(done, row) for row in after]}

    shown: dict[str, Any] = {"rows": [OffsetChangeDocument.of(found, row) for row in rows], "rule": str(rule)}
    if is_new:
        shown["effects"] = [f"group {group} does not exist, and is created"]
    return _Planned(act, shown, rows)


@dataclass(frozen=True, slots=True)
class HttpAction:
    """An action. ``body`` is the type of the request's body. ``scripts/shapes`` writes it, the summary and the
    description into ``openapi.json``. An action that ``needs_confirmation`` is always shown first, and carried out by a
    second request with ``confirm``; any other only with ``dry_run``. What ``is_final`` cannot be undone, so the second
    request must repeat the group's name."""

    name: str
    plan: Callable[[_Asked[Any]], _Planned]
    body: type[ActionBody]
    summary: str
    description: str = ""
    needs_confirmation: bool = False
    is_final: bool = False


_ALL = (
    *(
        HttpAction(name, partial(_verb, verb), ActionBody, verb.summary, verb.description)
        for name, verb in VERBS.items()
    ),
    HttpAction("evict", _evict, EvictBody, "Delete consumers' registrations"),
    HttpAction(
        "convert",
        _convert,
        ConvertBody,
        "Make the group one of another kind while it runs",
        "From and to native, that takes the group over from the brokers, or gives it back.",
    ),
    HttpAction("settings", _settings, SettingsBody, "Change settings of the group", "null restores the default."),
    HttpAction(
        "delete",
        _delete,
        ActionBody,
        "Show what removing the group would delete; with confirm and name, remove it",
        needs_confirmation=True,
        is_final=True,
    ),
    HttpAction(
        "delete-offsets",
        _delete_offsets,
        TopicsBody,
        "Show which committed offsets would be deleted; with confirm and name, delete them",
        "Without topics, all offsets of the group are deleted.",
        needs_confirmation=True,
        is_final=True,
    ),
    HttpAction(
        "reset-offsets",
        _reset,
        ResetBody,
        "Show what a reset would change; with confirm, make the changes that were shown",
        "Without topics, all partitions of the group are reset. value is a number for to-offset and shift-by, a time "
        "or an ISO 8601 duration for to-time, and for from-group the group whose offsets are copied. The confirm token "
        "in the response can be used once, within 10 minutes.",
        needs_confirmation=True,
    ),
)
ACTIONS: Mapping[str, HttpAction] = {one.name: one for one in _ALL}
"""The actions on one group, which the path names."""
OF_MANY: Mapping[str, HttpAction] = {
    name: HttpAction(
        name,
        partial(_verb_of_many, name, VERBS[name]),
        ManyBody,
        VERBS[name].summary.replace("the group", "several groups"),
        "The answers say of each group whether it was done.",
    )
    for name in ("pause", "resume")
} | {
    "convert": HttpAction(
        "convert",
        _convert_many,
        ConvertManyBody,
        "Make several groups groups of another kind, one after the other",
        "The answers say of each group whether it was done.",
    )
}
"""The actions on the groups that the body names."""


def _rule(body: ResetBody) -> ResetRule:
    if body.rule is UNSET:
        raise Denied(HTTPStatus.BAD_REQUEST, "name a rule, such as to-earliest")
    rule, value = RuleKind(body.rule), body.value
    if rule is RuleKind.TO_TIME:
        written = value.strip() if isinstance(value, str) else ""
        return ResetRule(rule, before_now_ms(written) if written[:1] in "Pp" else time_ms(written))
    if rule is RuleKind.FROM_GROUP:
        if not (isinstance(value, str) and value):
            raise Denied(HTTPStatus.BAD_REQUEST, "from-group needs the name of a group as its value")
        return ResetRule(rule, group=value)
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
