"""One virtual clock for many processes, each with its own event loop. A process may be frozen or killed between any two
of its steps."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any


class World:
    """The schedule: all events in one order. All randomness comes from ``rng``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0
        self.steps = 0

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (max(when, self.now), self._made, event))

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        self.at(self.now + delay_s, event)

    def run(self, until: float, broken: Callable[[], bool]) -> None:
        """Runs until that time, or until an invariant is violated."""
        while self._events and self._events[0][0] <= until and not broken():
            self.now, _, event = heapq.heappop(self._events)
            self.steps += 1
            event()
        self.now = max(self.now, until)


class _Handle:
    """The handle that asyncio expects from ``call_soon`` and ``call_at``."""

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Any, when: float) -> None:
        self._callback, self._args, self._when = callback, args, when
        self._context = context or contextvars.copy_context()
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when

    def run(self) -> None:
        if not self._cancelled:
            self._context.run(self._callback, *self._args)


class Process:
    """One process, with the part of an event loop that asyncio needs. A frozen process does nothing while its clock
    continues. A killed process never does anything again."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.killed = self.frozen = False
        self._missed: list[_Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        """The tasks, so garbage collection ends none of them early."""

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        missed, self._missed = self._missed, []
        for handle in missed:
            self.world.after(0.0, lambda handle=handle: self._run(handle))  # type: ignore[misc]

    def start(self, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.call_soon(lambda: self.create_task(body()))

    def _run(self, handle: _Handle) -> None:
        if self.killed:
            return
        if self.frozen:
            self._missed.append(handle)
            return
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            handle.run()
        finally:
            asyncio._set_running_loop(None)

    # --- what asyncio asks of a loop ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self.world.now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.world.now, callback, *args, context=context)

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.world.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = _Handle(callback, args, context, when)
        self.world.at(when, lambda: self._run(handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **_: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)  # type: ignore[arg-type]
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See :meth:`failures`."""

    def failures(self) -> list[str]:
        """Returns the exceptions that its tasks have raised, and nobody has caught."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [f"{self.name}: {task.exception()!r}" for task in done if task._log_traceback]
