"""The connection of one client to one instance, as far as a held request needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.frontends.kafka.callers import OpenCaller


class Line(OpenCaller):
    """``software`` is the name of the client's software."""

    def __init__(self, software: str) -> None:
        super().__init__("h")
        self.software = software
        self.held: asyncio.Task[Any] | None = None
        self._handled: set[asyncio.Task[Any]] = set()

    async def handling(self, answering: Awaitable[Any]) -> Any:
        """Answers a request, until the connection is lost."""
        task = asyncio.current_task()
        assert task is not None
        self._handled.add(task)
        try:
            return await answering
        finally:
            self._handled.discard(task)

    def holding(self, release: Callable[[], None] | None) -> None:
        super().holding(release)
        self.held = None if release is None else asyncio.current_task()

    def sent_more(self) -> None:
        if self.release is not None:
            self.release()

    def lost(self) -> None:
        self.has_closed = True
        for task in self._handled | ({self.held} if self.held is not None else set()):
            task.cancel()
