"""The result of a benchmark: the machine, the measurements, and the targets. Does I/O only in ``Setup.here``."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("kafka-coord", "pyspark", "confluent-kafka", "kazoo", "pyarrow")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The base class of each benchmark's options. With ``judged``, the report compares the figures with the targets."""

    judged: bool = field(default=True, kw_only=True)


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of repeated measurements, all in the same unit."""

    n: int
    median: float
    p99: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Returns None if there are no values. The p99 is a measured value (nearest rank): the largest one if
        there are fewer than 100."""
        if not values:
            return None
        ranked = sorted(values)
        half = len(ranked) // 2
        median = ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
        return cls(len(ranked), median, ranked[math.ceil(0.99 * len(ranked)) - 1], ranked[0], ranked[-1])

    @classmethod
    def some(cls, values: Iterable[float]) -> Spread:
        """Like ``of``, but raises ValueError if there are no values."""
        found = cls.of(list(values))
        if found is None:
            raise ValueError("nothing was measured")
        return found

    def to_json(self, digits: int = 1) -> dict[str, float]:
        return {
            "n": self.n,
            "median": round(self.median, digits),
            "p99": round(self.p99, digits),
            "min": round(self.least, digits),
            "max": round(self.most, digits),
        }


@dataclass(frozen=True, slots=True)
class Setup:
    """The machine and the software that were measured. ``load`` is the load average over the minute before the
    benchmark."""

    began: str
    cpus: int
    processor: str
    memory_gib: float
    load: float
    kernel: str
    python: str
    versions: Mapping[str, str]

    @classmethod
    def here(cls, **versions: str) -> Setup:
        """Describes this machine. ``versions`` are the versions of programs that are not Python packages."""
        return cls(
            began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            cpus=len(os.sched_getaffinity(0)),
            processor=_processor(),
            memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            load=round(os.getloadavg()[0], 2),
            kernel=platform.release(),
            python=platform.python_version(),
            versions={name: found for name in _PACKAGES if (found := _version(name))} | versions,
        )

    def sentences(self) -> list[str]:
        return [
            f"{self.began}: {self.cpus} cores of {self.processor}, {self.memory_gib} GiB, load {self.load} before",
            ", ".join([f"Python {self.python}", *(f"{name} {found}" for name, found in self.versions.items())]),
        ]


@dataclass(frozen=True, slots=True)
class Bar:
    """A target and the measured figure. ``met`` is None if the figure could not be measured."""

    name: str
    wanted: str
    found: str
    met: bool | None

    @classmethod
    def at_most(cls, name: str, most: float, found: float | None, unit: str = "", *, counts: bool = True) -> Bar:
        """Returns the target that ``found`` is at most ``most``. It is not judged if ``found`` is None or ``counts`` is
        false."""
        told = "not measured" if found is None else f"{found:,.5g}{unit}"
        met = None if found is None or not counts else found <= most
        return cls(name, f"at most {most:,g}{unit}" if most else f"0{unit}", told, met)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart of a table. Each row has a bar of length ``value``, and a mark at ``most`` if that is a column.
    ``labels`` are the columns that identify the row.
    """

    labels: Sequence[str]
    value: str
    most: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind. In JSON, they appear under the table's name, with underscores instead of non-letters. The keys
    of the first row are the columns, and end with the unit of the numbers.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The whole report. ``settings`` are the options of the benchmark, and ``notes`` are sentences about missing or odd
    results. ``further`` contains additional fields for the JSON object, such as the cost of each kind of event.
    """

    bench: str
    setup: Setup
    settings: Mapping[str, Any]
    tables: Sequence[Table]
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    further: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        bench: str,
        setup: Setup,
        options: BenchOptions,
        tables: Sequence[Table],
        bars: Sequence[Bar],
        notes: Sequence[str] = (),
        further: Mapping[str, Any] | None = None,
    ) -> BenchReport:
        """Creates the report. Drops the ``bars`` unless the options are ``judged``."""
        settings = json.loads(json.dumps(asdict(options)))  # to have only JSON types
        return cls(bench, setup, settings, tables, bars if options.judged else (), notes, further or {})

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "bench": self.bench,
            "setup": asdict(self.setup),
            "settings": dict(self.settings),
            **self.further,
            **{re.sub("[^a-z]+", "_", table.name): [dict(row) for row in table.rows] for table in self.tables},
            "bars": [asdict(bar) for bar in self.bars],
            "notes": list(self.notes),
        }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
