"""A client of the socket channel, generated only from ``docs/socket-protocol.schema.json``.

It imports nothing from this project. The schema determines the framing, the ids, which end may send which request, the
fields of each answer, and the connection's state after an error. The caller decides what a consumer does with an
answer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "socket-protocol.schema.json").read_text())

Fields = dict[str, Any]


class OutOfSchema(AssertionError):
    """The client or the instance sent something that the schema does not allow."""


class GeneratedClient:
    """One connection. For each request of the coordinator, ``answers`` returns the fields of the client's answer."""

    def __init__(self, address: str, answers: Callable[[str, Fields], Fields], timeout_s: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._answers = answers
        self._frame_rule = SCHEMA["x-frame"]
        self._messages = {name: rule for name, rule in SCHEMA["$defs"].items() if "x-sender" in rule}
        self._next_id = self._frame_rule["first_id"]
        self._their_next_id = self._frame_rule["first_id"]
        self._unanswered: dict[int, str] = {}
        self.asked: list[tuple[str, Fields]] = []
        """The coordinator's requests, in order."""
        self.seen: set[str] = set()
        """The names of the schemas against which the other end's frames were checked."""

    def ask(self, message: str, **fields: Any) -> Fields:
        """Sends a request, and returns the answer or the error. Answers the coordinator's requests in the meantime."""
        rule = self._messages[message]
        assert rule["x-sender"] == "consumer"
        assert len(self._unanswered) < self._frame_rule["max_unanswered"]
        number, self._next_id = self._next_id, self._next_id + 1
        self._unanswered[number] = message
        self._send(message, {"v": 1, "id": number, "type": message, **fields})
        while True:
            found = self._step()
            if found is not None and found["id"] in (number, 0):
                return found

    def step_until(self, happened: Callable[[], bool]) -> None:
        """Answers the coordinator's requests until ``happened`` returns true."""
        while not happened():
            self._step()

    def closed_after(self, error: Fields) -> bool:
        """Whether the connection is in the state that the schema prescribes after this error."""
        closes = SCHEMA["$defs"]["error"]["x-connection"][error["code"]] == "closes"
        if not closes:
            return self.ask("cluster-metadata")["type"] == "answer"
        return self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()

    def _step(self) -> Fields | None:
        """Handles one frame: returns an answer or an error, and answers a request."""
        frame = self._receive()
        self._check("", frame)
        kind, number = frame["type"], frame["id"]
        if kind == "error":
            self._check("error", frame)
            self._unanswered.pop(number, None)
            return frame
        if kind == "answer":
            self._check(self._messages[self._unanswered.pop(number)]["x-answer"], frame)
            return frame
        rule = self._messages.get(kind)
        if rule is None or rule["x-sender"] != "coordinator" or number != self._their_next_id:
            raise OutOfSchema(f"not to be asked, or not now: {frame}")
        self._their_next_id += 1
        self._check(kind, frame)
        self.asked.append((kind, frame))
        self._send(rule["x-answer"], {"v": 1, "id": number, "type": "answer", **self._answers(kind, frame)})
        return None

    def _check(self, name: str, frame: Fields) -> None:
        rule = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]} if name else SCHEMA
        try:
            jsonschema.Draft202012Validator(rule).validate(frame)
        except jsonschema.ValidationError as error:
            raise OutOfSchema(f"{name}: {frame}: {error.message}") from None
        self.seen.add(name)

    def _send(self, name: str, frame: Fields) -> None:
        self._check(name, frame)
        body = json.dumps(frame).encode(self._frame_rule["encoding"])
        self._socket.sendall(len(body).to_bytes(self._frame_rule["length_bytes"], self._order) + body)

    def _receive(self) -> Fields:
        length = int.from_bytes(self._exactly(self._frame_rule["length_bytes"]), self._order)
        assert length <= self._frame_rule["max_bytes"]
        found: Fields = json.loads(self._exactly(length).decode(self._frame_rule["encoding"]))
        return found

    @property
    def _order(self) -> Any:
        return self._frame_rule["byte_order"].removesuffix("-endian")

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError("the connection was closed")
            data += more
        return data
