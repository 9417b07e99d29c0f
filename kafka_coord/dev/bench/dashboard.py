"""``kafka-coord bench dashboard``: measures what open dashboard pages cost a coordinator of many groups, and whether
they delay its decisions."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from kafka_coord.dev.bench.failover.run import FailoverOptions, FailoverTestbed, failover_testbed
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Setup, Spread, Table
from kafka_coord.dev.bench.usage import Meter
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.spark.session import find_java

_FILL_S = 600.0
_BAR_PERCENT, _BAR_MS = 1.0, 50.0
_BAR_OPENED_GROUPS, _BAR_OPENED_S, _BAR_OPENED_KB = 1_000, 2.0, 150.0
_FIRST_FILES = ("", "style.css", "uPlot.css", "uPlot.js", "app.js")
_LATER_FILES = ("actions.js", "dom.js", "live.js", "views.js", "charts.js", "icon.svg")
_VIEWS = {
    "overview": ("/overview", "/cluster/findings", "/cluster/history"),
    "groups": ("/groups?limit=101", "/cluster"),
}


@dataclass(frozen=True, slots=True)
class DashboardOptions(BenchOptions):
    """There are ``groups`` groups with ``consumers`` consumers each. Besides the overview, the pages of ``pages``
    groups are open. Each measurement starts after ``rest_s`` seconds without a write and takes ``watch_s`` seconds.
    Then a member joins ``repeat`` times."""

    groups: int = 10_000
    consumers: int = 10
    pages: int = 10
    watch_s: float = 60.0
    repeat: int = 20
    rest_s: float = 8.0


SMOKE = DashboardOptions(groups=5, consumers=2, pages=2, watch_s=0.5, repeat=1, rest_s=0.2, judged=False)


@dataclass(frozen=True, slots=True)
class Watched:
    """What the elected instance used while ``pages`` pages were open. One page received ``bytes_s`` bytes a second."""

    pages: int
    cpu_percent: float
    bytes_s: float
    join_p50_ms: float
    join_max_ms: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A page that a browser opens: its files, compressed, and then its stream. ``content_s`` is the time until its
    first document has arrived, and ``bytes`` are all that have arrived once each document has."""

    view: str
    groups: int
    content_s: float
    bytes: int
    cpu_s: float


class _Page:
    """An open page. Discards all received data."""

    def __init__(self, address: str, *paths: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=_FILL_S)
        self._connection.request("GET", "/api/v1/events?" + "&".join(f"path={path}" for path in paths))
        self._socket = self._connection.sock  # the response takes over the socket
        self._answer = self._connection.getresponse()
        self.received = 0
        self._thread = threading.Thread(target=self._read, name="bench-page", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while line := self._answer.readline():
            self.received += len(line)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._answer.close()
        self._connection.close()


def run_dashboard_bench(options: DashboardOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    of_groups = FailoverOptions(sizes=(options.groups,), consumers=options.consumers, rest_s=options.rest_s)
    with failover_testbed(directory, options.groups, of_groups, on_progress) as testbed, ExitStack() as pages:
        address = testbed.elected.address
        opened: list[_Page] = []
        found: list[Watched] = []

        def watch() -> None:
            found.append(_watch(testbed, opened, options))
            on_progress(_told(found[-1]))

        def open_page(*paths: str) -> None:
            opened.append(pages.enter_context(closing(_Page(address, *paths))))

        watch()
        open_page("/overview", "/cluster/findings", "/cluster/history")
        filled = _fill(testbed, address)
        on_progress(f"the overview shows all groups after {filled['seconds']} s ({filled['cpu_s']} s of CPU)")
        opens = [_open(testbed, address, view, options) for view in _VIEWS]
        watch()
        for number in range(options.pages):
            group = f"/groups/g{number % options.groups:05}"
            parts = ("", "/findings", "/history", "/actions", "/timeline", "/lag")
            open_page(*(group + part for part in parts), "/cluster")
        watch()
        pages.close()
        opened.clear()
        watch()
    tables = [
        Table("first page", [filled]),
        Table("opened", [asdict(one) for one in opens]),
        Table("dashboard", [asdict(one) for one in found]),
    ]
    return BenchReport.of("dashboard", setup, options, tables, [*bars(found), *opened_bars(opens)])


def _open(testbed: FailoverTestbed, address: str, view: str, options: DashboardOptions) -> Opened:
    """Opens a page as a browser does that has seen none, while the overview is already open."""
    began = time.monotonic()
    page = closing(http.client.HTTPConnection(address, timeout=_FILL_S))
    with page as connection, Meter(testbed.elected.process.pid or 0) as meter:
        received = 0
        for file in (*_FIRST_FILES, *_LATER_FILES):
            connection.request("GET", f"/dashboard/{file}", headers={"Accept-Encoding": "gzip"})
            received += len(connection.getresponse().read())
        left = {path.encode() for path in _VIEWS[view]}
        connection.request("GET", "/api/v1/events?" + "&".join(f"path={quote(path)}" for path in _VIEWS[view]))
        opened = connection.sock
        answer, content_s = connection.getresponse(), 0.0
        while left and (line := answer.readline()):
            received += len(line)
            if line.startswith(b'data: {"path":'):
                left -= {path for path in left if b'"%s"' % path in line}
                received += len(answer.readline())
                content_s = content_s or time.monotonic() - began
        opened.shutdown(socket.SHUT_RDWR)
        answer.close()
        cpu_s = meter.cpu_s()
    return Opened(view, options.groups, round(content_s, 2), received, round(cpu_s, 2))


def opened_bars(opens: Sequence[Opened]) -> list[Bar]:
    """Returns the targets for a page that is opened."""
    few = [one for one in opens if one.groups <= _BAR_OPENED_GROUPS]
    return [
        Bar.at_most("first content", _BAR_OPENED_S, max((one.content_s for one in few), default=None), " s"),
        Bar.at_most("bytes", _BAR_OPENED_KB, max((one.bytes / 1000 for one in few), default=None), " kB"),
    ]


def _watch(testbed: FailoverTestbed, pages: Sequence[_Page], options: DashboardOptions) -> Watched:
    """Measures the idle instance, and then a member's joins."""
    if options.judged:
        testbed.at_rest()
    received = pages[0].received if pages else 0
    with Meter(testbed.elected.process.pid or 0) as meter:
        time.sleep(options.watch_s)
        cpu_s = meter.cpu_s()
    bytes_s = (pages[0].received - received) / options.watch_s if pages else 0.0
    joins = Spread.some(testbed.join_ms() for _ in range(options.repeat))
    return Watched(len(pages), round(100 * cpu_s / options.watch_s, 2), round(bytes_s), joins.median, joins.most)


def _fill(testbed: FailoverTestbed, address: str) -> dict[str, float]:
    """Measures how long the first page takes to show every group."""

    def known() -> bool:
        connection = http.client.HTTPConnection(address, timeout=_FILL_S)
        try:
            connection.request("GET", "/api/v1/overview")
            return bool(json.loads(connection.getresponse().read()).get("groups_unread") == 0)
        finally:
            connection.close()

    began = time.monotonic()
    with Meter(testbed.elected.process.pid or 0) as meter:
        awaited(known, _FILL_S, "every group to appear in the overview", every_s=0.5)
        return {"seconds": round(time.monotonic() - began, 1), "cpu_s": round(meter.cpu_s(), 1)}


def bars(found: Sequence[Watched]) -> list[Bar]:
    """Returns the targets: an open page costs at most one percent of a core, and does not measurably delay decisions.
    The baseline is the mean of the measurements without pages. These are taken both before and after the others,
    because the instance's own load changes over time."""
    idle, watched = [one for one in found if not one.pages], [one for one in found if one.pages]
    cpu_percent, join_ms = fmean(one.cpu_percent for one in idle), fmean(one.join_p50_ms for one in idle)
    per_page = max((one.cpu_percent - cpu_percent) / one.pages for one in watched)
    later_ms = max(one.join_p50_ms - join_ms for one in watched)
    return [
        Bar.at_most("each open page, as a share of one core", _BAR_PERCENT, round(per_page, 2), " %"),
        Bar.at_most("a join takes longer by", _BAR_MS, round(later_ms, 1), " ms"),
    ]


def _told(one: Watched) -> str:
    return (
        f"{one.pages} pages: {one.cpu_percent:.1f} % of a core, {one.bytes_s:,.0f} bytes/s; a join takes "
        f"{one.join_p50_ms:.0f} ms (at most {one.join_max_ms:.0f})"
    )
