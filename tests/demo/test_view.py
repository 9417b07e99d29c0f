"""What is said while it runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kafka_coord.dev.demo.live import LiveView, Obeyed
from kafka_coord.dev.demo.options import DemoOptions
from kafka_coord.dev.demo.timeline import Event, EventKind, Sample
from kafka_coord.dev.demo.view import PlainView
from kafka_coord.dev.demo.watching import Look
from kafka_coord.model import CoordinatorInfo
from tests.demo.evidence import tp

LOOK = Look(
    1,
    CoordinatorInfo(2, 7, "0"),
    None,
    Sample(1, {tp(0): 25, tp(1): 75}, {tp(0): 100, tp(1): 100}, {tp(0): "consumer-1"}, {"consumer-1": 2}),
)


def console(width: int = 140) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def written(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def test_a_pipe_gets_one_line_an_event_and_the_time_of_each_step() -> None:
    view = PlainView(console(), DemoOptions())
    with view.step("Starting [everything]") as step:
        step.outcome = "three brokers"
    with view.playing():
        view.event(Event(1, EventKind.KILLED, "consumer-2 is killed"))
        view.look(LOOK)

    lines = written(view.console).splitlines()
    assert lines[0] == "Starting [everything] …"
    assert lines[1] == "    three brokers, 0.0 s"
    assert lines[2].endswith("consumer-2 is killed")
    assert "100 of 200 committed" in lines[3]
    assert "lag 100; consumer-1 owns 1; commands waiting: consumer-1 2" in lines[3]
    assert [what for what, _ in view.steps] == ["Starting [everything]"]


def test_a_step_that_fails_is_not_said_to_be_done() -> None:
    view = PlainView(console(), DemoOptions())
    with pytest.raises(ZeroDivisionError), view.step("Loading"):
        _ = 1 / 0

    assert written(view.console).splitlines() == ["Loading …"]
    assert view.steps == []


def test_the_picture_shows_owner_lag_and_coordinator_at_any_width() -> None:
    for width in (60, 80, 112, 200):
        view = LiveView(console(width), DemoOptions())
        with view.playing():
            view.event(Event(1, EventKind.JOINED, "consumer-4 joins"))
            view.console.print(view.picture(LOOK))
        shown = written(view.console)
        assert "consumer-1" in shown
        assert "nobody" in shown
        assert "beside broker 2" in shown
        assert "consumer-4 joins" in shown


def test_commands_too_quick_to_be_seen_waiting_are_told_as_obeyed() -> None:
    obeyed = Obeyed()
    obeyed.notice({tp(0): "c1", tp(1): "c1"}, 0.0)
    obeyed.notice({tp(0): "c1", tp(1): "c2"}, 10.0)

    assert obeyed.by("c1", 11.0) == "stop-fetcher flights[1]"
    assert obeyed.by("c2", 11.0) == "start-fetcher flights[1]"
    assert obeyed.by("c2", 20.0) == ""
