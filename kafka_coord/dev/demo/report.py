"""Writes the report of a run: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_coord.dev.demo import charts
from kafka_coord.dev.demo.expected import AirlineTotal, side_by_side
from kafka_coord.dev.demo.shared_section import sharing_section
from kafka_coord.dev.demo.timeline import EventKind, Timeline, handovers_of, median_gap_ms
from kafka_coord.dev.demo.verification import Verification
from kafka_coord.dev.html import Markup, join, page, scroll, section, table, tag
from kafka_coord.model import Decision

if TYPE_CHECKING:
    from kafka_coord.dev.demo.sharing import Shared


@dataclass(frozen=True, slots=True)
class RunReport:
    """The contents of the page. ``failover_ms`` is the time from the coordinator's kill to the next election, during
    which the group consumed ``failover_records`` records; both are None if no coordinator was killed. ``steps`` are the
    demo's steps and their durations in seconds. ``setting`` is a sentence about the servers. ``shared`` describes the
    second group. ``stock`` is true if the consumers were stock Kafka clients.
    """

    group: str
    timeline: Timeline
    verification: Verification
    expected: Mapping[str, AirlineTotal]
    airline_names: Mapping[str, str]
    records: int
    setting: str
    steps: Sequence[tuple[str, float]] = ()
    failover_ms: int | None = None
    failover_records: int | None = None
    shared: Shared | None = None
    stock: bool = False


def render(report: RunReport) -> str:
    return page(
        f"kafka-coord demo: group {report.group}",
        *_top(report),
        _figures(report),
        _ownership(report),
        _rates(report),
        _lag(report),
        Markup("") if report.stock else _rebalances(report),
        _verification(report.verification),
        _airlines(report),
        sharing_section(report.shared, report.airline_names) if report.shared is not None else Markup(""),
        _steps(report),
    )


def _top(report: RunReport) -> tuple[Markup, ...]:
    verified = report.verification.passed
    consumers = len(report.timeline.consumers)
    return (
        tag("div", "Verified" if verified else "Not verified", class_=f"badge {'good' if verified else 'bad'}"),
        tag("h1", _headline(report)),
        tag(
            "p",
            f"{consumers} consumers in the group {report.group} consumed {report.records:,} records from "
            f"{len(report.timeline.partitions)} partitions in {report.timeline.duration_ms / 1000:.0f} seconds, "
            f"despite the events below. {report.setting}",
            class_="lead",
        ),
    )


def _headline(report: RunReport) -> str:
    if not report.verification.passed:
        return f"The run failed its verification: {report.verification.failures()[0]}"
    kinds = [event.kind for event in report.timeline.events]
    deaths = []
    if EventKind.KILLED in kinds:
        deaths.append("a consumer")
    if EventKind.COORDINATOR_KILLED in kinds:
        deaths.append("the coordinator")
    killed = f", with {' and '.join(deaths)} killed along the way" if deaths else ""
    return f"{report.records:,} records, none lost{killed}"


def _figures(report: RunReport) -> Markup:
    handovers = handovers_of(report.timeline.spans)
    clean, crashed = median_gap_ms(handovers, after_killing=False), median_gap_ms(handovers, after_killing=True)
    moved = [handover for handover in handovers if not handover.after_killing]
    cards = [(f"{report.records:,}", "records, each consumed")]
    if not report.stock:
        cards.append((f"{len(report.timeline.decisions)}", "rebalances"))
    if clean is not None:
        cards.append((_ms(clean), f"without an owner in a clean handover, median of {len(moved)}"))
    if report.failover_ms is not None:
        meanwhile = f", {report.failover_records:,} records consumed meanwhile" if report.failover_records else ""
        until = "its return" if report.stock else "its successor"
        cards.append((_ms(report.failover_ms), f"from the coordinator's kill to {until}{meanwhile}"))
    if crashed is not None:
        cards.append((_ms(crashed), "median time until a killed consumer's partitions had a new owner"))
    cards.append(
        (f"{report.verification.repeated:,}", "records repeated, all of them after the killed consumer's last commit")
    )
    return tag(
        "div",
        *(tag("div", tag("b", figure), tag("span", what), class_="figure") for figure, what in cards),
        class_="figures",
    )


def _ownership(report: RunReport) -> Markup:
    timeline = report.timeline
    rows = [
        tag(
            "tr",
            tag("td", tag("span", str(number), class_="number")),
            tag("td", f"{timeline.seconds(event.at_ms):.1f} s", class_="n"),
            tag("td", event.text),
        )
        for number, event in enumerate(timeline.events, 1)
    ]
    return section(
        "Owners of each partition over time",
        (
            f"A bar runs from {_BARS[report.stock]}, as the consumer itself recorded it. A red "
            "cross is a kill -9; the gap after it is the time until the dead consumer's session ended. A partition "
            f"that does not change its owner is never interrupted.{_PROMISE if report.stock else ''}"
        ),
        _legend(timeline),
        scroll(charts.ownership_chart(timeline)),
        scroll(tag("table", tag("tbody", *rows))),
    )


def _legend(timeline: Timeline, *, nobody: bool = False) -> Markup:
    items = [
        tag("span", tag("i", class_=charts.colour_of(timeline, consumer)), consumer) for consumer in timeline.consumers
    ]
    if nobody:
        items.append(tag("span", tag("i", class_="c-none"), "nobody"))
    return tag("div", *items, class_="legend")


def _rates(report: RunReport) -> Markup:
    about = (
        "Each consumer's pace is limited so that the run lasts long enough to watch. More consumers read more records "
        "per second."
    )
    return section("Records per second", about, _legend(report.timeline), scroll(charts.rate_chart(report.timeline)))


def _lag(report: RunReport) -> Markup:
    smalls = [tag("div", charts.lag_of_partition(report.timeline, tp)) for tp in report.timeline.partitions]
    return section(
        "Lag",
        "The records that are not committed yet, for the whole group and for each partition.",
        scroll(charts.lag_chart(report.timeline)),
        _legend(report.timeline, nobody=True),
        tag("div", *smalls, class_="smalls"),
    )


def _rebalances(report: RunReport) -> Markup:
    numbers = ("Members", "Moved", "Stopped", "Started", "Stops done", "Settled", "Epoch")
    heads = [("Generation", "n"), ("At", "n"), ("Reason", "wide"), *((head, "n") for head in numbers)]
    return section(
        "Rebalances",
        "For each decision, the group's history in ZooKeeper records the reason, the number of moved partitions, and "
        "how long it took for all stops to be acknowledged and for all partitions to have owners.",
        table(heads, [_rebalance_row(report.timeline, decision) for decision in report.timeline.decisions]),
    )


def _rebalance_row(timeline: Timeline, decision: Decision) -> list[str]:
    moves = [
        f"{consumer} {', '.join(f'{_VERBS.get(what, what)} {which}' for what, which in sorted(found.items()))}"
        for consumer, found in sorted(decision.moves.items())
    ]
    return [
        str(decision.generation),
        f"{timeline.seconds(decision.decided_at_ms):.1f} s",
        join(decision.reason, tag("div", "; ".join(moves), class_="moves")),
        *(str(number) for number in (decision.members, decision.moved, decision.stopped, decision.started)),
        _ms(decision.stopped_ms),
        _ms(decision.settled_ms),
        str(decision.epoch),
    ]


_BARS = {
    False: "a start-fetcher to a stop-fetcher command",
    True: "the moment when the client was given a partition to the moment when it was taken away",
}
_PROMISE = (
    " Stock clients are promised at-least-once delivery: an acknowledged commit is never lost, and after a crash, the "
    "records since the last commit are delivered again. A clean handover repeats none."
)
_VERBS = {"gained": "gains", "lost": "gives up"}


def _verification(verification: Verification) -> Markup:
    rows = []
    for check in verification.checks:
        sign = ("✓", "good") if check.passed else ("✗", "bad")
        wrong = [tag("div", difference, class_="bad") for difference in check.differences]
        rows.append(
            tag(
                "tr",
                tag("td", sign[0], class_=f"mark {sign[1]}"),
                tag("td", check.name, class_="wide"),
                tag("td", check.found, *wrong),
            )
        )
    return section(
        "Verification",
        "The evidence is each consumer's journal of its records, the offsets that an operator sees, and the counts of "
        "the input file.",
        scroll(tag("table", tag("tbody", *rows))),
    )


def _airlines(report: RunReport) -> Markup:
    airlines = sorted(
        side_by_side(report.verification.consumed, report.expected), key=lambda row: (-row[2].flights, row[0])
    )
    most = max((total.flights for total in report.expected.values()), default=0) or 1
    rows = []
    for code, seen, there in airlines:
        verdict = None if seen == there else "bad"
        rows.append(
            [
                report.airline_names.get(code, code),
                f"{seen.flights:,}",
                tag("span", f"{there.flights:,}", class_=verdict),
                tag("span", Markup("&#8203;"), class_="meter", style=f"width:{100 * seen.flights / most:.1f}%"),
                charts.minutes(seen.mean_delay),
                tag("span", charts.minutes(there.mean_delay), class_=verdict),
            ]
        )
    heads = (
        ("Airline", ""),
        ("Flights, from the group", "n"),
        ("from the input", "n"),
        ("", "bar-cell"),
        ("Mean arrival delay, from the group", "n"),
        ("from the input", "n"),
    )
    about = "Each record counts once. The input's numbers are next to the group's."
    return section("The group's results: flights and delays per airline", about, table(heads, rows))


def _steps(report: RunReport) -> Markup:
    if not report.steps:
        return Markup("")
    total = sum(seconds for _, seconds in report.steps)
    told = "; ".join(f"{what} {seconds:.1f} s" for what, seconds in report.steps)
    return tag("footer", f"How long it took: {told}; {total:.0f} s in all.")


def _ms(ms: int | None) -> str:
    if ms is None:
        return "-"
    return f"{ms:,} ms" if ms < 1_000 else f"{ms / 1000:.1f} s"
