"""The page is well-formed, self-contained and escaped, and states the verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from kafka_coord.dev.demo.expected import AirlineTotal
from kafka_coord.dev.demo.report import RunReport, render
from kafka_coord.dev.demo.timeline import Event, EventKind, assemble
from kafka_coord.dev.demo.verification import verify
from kafka_coord.dev.html import Markup, join, tag
from tests.demo.evidence import START_MS, SmallRun, decision, timeline, tp

HOSTILE = "</title><script>alert(1)</script><b a='\" & \x00\x1b[31m"
SVG = "{http://www.w3.org/2000/svg}"


def report(world: SmallRun | None = None) -> RunReport:
    world = world or SmallRun()
    return RunReport(
        group="delays",
        timeline=timeline(world),
        verification=verify(world.evidence()),
        expected=world.expected,
        airline_names={"UA": "United Air Lines Inc."},
        records=200,
        setting="Real servers.",
        steps=(("Loading", 1.25),),
        failover_ms=990,
        failover_records=17,
    )


def parsed(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314 - made here


def text(page: str) -> str:
    return " ".join(" ".join(parsed(page).itertext()).split())


def test_the_page_is_well_formed_and_states_the_verdict() -> None:
    shown = text(render(report()))

    assert "Verified" in shown
    assert "200 records, none lost, with a consumer and the coordinator killed along the way" in shown
    assert "United Air Lines Inc." in shown
    assert "17 records consumed meanwhile" in shown


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = render(report())

    assert not re.search(r"https?://|//[a-z]|url\(|@import|<script|<link|<img|<iframe", page)


def test_a_failure_is_stated_at_the_top_of_the_page() -> None:
    world = SmallRun()
    world.c1.pop()

    page = render(report(world))

    assert "Not verified" in text(page)
    heading = parsed(page).find(".//h1")
    assert heading is not None
    assert "The run failed its verification" in "".join(heading.itertext())
    assert "nobody consumed offsets 60-99 (40)" in text(page)


def test_every_hold_event_and_rebalance_is_on_the_page() -> None:
    told = report()
    page = parsed(render(told))
    titles = [element.text or "" for element in page.iter("title")]

    for held in told.timeline.spans:
        assert any(title.startswith(f"{held.partition}: {held.consumer} from") for title in titles)
    for event in told.timeline.events:
        assert any(title.endswith(event.text) for title in titles)
    shown = text(render(told))
    assert shown.count("member c2 left") == 2
    assert "c1 gains flights[1]" in shown


def test_events_at_the_same_moment_do_not_hide_each_other() -> None:
    page = parsed(render(report()))
    markers = [(c.get("cx"), c.get("cy")) for c in page.iter("circle") if c.get("class") == "marker"]

    assert len(markers) == 4
    assert len(set(markers)) == 4
    assert len({cy for _, cy in markers}) == 2


def test_hostile_names_stay_text() -> None:
    told = report()
    spoilt = replace(
        told,
        group=HOSTILE,
        setting=HOSTILE,
        airline_names={"UA": HOSTILE},
        steps=((HOSTILE, 1.0),),
        timeline=replace(
            told.timeline,
            consumers=(HOSTILE, "c2"),
            events=(Event(START_MS, EventKind.STARTED, HOSTILE),),
            spans=tuple(replace(held, consumer=HOSTILE) for held in told.timeline.spans),
            decisions=(decision(1, HOSTILE),),
            rates={HOSTILE: (5, 7)},
        ),
        verification=replace(
            told.verification,
            checks=tuple(replace(check, found=HOSTILE, differences=(HOSTILE,)) for check in told.verification.checks),
            consumed={HOSTILE: AirlineTotal(1, 1, 1)},
        ),
    )

    page = render(spoilt)

    assert "<script" not in page
    assert "\x00" not in page
    assert "\x1b" not in page
    assert parsed(page).find(".//script") is None
    assert "</title><script>alert(1)</script>" in text(page)


def test_a_run_in_which_nothing_happened_still_makes_a_page() -> None:
    nothing = assemble([], [], [], [], [], [])
    bare = replace(report(), timeline=nothing, steps=(), failover_ms=None, failover_records=None)

    assert "Rebalances" in text(render(bare))


def test_a_ninth_consumer_still_has_a_colour() -> None:
    told = report()
    many = tuple(f"c{number}" for number in range(1, 12))

    page = render(replace(told, timeline=replace(told.timeline, consumers=many)))

    assert 'class="c2"' in page
    assert 'class="c10"' not in page


@pytest.mark.parametrize("count", [1, 300])
def test_any_number_of_partitions_fits(count: int) -> None:
    told = report()
    page = render(replace(told, timeline=replace(told.timeline, partitions=tuple(map(tp, range(max(2, count)))))))

    assert parsed(page) is not None


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "a < b", tag("b", "&"), title='"') == '<p title="&quot;">a &lt; b<b>&amp;</b></p>'
    assert tag("rect", x=1.5, stroke_width=2.0, class_=None) == '<rect x="1.5" stroke-width="2"/>'
    assert isinstance(join("<", Markup("<br/>")), Markup)
    assert join("<", Markup("<br/>")) == "&lt;<br/>"
