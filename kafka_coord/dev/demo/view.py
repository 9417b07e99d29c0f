"""What whoever runs the demo sees while it runs: a live picture on a terminal, a line per event elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text

from kafka_coord.dev.demo.options import DemoOptions
from kafka_coord.dev.demo.timeline import Event
from kafka_coord.dev.demo.watching import Look

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = ("bright_blue", "dark_orange", "green3", "medium_purple1", "gold3", "hot_pink", "cyan", "white")
_BAR_CELLS = 18
_EVENTS_SHOWN = 9
_PLAIN_EVERY_S = 5.0
_TICK_S = 5.0


class Step:
    """A step under way. ``progress`` replaces what is said to be going on; seen at least every few seconds."""

    def __init__(self, view: PlainView, what: str) -> None:
        self._view = view
        self._what = what
        self._doing = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="demo-step", daemon=True)
        self.outcome = ""

    def __enter__(self) -> Step:
        self._began = time.monotonic()
        self._view.begin_step(self._what)
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._done.set()
        self._thread.join()
        if kind is None:
            self._view.end_step(self._what, self.outcome, time.monotonic() - self._began)

    def progress(self, doing: str) -> None:
        self._doing = doing

    def _tick(self) -> None:
        while not self._done.wait(_TICK_S):
            self._view.tick_step(self._what, self._doing, time.monotonic() - self._began)


class PlainView:
    """Everything the demo says, in lines: for pipes, files and continuous integration. Thread-safe.

    ``steps`` are what was done and how many seconds each took.
    """

    def __init__(self, console: Console, options: DemoOptions) -> None:
        self.console = console
        self.options = options
        self.steps: list[tuple[str, float]] = []
        self._began: float | None = None
        self._said = 0.0
        self._committed: tuple[float, int] | None = None

    def say(self, line: str) -> None:
        """A line of its own."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def step(self, what: str) -> Step:
        """``with`` around something that takes a while: says that it begins, and how long it took."""
        return Step(self, what)

    def begin_step(self, what: str) -> None:
        self.say(f"{what} …")

    def tick_step(self, what: str, doing: str, seconds: float) -> None:
        self.say(f"    {doing or what}: {seconds:.0f} s so far")

    def end_step(self, what: str, outcome: str, seconds: float) -> None:
        self.steps.append((what, seconds))
        self.say(f"    {outcome or 'done'}, {seconds:.1f} s")

    def event(self, event: Event) -> None:
        """Something happened in the story."""
        self.say(f"{self.clock()}  {event.text}")

    def look(self, look: Look) -> None:
        """A newer look at the group."""
        if self._began is None or look.sample is None or time.monotonic() - self._said < _PLAIN_EVERY_S:
            return
        self._said = time.monotonic()
        self.say(f"{self.clock()}  {self.summary(look)}")

    def summary(self, look: Look) -> str:
        """One line: progress, pace, lag, waiting commands, owners."""
        if look.sample is None:
            return ""
        owned = Counted(look)
        waiting = ", ".join(f"{consumer} {count}" for consumer, count in sorted(look.sample.pending.items()))
        return (
            f"{look.committed:,} of {sum(look.sample.ends.values()):,} committed ({self.pace(look):,.0f}/s), "
            f"lag {look.sample.total_lag:,}; {owned}; commands waiting: {waiting or 'none'}"
        )

    def pace(self, look: Look) -> float:
        """Records committed per second since it was asked last."""
        now, before = time.monotonic(), self._committed
        self._committed = (now, look.committed)
        return (look.committed - before[1]) / (now - before[0]) if before and now > before[0] else 0.0

    def clock(self) -> str:
        """Seconds since the story began."""
        return f"{time.monotonic() - self._began:6.1f} s" if self._began is not None else " " * 8

    @contextmanager
    def playing(self) -> Iterator[None]:
        """``with`` around the story itself."""
        self._began = time.monotonic()
        yield


class Counted:
    """How many partitions each consumer owns, as a few words."""

    def __init__(self, look: Look) -> None:
        self.by_owner: dict[str, int] = {}
        for owner in look.sample.owners.values() if look.sample else ():
            self.by_owner[owner] = self.by_owner.get(owner, 0) + 1

    def __str__(self) -> str:
        return ", ".join(f"{owner} owns {count}" for owner, count in sorted(self.by_owner.items())) or "nobody owns any"


class LiveView(PlainView):
    """A picture that is drawn again and again while the story plays; events stay above it as lines."""

    def __init__(self, console: Console, options: DemoOptions) -> None:
        super().__init__(console, options)
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._events: list[Text] = []
        self._highest: dict[int, int] = {}
        self._paces: list[float] = []

    def begin_step(self, what: str) -> None:
        self.console.print(Text.assemble(("▸ ", "bold blue"), what), soft_wrap=True)

    def tick_step(self, what: str, doing: str, seconds: float) -> None:
        self.console.print(Text(f"    {doing or what}: {seconds:.0f} s so far", style="dim"), soft_wrap=True)

    def end_step(self, what: str, outcome: str, seconds: float) -> None:
        self.steps.append((what, seconds))
        self.console.print(Text.assemble(("  ✓ ", "bold green"), outcome or what, (f"  {seconds:.1f} s", "dim")))

    def event(self, event: Event) -> None:
        with self._lock:
            self._events.append(Text.assemble((self.clock(), "dim"), "  ", event.text))

    def look(self, look: Look) -> None:
        live = self._live
        if live is not None and look.sample is not None:
            live.update(self._picture(look), refresh=True)

    @contextmanager
    def playing(self) -> Iterator[None]:
        self._began = time.monotonic()
        with Live(console=self.console, auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None
        for line in self._events:
            self.console.print(line, soft_wrap=True)

    def _picture(self, look: Look) -> Table:
        picture = Table.grid(padding=(0, 0))
        picture.add_row(self._progress(look))
        picture.add_row(self._state(look))
        picture.add_row("")
        columns = Table.grid(padding=(0, 4))
        columns.add_row(self._partitions(look), self._side(look))
        picture.add_row(columns)
        return picture

    def _progress(self, look: Look) -> Text:
        total = sum(look.sample.ends.values()) if look.sample else 0
        share = look.committed / total if total else 0.0
        done = round(36 * share)
        self._paces = [*self._paces[-4:], self.pace(look)]
        pace = sum(self._paces) / len(self._paces)
        return Text.assemble(
            (self.clock() + "  ", "dim"),
            ("━" * done, "bold green"),
            ("━" * (36 - done), "grey37"),
            f"  {look.committed:,} of {total:,} records",
            (f"   {pace:,.0f}/s", "cyan"),
            f"   lag {look.sample.total_lag if look.sample else 0:,}",
        )

    @staticmethod
    def _state(look: Look) -> Text:
        info = look.coordinator
        who = f"beside broker {info.broker_id}, epoch {info.epoch}" if info else "none elected"
        state, generation = (look.group.state, look.group.generation) if look.group else ("-", None)
        return Text.assemble(
            ("          coordinator ", "dim"),
            (who, "bold" if info else "bold red"),
            ("   group ", "dim"),
            (str(state), "green" if state == "Stable" else "yellow"),
            (f"   generation {generation or '-'}", "dim"),
        )

    def _partitions(self, look: Look) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
        for head, right in (("partition", True), ("owner", False), ("committed", True), ("lag", True), ("", False)):
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        sample = look.sample
        for partition in sorted(sample.ends) if sample else ():
            if sample is None:
                break
            lag, owner = sample.lag(partition), sample.owners.get(partition)
            highest = self._highest[partition.partition] = max(self._highest.get(partition.partition, 1), lag)
            cells = -(-lag * _BAR_CELLS // highest)
            colour = _colour(owner)
            table.add_row(
                str(partition.partition),
                Text(owner or "nobody", style=colour),
                f"{sample.committed.get(partition, 0):,}",
                f"{lag:,}",
                Text.assemble(("█" * cells, colour), ("·" * (_BAR_CELLS - cells), "grey30")),
            )
        return table

    def _side(self, look: Look) -> Table:
        side = Table.grid()
        members = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
        for head in ("consumer", "owns", "commands waiting"):
            members.add_column(head, no_wrap=head != "commands waiting")
        for member in look.group.members if look.group else ():
            waiting = ", ".join(f"{one.id.type} {one.partitions}" for one in member.pending)
            gone = "" if member.registered else " (gone)"
            members.add_row(
                Text(member.consumer + gone, style=_colour(member.consumer)), str(len(member.owned)), waiting or "-"
            )
        side.add_row(members)
        side.add_row("")
        with self._lock:
            for line in self._events[-_EVENTS_SHOWN:]:
                side.add_row(line)
        return side


def _colour(consumer: str | None) -> str:
    if not consumer:
        return "grey50"
    number = consumer.rpartition("-")[2]
    return _COLOURS[(int(number) - 1) % len(_COLOURS)] if number.isdigit() else "white"
