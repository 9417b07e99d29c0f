"""Shows the demo's progress line by line. ``live`` draws it on a terminal."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka_coord.dev.demo.countdown import Countdown, Part
from kafka_coord.dev.demo.options import Clients, DemoOptions
from kafka_coord.dev.demo.timeline import Event
from kafka_coord.dev.demo.watching import GroupView

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_EVERY_S = 5.0


class Step:
    """A running step, whose duration is recorded for one :class:`Part` of the run. Call ``progress`` to say what
    the step is doing."""

    def __init__(self, view: PlainView, what: str, part: Part, *, ticks: bool) -> None:
        self._view = view
        self._ticks = ticks
        self._what = what
        self._part = part
        self._doing = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="demo-step", daemon=True)
        self.outcome = ""

    def __enter__(self) -> Step:
        self._began = time.monotonic()
        self._view.countdown.begin(self._part)
        self._view.begin_step(self._what, ticks=self._ticks)
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._done.set()
        self._thread.join()
        seconds = time.monotonic() - self._began
        self._view.countdown.end()
        self._view.end_step(self._what, self.outcome, seconds, done=kind is None)

    def progress(self, doing: str) -> None:
        self._doing = doing

    def _tick(self) -> None:
        while self._ticks and not self._done.wait(self._view.tick_s):
            self._view.tick_step(self._what, self._doing, time.monotonic() - self._began)


class PlainView:
    """Prints the demo's progress line by line, for pipes, files and CI. Thread-safe. ``steps`` lists the finished steps
    with their durations in seconds. ``countdown`` estimates the remaining time.
    """

    tick_s = 3.0
    """Seconds between progress reports of a long step."""

    def __init__(self, console: Console, options: DemoOptions) -> None:
        self.console = console
        self.options = options
        self.countdown = Countdown(options)
        self.steps: list[tuple[str, float]] = []
        self.aside = ""
        """The second group's current work, in a few words."""
        self._began: float | None = None
        self._said = 0.0
        self._committed: tuple[float, int] | None = None

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def step(self, what: str, part: Part, *, ticks: bool = True) -> Step:
        """Reports the start and duration of a part of the run. With ``ticks``, also reports its progress every few
        seconds."""
        return Step(self, what, part, ticks=ticks)

    def left(self) -> str:
        """Returns the estimate of the remaining time as text."""
        return f"about {self.countdown.left_s():.0f} s left"

    def begin_step(self, what: str, *, ticks: bool) -> None:
        del ticks
        self.say(f"{what} … {self.left()}")

    def tick_step(self, what: str, doing: str, seconds: float) -> None:
        self.say(f"    {doing or what}: {seconds:.0f} s so far, {self.left()}")

    def end_step(self, what: str, outcome: str, seconds: float, *, done: bool) -> None:
        if done:
            self.steps.append((what, seconds))
            self.say(f"    {outcome or 'done'}, {seconds:.1f} s")

    def event(self, event: Event) -> None:
        self.say(f"{self.clock()}  {event.text}")

    def update(self, view: GroupView) -> None:
        if self._began is None or view.sample is None:
            return
        self.countdown.reached(view.committed / self.options.total)
        if time.monotonic() - self._said < _PLAIN_EVERY_S:
            return
        self._said = time.monotonic()
        aside = f"; {self.aside}" if self.aside else ""
        self.say(f"{self.clock()}  {self.summary(view)}{aside}; {self.left()}")

    def summary(self, view: GroupView) -> str:
        """Returns one line with progress, pace, lag, owners and outstanding commands."""
        if view.sample is None:
            return ""
        owned = ", ".join(
            f"{owner} owns {count}" for owner, count in sorted(Counter(view.sample.owners.values()).items())
        )
        waiting = ", ".join(f"{consumer} {count}" for consumer, count in sorted(view.sample.pending.items())) or "none"
        commands = "" if self.options.clients is Clients.KAFKA else f"; commands waiting: {waiting}"
        return (
            f"{view.committed:,} of {sum(view.sample.ends.values()):,} committed ({self.pace(view):,.0f}/s), "
            f"lag {view.sample.total_lag:,}; {owned or 'nobody owns any'}{commands}"
        )

    def pace(self, view: GroupView) -> float:
        """Returns the records committed per second since the previous call."""
        now, before = time.monotonic(), self._committed
        self._committed = (now, view.committed)
        return (view.committed - before[1]) / (now - before[0]) if before and now > before[0] else 0.0

    def clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s" if self._began is not None else " " * 8

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Starts the clock for the scenario, which runs inside the block."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None
