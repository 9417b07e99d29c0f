"""Tests the load of the machine's cores, as the kernel reports it."""

from __future__ import annotations

import os
import time

from tests.chaos.machine import MachineTimes


def test_the_load_of_a_busy_core_is_measured() -> None:
    before = MachineTimes.now()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
    found = before.until_now()
    assert found["seconds"] >= 0.3
    # this process uses a whole core, except for the time that other guests of the host take
    assert found["busy"] + found["stolen"] >= 0.5 / (os.cpu_count() or 1)
    assert all(0 <= found[share] <= 1.2 for share in ("busy", "stolen", "waited"))
