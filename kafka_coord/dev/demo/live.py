"""Shows the demo on a terminal, redrawing owners, lag and commands while the scenario runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text

from kafka_coord.dev.demo.options import Clients, DemoOptions
from kafka_coord.dev.demo.timeline import Event
from kafka_coord.dev.demo.view import PlainView
from kafka_coord.dev.demo.watching import GroupView
from kafka_coord.model import PartitionSet, TopicPartition

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

_COLOURS = ("bright_blue", "dark_orange", "green3", "medium_purple1", "gold3", "hot_pink", "cyan", "white")
_BAR_CELLS = 18
_PROGRESS_CELLS = 36
_WIDE = 112
"""On terminals at least this wide, events appear next to the partitions instead of below them."""
_EVENTS_BESIDE, _EVENTS_BELOW = 9, 3
_OBEYED_SHOWN_S = 4.0


class Acknowledged:
    """The commands that consumers executed recently. Most commands are outstanding for only a few tens of ms, too
    briefly to be seen, so they are inferred from ownership changes. ``verbs`` names the stop and start commands.
    """

    def __init__(self, verbs: tuple[str, str] = ("stop-fetcher", "start-fetcher")) -> None:
        self._verbs = verbs
        self._owners: Mapping[TopicPartition, str] = {}
        self._lately: dict[str, tuple[float, str]] = {}

    def notice(self, owners: Mapping[TopicPartition, str], now: float) -> None:
        """Compares the owners with those of the previous call. ``now`` is in seconds."""
        started: dict[str, list[TopicPartition]] = {}
        stopped: dict[str, list[TopicPartition]] = {}
        for partition in owners.keys() | self._owners.keys():
            before, after = self._owners.get(partition), owners.get(partition)
            if before != after:
                if after:
                    started.setdefault(after, []).append(partition)
                if before:
                    stopped.setdefault(before, []).append(partition)
        self._owners = dict(owners)
        for consumer in started.keys() | stopped.keys():
            changes = zip(self._verbs, (stopped, started), strict=True)
            told = [f"{verb} {PartitionSet.of(found[consumer])}" for verb, found in changes if consumer in found]
            self._lately[consumer] = (now, ", ".join(told))

    def by(self, consumer: str, now: float) -> str:
        """Describes the commands that a consumer executed within the last few seconds."""
        at, told = self._lately.get(consumer, (0.0, ""))
        return told if now - at <= _OBEYED_SHOWN_S else ""


class LiveView(PlainView):
    """Shows steps as lines, and the scenario as a picture that is redrawn and finally leaves only its events behind."""

    tick_s = 0.5

    def __init__(self, console: Console, options: DemoOptions) -> None:
        super().__init__(console, options)
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._events: list[Text] = []
        self._highest: dict[TopicPartition, int] = {}
        self._paces: list[float] = []
        self._stock = options.clients is Clients.KAFKA
        self._acknowledged = Acknowledged(("gave up", "was given")) if self._stock else Acknowledged()
        self._status: Status | None = None

    def begin_step(self, what: str, *, ticks: bool) -> None:
        if ticks:
            self._status = self.console.status(f"{what}  {self.left()}")
            self._status.start()
        else:  # the next screen takes up the whole terminal
            self.console.print(Text.assemble(("▸ ", "bold blue"), what), soft_wrap=True)

    def tick_step(self, what: str, doing: str, seconds: float) -> None:
        if self._status is not None:
            self._status.update(Text.assemble(what, (f"  {seconds:.0f} s, {self.left()}  {doing}", "dim")))

    def end_step(self, what: str, outcome: str, seconds: float, *, done: bool) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if done:
            self.steps.append((what, seconds))
            told = (f": {outcome}" if outcome else "", f"  {seconds:.1f} s")
            self.console.print(Text.assemble(("✓ ", "bold green"), what, told[0], (told[1], "dim")), soft_wrap=True)

    def event(self, event: Event) -> None:
        line = Text.assemble((self.clock(), "dim"), "  ", event.text)
        with self._lock:
            self._events.append(line)
        if self._live is None:
            self.console.print(line, soft_wrap=True)

    def update(self, view: GroupView) -> None:
        live = self._live
        if live is not None and view.sample is not None:
            self.countdown.reached(view.committed / self.options.total)
            live.update(self.picture(view), refresh=True)

    @contextmanager
    def playing(self) -> Iterator[None]:
        told = len(self._events)
        with super().playing():
            try:
                with Live(console=self.console, auto_refresh=False, transient=True) as live:
                    self._live = live
                    yield
            finally:
                self._live = None
                for line in self._events[told:]:  # the picture disappears, the events stay
                    self.console.print(line, soft_wrap=True)

    def picture(self, view: GroupView) -> Table:
        if view.sample is not None:
            self._acknowledged.notice(view.sample.owners, time.monotonic())
        frame = Table.grid(padding=(0, 0))
        for row in (self._progress(view), self._state(view), Text(f"          {self.aside}", style="dim")):
            frame.add_row(row)
        if self.console.width >= _WIDE:
            columns = Table.grid(padding=(0, 3))
            columns.add_row(self._partitions(view), self._side(view, _EVENTS_BESIDE))
            frame.add_row(columns)
        else:
            frame.add_row(self._partitions(view))
            frame.add_row("")
            frame.add_row(self._side(view, _EVENTS_BELOW))
        return frame

    def _progress(self, view: GroupView) -> Text:
        total = sum(view.sample.ends.values()) if view.sample else 0
        done = round(_PROGRESS_CELLS * view.committed / total) if total else 0
        self._paces = [*self._paces[-4:], self.pace(view)]
        pace = sum(self._paces) / len(self._paces)
        return Text.assemble(
            (self.clock() + "  ", "dim"),
            ("━" * done, "bold green"),
            ("━" * (_PROGRESS_CELLS - done), "grey37"),
            f"  {view.committed:,} of {total:,} records",
            (f"   {pace:,.0f}/s", "cyan"),
            f"   lag {view.sample.total_lag if view.sample else 0:,}",
            (f"   {self.left()}", "bold"),
        )

    @staticmethod
    def _state(view: GroupView) -> Text:
        info = view.coordinator
        who = f"beside broker {info.broker_id}, epoch {info.epoch}" if info else "none elected"
        state, generation = (view.group.state, view.group.generation) if view.group else ("-", None)
        return Text.assemble(
            ("          coordinator ", "dim"),
            (who, "bold" if info else "bold red"),
            ("   group ", "dim"),
            (str(state), "green" if state == "Stable" else "yellow"),
            (f"   generation {generation or '-'}", "dim"),
        )

    def _partitions(self, view: GroupView) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
        for head, right in (("partition", True), ("owner", False), ("committed", True), ("lag", True), ("", False)):
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        sample = view.sample
        if sample is None:
            return table
        for partition in sorted(sample.ends):
            lag, owner = sample.lag(partition), sample.owners.get(partition)
            highest = self._highest[partition] = max(self._highest.get(partition, 1), lag)
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

    def _side(self, view: GroupView, events: int) -> Table:
        members = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
        for head in ("consumer", "owns", "lately" if self._stock else "commands"):
            members.add_column(head, no_wrap=head in {"consumer", "owns"})
        for member in view.group.members if view.group else ():
            waiting = ", ".join(f"{one.type} {one.partitions}" for one in member.pending)
            acknowledged = self._acknowledged.by(member.consumer, time.monotonic())
            gone = "" if member.registered else " (gone)"
            members.add_row(
                Text(member.consumer + gone, style=_colour(member.consumer)),
                str(len(member.owned)),
                Text(f"{waiting} waiting", style="yellow")
                if waiting
                else Text(acknowledged and f"{acknowledged} ✓", style="green"),
            )
        side = Table.grid()
        side.add_row(members)
        side.add_row("")
        with self._lock:
            for line in self._events[-events:]:
                side.add_row(line)
        return side


def _colour(consumer: str | None) -> str:
    if not consumer:
        return "grey50"
    number = consumer.rpartition("-")[2]
    return _COLOURS[(int(number) - 1) % len(_COLOURS)] if number.isdigit() else "white"
