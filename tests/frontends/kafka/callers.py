"""Clients of a coordinator that runs without a broker. They have all rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.frontends.kafka.access import Access, BrokerAccess
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.group import GroupError, Listed
from kafka_coord.frontends.kafka.managed.group import ManagedGroup, ManagedGroups
from kafka_coord.frontends.kafka.managed.terms import ServedGroups
from kafka_coord.frontends.kafka.native import Kinds, NativeGroups


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
        self.access = Everything(self.ask_broker, BrokerAccess(GroupLimits()))

    def holding(self, release: Callable[[], None] | None) -> None:
        self.release = release

    async def ask_broker(self, name: str, version: int, value: Any) -> Any:
        raise ConnectionError(f"no broker is there to be asked {name} version {version}: {value!r}")


class NoManagedGroups(ManagedGroups):
    """Serves no managed group, and has nothing recorded."""

    def __init__(self) -> None:
        self.groups = ServedGroups()
        self.administration = _Unrecorded()  # type: ignore[assignment]
        self.group = _no_group  # type: ignore[assignment]

    def knows(self, group: str) -> bool:
        return bool(group)


class NoNativeGroups(NativeGroups):
    """The groups of brokers that coordinate none, and of instances that record kinds in memory."""

    def __init__(self) -> None:
        self.kinds = Kinds()

    def is_meant(self, call: Call, group: str) -> bool:
        del call, group
        return False

    async def exists(self, group: str) -> bool:
        return not group and False

    async def listed_by_broker(self, call: Call, known: set[str]) -> tuple[int, list[Listed]]:
        del call, known
        return 0, []

    def close(self) -> None: ...


def _no_group(name: str, check: Callable[[], None]) -> ManagedGroup:
    del check
    raise GroupError(Error.UNSUPPORTED_VERSION, f"group {name} cannot be managed here")


class _Unrecorded:
    async def record(self, *_what: str) -> None:
        """Nobody reads it."""

    async def clear(self, *_what: object) -> Error:
        return Error.NONE
