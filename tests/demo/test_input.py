"""The flights as records, and the expected totals without them."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from kafka_coord.dev.cluster.flights import FLIGHTS, airline_names, flight_rows, read_flights
from kafka_coord.dev.demo.expected import count_input
from kafka_coord.dev.demo.options import DemoOptions, chosen
from kafka_coord.errors import SettingsError


@pytest.mark.long
def test_every_flight_of_the_file_becomes_a_record() -> None:
    records = list(read_flights())

    assert len(records) == FLIGHTS
    airlines = Counter(json.loads(record.value)["carrier"] for record in records)
    assert airlines == {code: total.flights for code, total in count_input().items()}
    assert airlines.keys() <= airline_names().keys()


def test_a_record_says_what_the_files_row_says() -> None:
    with flight_rows() as (header, rows):
        for row, record in zip(rows, read_flights(2_000), strict=False):
            value = json.loads(record.value)
            told = {name: "NA" if value[name] is None else str(value[name]) for name in header}
            assert told == dict(zip(header, row, strict=True))
            assert record.key == (value["tailnum"] or value["carrier"]).encode()


def test_flights_written_again_are_counted_again() -> None:
    once, twice = count_input(1_000), count_input(1_000, 1_000)

    assert {code: (2 * t.flights, 2 * t.delay_minutes) for code, t in once.items()} == {
        code: (t.flights, t.delay_minutes) for code, t in twice.items()
    }
    assert sum(total.flights for total in count_input(1_000, 83).values()) == 1_083


@pytest.mark.parametrize(
    "wrong", [{"records": 10}, {"records": FLIGHTS + 1}, {"brokers": 1}, {"clients": "kafka", "spark": True}]
)
def test_impossible_options_are_refused_with_the_reason(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=str(next(iter(wrong.values())))):
        chosen(**wrong)  # type: ignore[arg-type]


def test_a_quick_run_can_be_changed_too() -> None:
    quick = chosen(quick=True, records=5_000, seed=3)

    assert (quick.records, quick.seed) == (5_000, 3)
    assert quick.seconds < DemoOptions().seconds
    assert chosen().records == FLIGHTS
