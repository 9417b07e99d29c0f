"""Tests of the limit on registrations per second, without I/O."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_coord.frontends.socket.access import Admission
from kafka_coord.frontends.socket.connection import Connection


def connections(count: int) -> list[Connection]:
    peer: Any = None
    return [Connection(peer, 0.0) for _ in range(count)]


def test_a_seconds_unused_places_are_granted_at_once_and_later_places_one_after_the_other() -> None:
    admission = Admission(10, 0.0)
    waits = [admission.wait_s(one, 60.0, 100.0) for one in connections(14)]
    assert waits[:11] == [0.0] * 11
    assert waits[11:] == pytest.approx([0.1, 0.2, 0.3])


def test_a_client_that_returns_at_the_promised_time_is_admitted_and_an_early_one_gains_nothing() -> None:
    admission = Admission(10, 0.0)
    early, *others = connections(100)
    for one in others[:11]:
        admission.wait_s(one, 60.0, 100.0)
    wait_s = admission.wait_s(early, 60.0, 100.0)
    for one in others[11:]:
        admission.wait_s(one, 60.0, 100.0)
    assert admission.wait_s(early, 60.0, 100.05) == pytest.approx(wait_s - 0.05)
    assert admission.wait_s(early, 60.0, 100.0 + wait_s + 0.001) == 0.0
    assert admission.wait_s(early, 60.0, 100.0 + wait_s + 0.001) > 5.0  # a reserved place can be used only once


def test_no_wait_exceeds_the_clients_limit_and_a_flood_reserves_no_distant_places() -> None:
    admission = Admission(10, 0.0)
    flood = [admission.wait_s(one, 3.0, 100.0) for one in connections(10_000)]
    assert max(flood) == 3.0
    assert sum(wait < 3.0 for wait in flood) <= 41
    assert admission.wait_s(connections(1)[0], 60.0, 103.2) == 0.0


def test_too_early_s_reserves_no_place() -> None:
    admission = Admission(10, 0.0)
    first, second, *others = connections(100)
    for one in others[:11]:
        assert admission.too_early_s(one, 3.0, 100.0) == 0.0
        admission.wait_s(one, 3.0, 100.0)
    assert admission.too_early_s(first, 3.0, 100.0) == 0.0, "a place is available for it, but only later"
    wait_s = admission.wait_s(first, 3.0, 100.0)
    assert admission.too_early_s(first, 3.0, 100.01) == pytest.approx(wait_s - 0.01)
    assert admission.too_early_s(first, 3.0, 100.0 + wait_s) == 0.0
    for one in others[11:]:
        admission.wait_s(one, 3.0, 100.0)
    assert admission.too_early_s(second, 3.0, 100.0) == 3.0
    assert admission.too_early_s(second, 3.0, 100.5) == 0.0, "too_early_s must not reserve a place"
