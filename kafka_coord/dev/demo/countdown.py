"""Estimates the demo's remaining time from the usual duration of each part and the progress of the current run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.dev.cluster.flights import FLIGHTS
from kafka_coord.dev.demo.options import Clients, DemoOptions

_SPARK_S = 60.0
"""The duration of the second group, from the start of its processes to its report."""


class Part(StrEnum):
    """The parts of a run, in order. ``SPARK`` is the wait for the second group, which takes longer than the first."""

    START = "starting"
    LOAD = "writing"
    PLAY = "playing"
    VERIFY = "verifying"
    SPARK = "Spark"
    STOP = "stopping"


def expected_seconds(options: DemoOptions) -> dict[Part, float]:
    """Returns the duration of each part on an idle machine with two cores."""
    size = options.records / FLIGHTS
    load_s = 1.0 + (10.0 if options.spark else 6.0) * size
    play_s = options.seconds * 1.1 + (3.0 if options.spark else 1.0)
    if options.clients is Clients.KAFKA:
        play_s += 12.0  # for sessions to expire, and for rebalances
    verify_s = 2.0 + 4.0 * size
    spark_s = {Part.SPARK: max(8.0, _SPARK_S - load_s - play_s - verify_s)} if options.spark else {}
    return {
        Part.START: 4.0 + 1.5 * options.brokers,
        Part.LOAD: load_s,
        Part.PLAY: play_s,
        Part.VERIFY: verify_s,
        **spark_s,
        Part.STOP: 3.0,
    }


@dataclass(frozen=True, slots=True)
class Took:
    """A finished part and its duration."""

    part: Part
    seconds: float


class Countdown:
    """Tracks the beginning, progress and end of each part. Thread-safe."""

    def __init__(self, options: DemoOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected = expected_seconds(options)
        self._clock = clock
        self._lock = threading.Lock()
        self._now: Part | None = None
        self._began = clock()
        self._done_share = 0.0
        self._took: list[Took] = []

    def begin(self, part: Part) -> None:
        with self._lock:
            self._now, self._began, self._done_share = part, self._clock(), 0.0

    def end(self) -> None:
        """Records the end of the current part."""
        with self._lock:
            if self._now is not None:
                self._took.append(Took(self._now, self._clock() - self._began))
                self._now = None

    def reached(self, share: float) -> None:
        """Records the progress of the current part, from 0 to 1."""
        self._done_share = share

    @property
    def took(self) -> tuple[Took, ...]:
        with self._lock:
            return tuple(self._took)

    def left_s(self) -> float:
        """Returns the seconds until the end of the run, at least 1 before the last part has ended."""
        with self._lock:
            over = {took.part for took in self._took}
            later = sum(s for part, s in self._expected.items() if part not in over and part is not self._now)
            if self._now is None:
                return max(1.0, later)
            elapsed = self._clock() - self._began
            # On a busy machine, a part may take longer than expected; its remaining time then grows with the elapsed
            # time.
            here = max(self._expected.get(self._now, 0.0) - elapsed, elapsed / 4)
            if self._done_share > 0.25:  # before that, the estimate is better than the measured pace
                here = elapsed / self._done_share * (1 - self._done_share)
            return max(1.0, here + later)
