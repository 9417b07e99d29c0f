"""Decides whether a client may register now, and builds its registration if so."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

from kafka_coord.channel.messages import Code, MessageType, Register
from kafka_coord.errors import InvalidName, MalformedValue
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions, RegistrationWanted
from kafka_coord.frontends.members.registering import Refusal, made_id, registration_value, too_large
from kafka_coord.frontends.socket.access import SocketAccess, UsersFile
from kafka_coord.frontends.socket.admission import Admission
from kafka_coord.frontends.socket.connection import Connection
from kafka_coord.frontends.socket.options import GatewayOptions
from kafka_coord.model import Subscription
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import legal
from kafka_coord.zk.store import Clock

_LONGEST_WAIT = 0.3
"""The longest wait, as a fraction of the session timeout. A consumer that had to wait longer might take the instance
for dead."""

_LONGEST_REST_S = 5.0
"""The longest time that the gateway stops reading from a client that has retried too early, in seconds."""


class RegistrationCheck:
    """Checks clients that want to register. ``instance`` is the broker id. Without ``access``, anyone may register in
    any group. ``nonce`` returns a unique value for each registration."""

    def __init__(
        self,
        clock: Clock,
        instance: int,
        options: GatewayOptions,
        access: SocketAccess | UsersFile | None,
        nonce: Callable[[], str] | None = None,
    ) -> None:
        self._clock = clock
        self._instance = instance
        self._options = options
        self._access = access
        self._nonce = nonce or (lambda: secrets.token_hex(8))
        self._admission = Admission(options.registrations_per_s, clock.monotonic())

    def registration(
        self, connection: Connection, request: int, frame: fields.Json, has_room: Callable[[str, str, int], bool]
    ) -> RegistrationWanted | Refusal:
        """Returns the registration to write, or the reason for refusing it. Raises :class:`MalformedValue`."""
        early = self._too_early(connection, frame)
        if early is not None:
            return early
        try:
            _check_subscription(frame)
        except MalformedValue as error:
            return Refusal(Code.BAD_SUBSCRIPTION, str(error), (("field", error.field or "subscription"),))
        register = Register.from_json(frame)
        refusal = self._why_not(register, connection.peer.certificate, has_room) or self._not_yet(register, connection)
        if refusal is not None:
            return refusal
        now_ms, address = int(self._clock.time() * 1000), connection.peer.address
        value = registration_value(register, self._instance, address, now_ms, self._nonce())
        consumer = register.member.consumer or made_id(register.group, address, now_ms)
        options = RegistrationOptions(
            (register.member.session_timeout_ms or 0) / 1000, register.auto_commit, register.resume_key
        )
        wanted = RegistrationWanted(connection.number, request, register.group, consumer, options, value)
        return too_large(value) or wanted

    def why_no_member(self, group: str, secret: str | None, certificate: str | None) -> Refusal | None:
        """Returns why a client with the given credentials is not allowed to join the group, or ``None`` if it is."""
        return self._access.why_not(group, secret, certificate) if self._access is not None else None

    def _why_not(
        self, register: Register, certificate: str | None, has_room: Callable[[str, str, int], bool]
    ) -> Refusal | None:
        options, consumer, field = self._options, register.member.consumer, "group"
        try:
            legal("group", register.group)
            if consumer:
                field = "consumer_id"
                legal("consumer", consumer)
        except InvalidName as error:
            return Refusal(Code.BAD_NAME, str(error), (("field", field),))
        refusal = self.why_no_member(register.group, register.secret, certificate)
        if refusal is not None:
            return refusal
        least, most = options.least_session_timeout_ms, options.most_session_timeout_ms
        if not least <= (register.member.session_timeout_ms or 0) <= most:
            return Refusal(
                Code.TIMEOUT_OUT_OF_RANGE,
                f"session_timeout_ms must be {least} to {most}, not {register.member.session_timeout_ms}",
                (("least_ms", least), ("most_ms", most)),
            )
        if not has_room(register.group, consumer, options.most_consumers):
            return Refusal(Code.TOO_MANY_CONSUMERS, f"this instance already serves {options.most_consumers} consumers")
        return None

    def _too_early(self, connection: Connection, frame: fields.Json) -> Refusal | None:
        """Refuses a client that retries before its reserved time, or that cannot get a place yet. Does not decode its
        registration, and stops reading from its connection for a while, so a flood of registrations costs next to
        nothing. Returns ``None`` for any other client."""
        timeout_ms = frame.get("session_timeout_ms")
        longest_s = timeout_ms / 1000 * _LONGEST_WAIT if isinstance(timeout_ms, int) else 0.0
        wait_s = self._admission.too_early_s(connection, longest_s, self._clock.monotonic())
        if wait_s <= 0:
            return None
        connection.peer.rest(min(wait_s, _LONGEST_REST_S))
        return _slow_down(wait_s)

    def _not_yet(self, register: Register, connection: Connection) -> Refusal | None:
        longest_s = (register.member.session_timeout_ms or 0) / 1000 * _LONGEST_WAIT
        wait_s = self._admission.wait_s(connection, longest_s, self._clock.monotonic())
        return _slow_down(wait_s) if wait_s > 0 else None


def _slow_down(wait_s: float) -> Refusal:
    message = "too many consumers are registering; retry on this connection after retry_ms"
    return Refusal(Code.SLOW_DOWN, message, (("retry_ms", math.ceil(wait_s * 1000)),))


def _check_subscription(frame: fields.Json) -> None:
    wanted = Subscription.from_json(frame, MessageType.REGISTER)
    if not wanted.is_wildcard and not wanted.topics:
        raise MalformedValue(MessageType.REGISTER, "field 'subscription' must name a topic", "subscription")
