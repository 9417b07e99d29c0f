"""Sends prepared requests over many connections, as fast as the answers arrive, or at a fixed rate."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka_coord.dev.bench.kafka_groups.client import RawClient, request_bytes, without_errors
from kafka_coord.errors import BrokerError
from kafka_coord.wire.frames import answer_start
from kafka_coord.wire.messages import message

_BUFFER = 1 << 20
_COMPARED = 64 << 10
"""Answers up to this size in bytes are compared in full, longer ones only by their length."""
_WITHIN_S = 30.0
_FD_SETSIZE = 1024


@dataclass(slots=True, eq=False)
class Lane:
    """A connection with at most one request in flight. Every answer must be ``size`` bytes long and, if ``answer`` is
    given, equal to it. ``answer`` is the first answer, which has already been checked.
    """

    client: RawClient
    request: bytes
    size: int
    answer: bytes | None = None
    due: float = 0.0
    got: int = 0

    @classmethod
    def of(cls, client: RawClient, name: str, version: int, value: Any) -> Lane:
        """Sends the request once and checks the answer. All later answers must equal it."""
        request = request_bytes(name, version, value)
        client.send(request)
        answer = client.frame()
        form = message(f"{name}Response")
        without_errors(form.decode(answer[4:], version, answer_start(form, version)), name)
        return cls(client, request, len(answer), answer if len(answer) <= _COMPARED else None)

    def send(self, due: float) -> None:
        self.due, self.got = due, 0
        self.client.socket.sendall(self.request)

    def receive(self, into: memoryview) -> bool:
        """Receives the available bytes. Returns whether the answer is complete."""
        found = self.client.socket.recv_into(into)
        if found == 0:
            raise BrokerError(f"{self.client.address} closed the connection")
        self.got += found
        if self.got < self.size:
            return False
        if self.got > self.size or (self.answer is not None and found == self.size and into[:found] != self.answer):
            raise BrokerError(f"{self.client.address}: an answer differs from the first one")
        return True


def saturate(lanes: Sequence[Lane], seconds: float) -> int:
    """Keeps one request in flight on every lane for ``seconds``. Returns the number of answers."""
    poll, by_number = select.epoll(), {lane.client.socket.fileno(): lane for lane in lanes}
    into, count = memoryview(bytearray(_BUFFER)), 0
    try:
        for number, lane in by_number.items():
            poll.register(number, select.EPOLLIN)
            lane.send(0.0)
        end, under_way = time.perf_counter() + seconds, len(lanes)
        while under_way:
            ready = poll.poll(_WITHIN_S)
            if not ready:
                raise BrokerError(f"{lanes[0].client.address}: no answer within {_WITHIN_S:g} s")
            goes_on = time.perf_counter() < end
            for number, _ in ready:
                lane = by_number[number]
                if lane.receive(into):
                    count += 1
                    if goes_on:
                        lane.send(0.0)
                    else:
                        under_way -= 1
    finally:
        poll.close()
    return count


def pace(lanes: Sequence[Lane], per_s: float, seconds: float) -> list[float]:
    """Sends ``per_s`` requests a second, each on the lane that has been idle longest. Returns how many ms each request
    took from the moment it was due, so that waiting for a lane counts."""
    poll, by_number = select.epoll(), {lane.client.socket.fileno(): lane for lane in lanes}
    idle, took = deque(lanes), list[float]()
    into = memoryview(bytearray(_BUFFER))
    began = time.perf_counter()
    total, sent = round(per_s * seconds), 0
    try:
        for number in by_number:
            poll.register(number, select.EPOLLIN)
        while len(took) < total:
            now = time.perf_counter()
            while sent < total and idle and began + sent / per_s <= now:
                idle.popleft().send(began + sent / per_s)
                sent += 1
            wait = began + sent / per_s - time.perf_counter() if sent < total and idle else _WITHIN_S
            ready = _ready(poll, max(0.0, wait))
            if not ready and wait >= _WITHIN_S:
                raise BrokerError(f"{lanes[0].client.address}: no answer within {_WITHIN_S:g} s")
            for number, _ in ready:
                lane = by_number[number]
                if lane.receive(into):
                    took.append((time.perf_counter() - lane.due) * 1000)
                    idle.append(lane)
    finally:
        poll.close()
    return took


def _ready(poll: select.epoll, wait_s: float) -> list[tuple[int, int]]:
    """Waits with select, because epoll cannot wait for less than a millisecond. For file descriptors above 1,023, which
    select does not support, falls back to epoll.
    """
    if poll.fileno() >= _FD_SETSIZE:
        return poll.poll(wait_s)
    select.select([poll], [], [], wait_s)
    return poll.poll(0)
