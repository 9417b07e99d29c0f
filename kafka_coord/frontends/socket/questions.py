"""Holds metadata requests until ZooKeeper has responded, or until another coordinator has been elected."""

from __future__ import annotations

from typing import NamedTuple

from kafka_coord.channel.messages import MetadataQuestion
from kafka_coord.frontends.socket.connection import Connection
from kafka_coord.frontends.socket.metadata import MetadataDirectory

MAX_WAITING = 10_000
_LONGEST_WAIT_S = 5.0
"""How long a request may wait, in seconds. Shorter than the time limit for a client to register."""


class _Question(NamedTuple):
    """A request that must be answered by ``until``, in monotonic seconds."""

    connection: Connection
    request: int
    question: MetadataQuestion
    until: float


class Questions:
    """The waiting requests. Not thread-safe."""

    def __init__(self, directory: MetadataDirectory, look_every_s: float) -> None:
        self._directory = directory
        self._look_every_s = look_every_s
        self._asking: list[_Question] = []
        self._waiting: list[_Question] = []
        self._waiting_due = float("inf")

    def ask(self, connection: Connection, request: int, question: MetadataQuestion, now: float) -> bool:
        """Queues a request. Returns false if too many requests are already queued."""
        if len(self._asking) + len(self._waiting) >= MAX_WAITING:
            return False
        until = now + min(question.wait_ms / 1000, _LONGEST_WAIT_S)
        self._asking.append(_Question(connection, request, question, until))
        return True

    def look_at_once(self) -> None:
        """Makes the next step check the waiting requests, because a term has begun on this instance."""
        self._directory.forget()
        self._waiting_due = 0.0 if self._waiting else float("inf")

    def step(self, now: float) -> float:
        """Answers new requests and, at intervals, those that are waiting; whatever cannot be answered yet waits.
        Returns when to call this method again, in monotonic seconds. Raises :class:`StoreUnavailable`."""
        if now < self._waiting_due and not self._asking:
            return self._waiting_due
        metadata = self._directory.read()
        response = metadata.to_json()
        asking, self._asking = self._asking, []
        if now >= self._waiting_due:
            asking += self._waiting
            self._waiting, self._waiting_due = [], float("inf")
        for asked in asking:
            if asked.connection.ended:
                continue
            if now < asked.until and not asked.question.wants(metadata.coordinator):
                self._waiting.append(asked)
            else:
                asked.connection.answer(asked.request, response)
        if self._waiting:
            self._waiting_due = min(self._waiting_due, now + self._look_every_s)
        return self._waiting_due
