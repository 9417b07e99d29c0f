"""Clients of a coordinator that runs without a broker. They have all rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.frontends.kafka.access import Access, BrokerAccess


class Everything(Access):
    """Grants all rights, as a broker without an authorizer does."""

    async def _everything(self) -> bool:
        return True


class OpenCaller:
    """A client with all rights. ``host`` is its address."""

    def __init__(self, host: str) -> None:
        self.host, self.address, self.software = host, f"{host}:0", "librdkafka 2.8.0"
        self.principal = "User:ANONYMOUS"
        self.number = 1
        self.has_closed = False
        self.release: Callable[[], None] | None = None
        self.access = Everything(self.ask_broker, BrokerAccess())

    def holding(self, release: Callable[[], None] | None) -> None:
        self.release = release

    async def ask_broker(self, name: str, version: int, value: Any) -> Any:
        raise ConnectionError(f"no broker is there to be asked {name} version {version}: {value!r}")
