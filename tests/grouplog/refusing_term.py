"""A term of the groups log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kafka_coord.grouplog.term import NOT_ENOUGH_REPLICAS, AppendRefused
from kafka_coord.wire.batches import LogRecord


class RefusingTerm:
    """A term whose log refuses the first appends."""

    def __init__(self, log: list[LogRecord], partition: int) -> None:
        self.partition = partition
        self._log, self.refuses = log, 0

    def append_in_order(
        self, parts: Sequence[tuple[Sequence[LogRecord], Callable[[], None]]]
    ) -> list[asyncio.Future[None]]:
        done, refused = [], False
        for records, apply in parts:
            done.append(asyncio.get_running_loop().create_future())
            if refused or self.refuses:
                self.refuses -= not refused
                refused = True
                done[-1].set_exception(AppendRefused("test", NOT_ENOUGH_REPLICAS))
                continue
            self._log += records
            apply()
            done[-1].set_result(None)
        return done
