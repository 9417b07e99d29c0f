"""The argument of every handler: a request about groups, with the client that sent it."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_coord.frontends.kafka.access import Access
from kafka_coord.frontends.kafka.principals import described
from kafka_coord.wire.frames import RequestHeader


class Caller(typing.Protocol):
    """The client that sent a request."""

    @property
    def number(self) -> int:
        """The number of the client's connection. A later connection to this instance has a higher number."""

    @property
    def host(self) -> str:
        """The client's IP address."""

    @property
    def address(self) -> str:
        """The client's ``host:port``."""

    @property
    def principal(self) -> str:
        """The client's principal, as in Kafka's ACLs. See :mod:`kafka_coord.frontends.kafka.principals`."""

    @property
    def software(self) -> str:
        """The client's software name and version, as sent in ApiVersions, or "" if they are unknown."""

    @property
    def has_closed(self) -> bool:
        """Whether the client itself has closed the connection, or died."""

    @property
    def access(self) -> Access:
        """The client's permissions."""

    def holding(self, release: Callable[[], None] | None) -> None:
        """Reports that the client's request is held. ``release`` is called as soon as the client sends its next
        request, perhaps immediately. If ``release`` is ``None``, reports that the request is no longer held."""

    async def ask_broker(self, name: str, version: int, value: Any) -> Any:
        """Sends the broker a request as the client and returns the response. Raises :class:`OSError`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, with its header and the client that sent it."""

    header: RequestHeader
    request: Any
    client: Caller

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def sender(self) -> str:
        """Who sent the request: principal, client id and address."""
        return described(self.client.principal, self.header.client_id, self.client.address)
