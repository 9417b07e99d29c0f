"""Clients of a coordinator that is driven without a broker: everything is allowed to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.frontends.kafka.access import Access, BrokerAccess


class Everything(Access):
    """As where the broker has no authorizer."""

    async def _everything(self) -> bool:
        return True


class OpenCaller:
    """``host`` is where it says it comes from."""

    def __init__(self, host: str) -> None:
        self.host, self.address, self.software = host, f"{host}:0", "librdkafka 2.8.0"
        self.release: Callable[[], None] | None = None
        self.access = Everything(self.ask_broker, BrokerAccess())

    def holding(self, release: Callable[[], None] | None) -> None:
        self.release = release

    async def ask_broker(self, name: str, version: int, value: Any) -> Any:
        raise ConnectionError(f"no broker is there to be asked {name} version {version}: {value!r}")
