"""The parts of gateway tests: instances that listen for consumers, and consumers whose frames the test sends."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka_coord.channel.frames import AnsweredRequest, Asked, BadFrame, Decoder, Event, RefusedRequest, Rpc, encode
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.frontends.socket.access import GatewayOptions
from kafka_coord.frontends.socket.gateway import LeadershipView
from kafka_coord.frontends.socket.server import GatewayServer
from kafka_coord.kafka.offsets import BrokerLog
from tests.coordinator.harness import FAST, open_store
from tests.waiting import eventually


class SocketInstance:
    """A running service that listens for consumers."""

    def __init__(
        self,
        hosts: str,
        broker_id: int,
        options: GatewayOptions | None = None,
        *,
        lists: bool = False,
        **security: Any,
    ) -> None:
        """If ``lists`` is set, the instance lists awaited ends with the broker's answers."""
        self.store = open_store(hosts)
        self.log = BrokerLog(self.store, {}, read_committed=True)
        leadership_view = LeadershipView()
        self.server = GatewayServer("127.0.0.1:0", self.store, broker_id, leadership_view, options=options, **security)
        self.service = CoordinatorService(
            self.store, broker_id, {"channel": self.server.address}, FAST, lister=self.log.ends if lists else None
        )
        leadership_view.service = self.service

    def start(self) -> SocketInstance:
        self.service.start()
        eventually(lambda: self.service.registered)
        return self

    def start_elected(self) -> SocketInstance:
        self.start()
        eventually(lambda: self.server.gateway.term is not None)
        return self

    def stop(self) -> None:
        self.service.stop()
        self.server.close()
        self.log.close()
        self.store.close()

    def vanish(self) -> None:
        """Stops the instance as if it were killed: it sends nothing, and its session must expire."""
        self.server.close()
        self.service.stop()
        self.log.close()
        self.store.close()


class HandConsumer:
    """A consumer of the socket channel that sends exactly what the test says."""

    def __init__(self, address: str, timeout_s: float = 10.0, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.rpc = Rpc()
        self._decoder = Decoder()
        self._frames: list[dict[str, Any]] = []
        self.events: list[Event] = []

    def say(self, request: str, **fields: Any) -> int:
        """Sends a request, and returns its id."""
        number, frame = self.rpc.ask(request, fields)
        self.socket.sendall(encode(frame))
        return number

    def ask(self, request: str, **fields: Any) -> AnsweredRequest | RefusedRequest:
        """Sends a request and waits for its answer. Answers pings in the meantime."""
        number = self.say(request, **fields)
        while True:
            event = self.next()
            if isinstance(event, (AnsweredRequest, RefusedRequest)) and event.id in (number, 0):
                return event

    def next(self) -> Event:
        """The next frame of any kind."""
        while not self._frames:
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError("the connection was closed")
            self._frames += list(self._decoder.feed(data))
        frame = self._frames.pop(0)
        if frame["type"] == "error":  # a test may send requests past the count of request ids
            with suppress(BadFrame):
                self.rpc.take(frame)
            event: Event = RefusedRequest(frame["id"], "", frame["code"], frame["message"], frame)
        else:
            event = self.rpc.take(frame)
        self.events.append(event)
        return event

    def next_command(self) -> Asked:
        """Waits for the next stop-fetcher or start-fetcher, and returns it. Answers pings in the meantime."""
        while True:
            event = self.next()
            if isinstance(event, Asked):
                if event.type != "ping":
                    return event
                self.answer(event)
            elif isinstance(event, RefusedRequest):
                raise TypeError(f"was refused: {event}")

    def next_ping(self) -> Asked:
        while True:
            event = self.next()
            if isinstance(event, Asked) and event.type == "ping":
                return event

    def answer(self, asked: Asked, offsets: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.socket.sendall(encode(self.rpc.answer(asked.id, {"offsets": offsets or {}})))

    def register(
        self, group: str = "delays", consumer_id: str | None = "s1", **fields: Any
    ) -> AnsweredRequest | RefusedRequest:
        wanted: dict[str, Any] = {"subscription": {"flights": 1}, "session_timeout_ms": 9_000, "client": "by hand"}
        return self.ask("register", group=group, consumer_id=consumer_id, **(wanted | fields))

    def ends_with(self, *, silent: bool = False) -> tuple[str, str]:
        """The code and message of the last error before the connection is closed. If ``silent``, answers no request."""
        last = ("", "")
        try:
            while True:
                event = self.next()
                if isinstance(event, RefusedRequest):
                    last = event.code, event.message
                elif isinstance(event, Asked) and event.type == "ping" and not silent:
                    self.answer(event)
        except (EOFError, ConnectionResetError):
            return last

    def close(self) -> None:
        self.socket.close()
