"""A client of the listener that sends exactly the bytes that a test specifies."""

from __future__ import annotations

import itertools
import socket
from types import TracebackType
from typing import Any, Protocol

from kafka_coord.classic_groups.errors import Error
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame
from kafka_coord.wire.messages import message
from tests.waiting import eventually

_numbers = itertools.count(1)
SESSION_MS = 60_000


def request(name: str, version: int, value: Any, number: int = 1) -> bytes:
    form = message(f"{name}Request")
    header = RequestHeader(form.api_key or 0, version, number, "peer", version in form.flexible)
    return request_frame(header, form, value)


class Listening(Protocol):
    """A listener in this process or in a ``serve`` process."""

    @property
    def address(self) -> str:
        """``host:port``"""


class Peer:
    """One connection to ``listener``."""

    def __init__(self, listener: Listening, timeout_s: float = 20.0) -> None:
        host, _, port = listener.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.socket.close()

    def send(self, name: str, version: int, **fields: Any) -> int:
        """Sends a request, and returns its number."""
        number = next(_numbers)
        self.socket.sendall(request(name, version, message(f"{name}Request")(**fields), number))
        return number

    def frame(self) -> bytes:
        length = int.from_bytes(self._exactly(4), "big")
        return self._exactly(length)

    def answer(self, name: str, version: int) -> tuple[int, Any]:
        """Waits for the next answer. Returns the number of its request, and the message."""
        frame, form = self.frame(), message(f"{name}Response")
        return int.from_bytes(frame[:4], "big"), form.decode(frame, version, answer_start(form, version))

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        number = self.send(name, version, **fields)
        answered, found = self.answer(name, version)
        assert answered == number
        return found

    def hears_nothing(self) -> None:
        """Fails if an answer arrives within 0.2 s."""
        self.socket.settimeout(0.2)
        try:
            found = self.socket.recv(1)
        except TimeoutError:
            self.socket.settimeout(20)
            return
        raise AssertionError(f"the request was not held: {found!r}")

    def is_closed(self) -> bool:
        """Waits until the listener closes the connection. Discards the bytes that arrive before that."""
        try:
            while self.socket.recv(1 << 20):
                pass
        except ConnectionError:
            pass
        return True

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            data = self.socket.recv(min(count - len(found), 1 << 20))
            if not data:
                raise ConnectionError(f"closed after {len(found)} of {count} bytes")
            found += data
        return bytes(found)


class Member:
    """The only member of a group, with software whose heartbeats the instance holds. It has joined, and none of its
    requests is unanswered."""

    def __init__(self, peer: Peer, group: str, software: str = "librdkafka") -> None:
        self.peer, self.group = peer, group
        peer.ask("ApiVersions", 3, client_software_name=software, client_software_version="2")

        def may_join() -> Any:  # not before an instance runs beside each broker
            answer = peer.ask("JoinGroup", 3, **join(group, session_ms=SESSION_MS))
            return answer if answer.error_code != Error.COORDINATOR_NOT_AVAILABLE else None

        joined = eventually(may_join)
        assert joined.error_code == Error.NONE
        self.who = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}
        assert peer.ask("SyncGroup", 3, **self.who).error_code == Error.NONE

    def beat(self) -> int:
        """Sends a heartbeat, and returns its number once the instance holds it."""
        number = self.peer.send("Heartbeat", 3, **self.who)
        self.peer.hears_nothing()
        return number

    def told(self) -> tuple[int, int]:
        """Waits for an answer to a heartbeat. Returns the heartbeat's number and the error."""
        number, answer = self.peer.answer("Heartbeat", 3)
        return number, answer.error_code


def join(group: str, member_id: str = "", metadata: bytes = b"", session_ms: int = 10_000) -> dict[str, Any]:
    """The fields of a JoinGroup of version 3. The rebalance timeout equals the session timeout."""
    protocol = message("JoinGroupRequest").struct("JoinGroupRequestProtocol")(name="range", metadata=metadata)
    times = {"session_timeout_ms": session_ms, "rebalance_timeout_ms": session_ms}
    return {"group_id": group, "member_id": member_id, "protocol_type": "consumer", "protocols": (protocol,)} | times


def committing(*topics: str, offset: int) -> dict[str, Any]:
    """The topics in an OffsetCommit of this offset in partition 0 of each topic."""
    form = message("OffsetCommitRequest")
    part = form.struct("OffsetCommitRequestPartition")(partition_index=0, committed_offset=offset)
    of_topic = form.struct("OffsetCommitRequestTopic")
    return {"topics": tuple(of_topic(name=topic, partitions=(part,)) for topic in topics)}
