"""The progress that the demo shows."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from kafka_coord.dev.demo.countdown import Countdown, Part
from kafka_coord.dev.demo.live import Acknowledged, LiveView
from kafka_coord.dev.demo.options import Clients, DemoOptions
from kafka_coord.dev.demo.timeline import Event, EventKind, Sample
from kafka_coord.dev.demo.view import PlainView
from kafka_coord.dev.demo.watching import GroupView
from kafka_coord.model import CoordinatorInfo
from tests.demo.evidence import tp
from tests.waiting import eventually

VIEW = GroupView(
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
    with view.step("Starting [everything]", Part.START) as step:
        step.outcome = "three brokers"
    with view.playing():
        view.event(Event(1, EventKind.KILLED, "consumer-2 is killed"))
        view.update(VIEW)

    lines = written(view.console).splitlines()
    assert lines[0].startswith("Starting [everything] … about ")
    assert re.fullmatch(r"    three brokers, \d+\.\d s", lines[1])
    assert lines[2].endswith("consumer-2 is killed")
    assert "100 of 200 committed" in lines[3]
    assert "lag 100; consumer-1 owns 1; commands waiting: consumer-1 2" in lines[3]
    assert [what for what, _ in view.steps] == ["Starting [everything]"]
    assert [took.part for took in view.countdown.took] == [Part.START]


def test_stock_clients_obey_no_commands() -> None:
    view = PlainView(console(), DemoOptions(clients=Clients.KAFKA, spark=False))

    assert view.summary(VIEW).endswith("consumer-1 owns 1")


def test_every_line_of_progress_says_how_long_is_left() -> None:
    view = PlainView(console(), DemoOptions())
    view.tick_s = 0.01
    with view.step("Starting", Part.START) as step:
        step.progress("brokers")
        eventually(lambda: "brokers" in written(view.console))
    with view.playing():
        view.update(VIEW)

    lines = [line for line in written(view.console).splitlines() if "done, " not in line]
    assert len(lines) >= 3
    assert all(re.search(r"about \d+ s left$", line) for line in lines)


def test_the_progress_of_the_second_group_is_shown_beside_the_first() -> None:
    for view in (PlainView(console(), DemoOptions()), LiveView(console(), DemoOptions())):
        view.aside = "delays-spark: 12 of 48 rows"
        with view.playing():
            view.update(VIEW)
            if isinstance(view, LiveView):
                view.console.print(view.picture(VIEW))
        assert "delays-spark: 12 of 48 rows" in written(view.console)


def test_events_without_a_live_picture_are_printed() -> None:
    view = LiveView(console(), DemoOptions())
    view.event(Event(1, EventKind.FINISHED, "the table is complete"))

    assert written(view.console).count("the table is complete") == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_countdown_uses_expected_times_until_the_real_speed_is_known() -> None:
    clock = Clock()
    options = DemoOptions(spark=False)
    left = Countdown(options, clock)
    whole = left.left_s()
    assert 50 < whole < 120
    assert Countdown(DemoOptions(), clock).left_s() > whole

    left.begin(Part.START)
    clock.now = 3.0
    assert left.left_s() == pytest.approx(whole - 3)
    clock.now = 1_000.0
    assert left.left_s() > 200  # a part that takes much longer than expected is not announced to end at once
    left.end()
    left.begin(Part.PLAY)
    later = left.left_s()
    clock.now += 100.0
    left.reached(0.5)
    assert left.left_s() > later  # 100 s for one half means 100 s for the other
    left.end()
    for part in Part:
        left.begin(part)
        left.end()
    assert left.left_s() == 1.0
    assert [took.part for took in left.took[:2]] == [Part.START, Part.PLAY]
    assert left.took[1].seconds == 100.0


def test_a_step_that_fails_is_not_said_to_be_done() -> None:
    view = PlainView(console(), DemoOptions())
    with pytest.raises(ZeroDivisionError), view.step("Loading", Part.LOAD):
        _ = 1 / 0

    [line] = written(view.console).splitlines()
    assert line.startswith("Loading … ")
    assert view.steps == []


def test_the_picture_shows_owner_lag_and_coordinator_at_any_width() -> None:
    for width in (60, 80, 112, 200):
        view = LiveView(console(width), DemoOptions())
        with view.playing():
            view.event(Event(1, EventKind.JOINED, "consumer-4 joins"))
            view.console.print(view.picture(VIEW))
        shown = written(view.console)
        assert "consumer-1" in shown
        assert "nobody" in shown
        assert "beside broker 2" in shown
        assert "consumer-4 joins" in shown


def test_commands_that_were_never_seen_waiting_are_shown_as_obeyed() -> None:
    acknowledged = Acknowledged()
    acknowledged.notice({tp(0): "c1", tp(1): "c1"}, 0.0)
    acknowledged.notice({tp(0): "c1", tp(1): "c2"}, 10.0)

    assert acknowledged.by("c1", 11.0) == "stop-fetcher flights[1]"
    assert acknowledged.by("c2", 11.0) == "start-fetcher flights[1]"
    assert acknowledged.by("c2", 20.0) == ""
