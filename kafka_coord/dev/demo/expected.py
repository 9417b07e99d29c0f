"""The expected result, computed from the input file alone, without producers or consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from kafka_coord.dev.cluster.flights import flight_rows


@dataclass(slots=True)
class AirlineTotal:
    """An airline's totals: flights, flights that arrived, and the sum of their delays in minutes."""

    flights: int = 0
    arrived: int = 0
    delay_minutes: int = 0

    @property
    def mean_delay(self) -> float | None:
        """The mean delay in minutes; None if no flight arrived."""
        return self.delay_minutes / self.arrived if self.arrived else None

    def add(self, delay: int | None, sign: int = 1) -> None:
        """Counts one flight; ``sign=-1`` removes it again."""
        self.flights += sign
        if delay is not None:
            self.arrived += sign
            self.delay_minutes += sign * delay


def count_input(limit: int | None = None, again: int = 0) -> dict[str, AirlineTotal]:
    """Maps each airline's code to its totals over the first ``limit`` flights. The first ``again`` flights count
    twice."""
    totals: dict[str, AirlineTotal] = {}
    with flight_rows() as (header, rows):
        carrier, delay = header.index("carrier"), header.index("arr_delay")
        for number, row in enumerate(islice(rows, limit)):
            minutes = None if row[delay] in {"NA", ""} else int(row[delay])
            total = totals.setdefault(row[carrier], AirlineTotal())
            total.add(minutes)
            if number < again:
                total.add(minutes)
    return totals


def side_by_side(
    found: Mapping[str, AirlineTotal], expected: Mapping[str, AirlineTotal]
) -> Iterator[tuple[str, AirlineTotal, AirlineTotal]]:
    """Yields each airline with its found and its expected totals."""
    nothing = AirlineTotal()
    for airline in sorted(found.keys() | expected.keys()):
        yield airline, found.get(airline, nothing), expected.get(airline, nothing)
