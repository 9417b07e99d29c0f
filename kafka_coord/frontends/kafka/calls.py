"""Requests about groups as the handlers get them, and the clients that sent them."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_coord.frontends.kafka.access import Access
from kafka_coord.wire.frames import RequestHeader


class Caller(typing.Protocol):
    """The client that sends requests. Its questions to the broker raise :class:`OSError`."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def address(self) -> str:
        """``host:port``"""

    @property
    def software(self) -> str:
        """The name and version of its software, from ApiVersions; empty if unknown."""

    @property
    def access(self) -> Access:
        """The client's rights."""

    def holding(self, release: Callable[[], None] | None) -> None:
        """Its request is held from now on. ``release`` is called as soon as the client sends anything else, perhaps at
        once. ``None``: the request is held no longer."""

    async def ask_broker(self, name: str, version: int, value: Any) -> Any:
        """Asks the broker as this client."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its header, its message, and the client that sent it."""

    header: RequestHeader
    request: Any
    client: Caller

    @property
    def version(self) -> int:
        return self.header.version
