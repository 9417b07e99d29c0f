"""Journals become a timeline of owners."""

from __future__ import annotations

from dataclasses import replace

from kafka_coord.dev.demo.journal import Change, Handed, Journal, Killing
from kafka_coord.dev.demo.timeline import (
    Ending,
    Event,
    EventKind,
    Sample,
    Span,
    assemble,
    consumed_between,
    handovers_of,
    median_gap_ms,
    overlaps_of,
    rates_of,
    spans_of,
    with_seen_changes,
)
from kafka_coord.model import PartitionSet
from tests.demo.evidence import START_MS, SmallRun, run, tp

ONE = PartitionSet({"flights": [1]})


def span(consumer: str, from_ms: int, to_ms: int, ending: Ending = Ending.STOPPED, partition: int = 0) -> Span:
    return Span(tp(partition), consumer, from_ms, to_ms, ending)


def test_a_hold_runs_from_start_to_stop_and_counts_what_was_consumed_meanwhile() -> None:
    world = SmallRun()

    spans = spans_of(world.journals(), world.killings, START_MS + 10_000)

    assert spans == (
        Span(tp(0), "c1", START_MS + 500, START_MS + 9_900, Ending.STOPPED, 100),
        Span(tp(1), "c2", START_MS + 600, START_MS + 6_000, Ending.KILLED, 60),
        Span(tp(1), "c1", START_MS + 8_000, START_MS + 9_900, Ending.STOPPED, 50),
    )


def test_a_hold_that_was_never_ended_lasts_until_the_end_of_the_run() -> None:
    journal = Journal("c1", handed=(Handed(START_MS, Change.STARTED, ONE),))

    assert spans_of([journal], [], START_MS + 70) == (Span(tp(1), "c1", START_MS, START_MS + 70, Ending.OPEN),)


def test_a_lost_membership_ends_a_hold() -> None:
    journal = Journal("c1", handed=(Handed(START_MS, Change.STARTED, ONE), Handed(START_MS + 9, Change.LOST, ONE)))

    assert spans_of([journal], [], START_MS + 70)[0].ending is Ending.LOST


def test_a_stop_of_a_partition_that_never_started_is_no_hold() -> None:
    journal = Journal("c1", handed=(Handed(START_MS, Change.STOPPED, ONE),))

    assert spans_of([journal], [], START_MS + 70) == ()


def test_handovers_have_their_gap_and_whether_a_killed_consumer_caused_them() -> None:
    spans = [
        span("c1", 0, 100),
        span("c2", 130, 500, Ending.KILLED),
        span("c1", 4_500, 5_000),
        span("c3", 0, 5_000, partition=1),
    ]

    found = handovers_of(spans)

    assert [(one.gap_ms, one.after_killing) for one in found] == [(30, False), (4_000, True)]
    assert median_gap_ms(found, after_killing=False) == 30
    assert median_gap_ms(found[:1], after_killing=True) is None


def test_two_owners_at_once_are_found() -> None:
    spans = [span("c1", 0, 100), span("c2", 90, 200), span("c3", 200, 300)]

    assert overlaps_of(spans) == ("flights-0: c1 and c2, 10 ms",)


def test_a_hold_inside_a_longer_one_does_not_hide_a_third() -> None:
    spans = [span("c1", 0, 100), span("c2", 10, 20), span("c3", 50, 300)]

    assert len(overlaps_of(spans)) == 2


def test_every_record_is_in_exactly_one_bucket_of_the_rates() -> None:
    journal = Journal("c1", runs=tuple(run(0, range(at, at + 10), START_MS + at * 100) for at in range(0, 100, 10)))

    rates = rates_of([journal], START_MS + 500, START_MS + 8_500, 1_000)

    assert len(rates["c1"]) == 8
    assert sum(rates["c1"]) == 100


def test_consumed_between_counts_only_that_stretch() -> None:
    journal = Journal("c1", runs=(run(0, range(5), START_MS), run(0, range(5, 8), START_MS + 10)))

    assert consumed_between([journal], START_MS, START_MS + 10) == 3


def test_the_timeline_spans_all_events_and_orders_them() -> None:
    world = SmallRun()
    events = [
        Event(START_MS + 12_000, EventKind.FINISHED, "done"),
        Event(START_MS, EventKind.STARTED, "begin"),
    ]
    samples = [Sample(START_MS + 100, {tp(0): 3}, {tp(0): 10, tp(7): 0})]

    found = assemble(world.journals(), [Killing("c2", START_MS + 6_000, {})], events, samples, [], [])

    assert (found.from_ms, found.to_ms) == (START_MS, START_MS + 12_000)
    assert [event.text for event in found.events] == ["begin", "done"]
    assert found.partitions == (tp(0), tp(1), tp(7))
    assert found.consumers == ("c1", "c2")
    assert found.samples[0].total_lag == 7


def test_nothing_at_all_still_makes_a_timeline() -> None:
    found = assemble([], [], [], [], [], [])

    assert found.partitions == ()
    assert found.duration_ms == 1


def test_a_committed_offset_beyond_the_end_is_no_negative_lag() -> None:
    assert Sample(0, {tp(0): 12}, {tp(0): 10}).total_lag == 0


def test_what_is_missing_in_a_consumers_journal_is_taken_from_the_samples():
    def sample(at_ms: int, *owned: int) -> Sample:
        return Sample(START_MS + at_ms, {}, {}, {tp(number): "query" for number in owned} | {tp(9): "c1"})

    journal = with_seen_changes(
        Journal("query"), [sample(0), sample(10, 1), sample(20, 1, 2), sample(30, 2), sample(40)]
    )
    assert spans_of([journal], [], START_MS + 70) == (
        Span(tp(1), "query", START_MS + 10, START_MS + 20, Ending.STOPPED),
        Span(tp(2), "query", START_MS + 20, START_MS + 30, Ending.STOPPED),
    )

    late = [sample(10, 1), replace(sample(20, 1), asked_ms=START_MS + 12), sample(30)]
    (span,) = spans_of([with_seen_changes(Journal("query"), late)], [], START_MS + 70)
    assert (span.from_ms, span.to_ms) == (START_MS + 10, START_MS + 12), "it may have ended while it was being read"


def test_a_consumers_journal_takes_precedence_over_the_samples():
    journal = Journal("c1", handed=(Handed(START_MS, Change.STARTED, PartitionSet.of({tp(1)})),))
    assert with_seen_changes(journal, [Sample(START_MS, {}, {}, {tp(2): "c1"})]) is journal
