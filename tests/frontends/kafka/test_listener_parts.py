"""Tests that a defect in one part of the listener, or at one connection, does not end the others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kafka_coord.frontends.kafka import listener
from kafka_coord.frontends.kafka.clients import Clients


def test_endless_work_begins_again_after_an_unexpected_error(monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(listener, "BEGINS_AGAIN_S", 0.0)
    began = []

    async def work() -> None:
        began.append(len(began))
        if len(began) == 3:
            await asyncio.Event().wait()
        raise ZeroDivisionError

    async def play() -> None:
        task = asyncio.create_task(listener.kept_running(work))
        while len(began) < 3:
            await asyncio.sleep(0)
        task.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


class Connection:
    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken, self.checked, self.ended = is_broken, 0, ""

    def end_if_overdue(self, _now: float) -> None:
        self.checked += 1
        if self.is_broken:
            raise ZeroDivisionError

    def end(self, reason: str, *, at_once: bool) -> None:
        self.ended = reason if at_once else ""


def test_a_connection_that_cannot_be_checked_is_closed_and_the_others_are_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connections = Connection(), Connection(is_broken=True), Connection()
    clients = Clients.__new__(Clients)
    clients._open = set(connections)  # type: ignore[arg-type]
    clients._flush_log = lambda: None  # type: ignore[method-assign]
    clients.end_overdue(0.0)
    assert [(one.checked, one.ended) for one in connections] == [(1, ""), (1, "an internal error"), (1, "")]
    assert "this is a bug" in caplog.text
