"""One end of a socket-channel connection. Matches responses to requests and checks that each frame is allowed.

Each end numbers its requests from 1 without gaps, and answers each request from the other end exactly once
(docs/socket-protocol.md). Any violation ends the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka_coord.channel.frames import BadFrame, Fault, Frame
from kafka_coord.model.json_fields import shown

ANSWER = "answer"
ERROR = "error"
MAX_UNANSWERED = 64
"""The maximum number of unanswered requests in each direction."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request from the other end."""

    id: int
    type: str
    frame: Frame


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A response from the other end. ``type`` is the type of this end's request."""

    id: int
    type: str
    frame: Frame


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """An error from the other end. ``type`` is the type of the refused request, or "" if the error is about the
    connection."""

    id: int
    type: str
    code: str
    message: str
    frame: Frame


Event = Asked | AnsweredRequest | RefusedRequest


class Rpc:
    """Tracks the unanswered requests of both ends."""

    def __init__(self) -> None:
        self._last_id = 0
        self._waiting: dict[int, str] = {}
        self._their_last_id = 0
        self._owed: set[int] = set()

    @property
    def waiting(self) -> int:
        """The number of this end's unanswered requests."""
        return len(self._waiting)

    def ask(self, request: str, fields: Mapping[str, Any] | None = None) -> tuple[int, Frame]:
        """Creates a request. Returns its id and its frame."""
        self._last_id += 1
        self._waiting[self._last_id] = request
        return self._last_id, {"id": self._last_id, "type": request, **(fields or {})}

    def answer(self, request_id: int, fields: Mapping[str, Any] | None = None) -> Frame:
        """Returns the frame that answers the other end's request and marks the request as answered."""
        self._owed.discard(request_id)
        return {"id": request_id, "type": ANSWER, **(fields or {})}

    def refuse(self, request_id: int, code: str, message: str, fields: Mapping[str, Any] | None = None) -> Frame:
        """Returns the error frame that answers a request. The id 0 means that the error is about the connection."""
        self._owed.discard(request_id)
        return {"id": request_id, "type": ERROR, "code": code, "message": message, **(fields or {})}

    def take(self, frame: Frame) -> Event:
        """Returns the event that a received frame represents. Raises :class:`BadFrame` if the frame is not allowed at
        this point."""
        number, kind = frame["id"], frame["type"]
        if kind not in (ANSWER, ERROR):
            return self._asked(number, kind, frame)
        if kind == ERROR and number == 0:
            return RefusedRequest(0, "", *_error(frame), frame)
        request = self._waiting.pop(number, None)
        if request is None:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"got an unexpected {kind} to request {number}")
        if kind == ERROR:
            return RefusedRequest(number, request, *_error(frame), frame)
        return AnsweredRequest(number, request, frame)

    def _asked(self, number: int, kind: str, frame: Frame) -> Asked:
        if number != self._their_last_id + 1:
            reason = f"expected request {self._their_last_id + 1}, got request {number}"
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, reason, number)
        if len(self._owed) >= MAX_UNANSWERED:
            raise BadFrame(
                Fault.TOO_MANY_REQUESTS, f"{len(self._owed)} requests are unanswered; wait for responses", number
            )
        self._their_last_id = number
        self._owed.add(number)
        return Asked(number, kind, frame)


def _error(frame: Frame) -> tuple[str, str]:
    code, message = frame.get("code"), frame.get("message", "")
    if not isinstance(code, str) or not isinstance(message, str):
        raise BadFrame(
            Fault.MALFORMED_FRAME,
            f"an error's fields 'code' and 'message' must be strings; 'code' is {shown(code)}",
            frame["id"],
        )
    return code, message
