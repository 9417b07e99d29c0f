"""The connection of one client to one instance, as far as a held request needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.frontends.kafka.callers import OpenCaller


class Line(OpenCaller):
    """``software`` is the name of the client's software."""

    def __init__(self, software: str) -> None:
        super().__init__("h")
        self.software = software
        self.held: asyncio.Task[Any] | None = None

    def holding(self, release: Callable[[], None] | None) -> None:
        super().holding(release)
        self.held = None if release is None else asyncio.current_task()

    def sent_more(self) -> None:
        if self.release is not None:
            self.release()

    def lost(self) -> None:
        if self.held is not None:
            self.held.cancel()
