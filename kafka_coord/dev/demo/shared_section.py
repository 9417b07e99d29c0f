"""Writes the section of the page about the group that Spark queries and a plain consumer share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafka_coord.dev.demo.charts import minutes, thousands
from kafka_coord.dev.html import Markup, section, table, tag

if TYPE_CHECKING:
    from kafka_coord.dev.demo.sharing import Shared

_HOURS = range(24)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960.0, 190.0, 40.0, 22.0


def sharing_section(shared: Shared, airline_names: Mapping[str, str]) -> Markup:
    """Returns a section with the second group's events, its owners over time, and the pipeline's results."""
    began = shared.events[0].at_ms if shared.events else 0
    events = [[f"{(event.at_ms - began) / 1000:.1f} s", event.text] for event in shared.events]
    owned = [[when, ", ".join(f"{name} {n}" for name, n in sorted(owners.items()))] for when, owners in shared.owned]
    return section(
        "The pipeline: Spark as a member",
        f"At the same time, the group {shared.group} read the topic {shared.topic}. Its members were queries of two "
        "Spark applications and a plain Python consumer. The coordinator gave each member its partitions, and all "
        "members wrote to one parquet table, from which Spark computed the results below.",
        table([("After", "n"), ("What happened", "wide")], events),
        table([("With", ""), ("Partitions owned by each member", "wide")], owned),
        tag("h3", "Mean arrival delay by departure hour"),
        _hours(shared),
        tag("h3", "By airport"),
        table(
            [("Airport", ""), ("Flights", "n"), ("Mean arrival delay", "n")],
            [
                [key, f"{found.flights:,}", minutes(found.mean_arrival_delay)]
                for key, found in shared.report.totals("airports").items()
            ],
        ),
        tag("h3", "Busiest routes"),
        table(
            [("", "n"), ("Route", ""), ("Flights", "n"), ("Mean arrival delay", "n")],
            [
                [
                    str(row["rank"]),
                    f"{row['origin']} to {row['dest']}",
                    f"{row['flights']:,}",
                    minutes(row["arrival_delay"] / row["arrived"] if row["arrived"] else None),
                ]
                for row in shared.report.read("routes").to_pylist()
            ],
        ),
        tag("h3", "Airlines, from the table"),
        table(
            [("Airline", ""), ("Flights", "n"), ("Mean arrival delay", "n")],
            [
                [airline_names.get(code, code), f"{total.flights:,}", minutes(total.mean_delay)]
                for code, total in sorted(shared.by_airline.items(), key=lambda item: -item[1].flights)
            ],
        ),
    )


def _hours(shared: Shared) -> Markup:
    """Draws one bar per hour, whose tooltip shows the number of flights."""
    totals = shared.report.totals("hours")
    means = {hour: found.mean_arrival_delay or 0.0 for hour, found in totals.items() if hour is not None}
    highest = max((abs(mean) for mean in means.values()), default=0.0) or 1.0
    slot = (_WIDTH - _LEFT) / len(_HOURS)
    zero = _HEIGHT * 0.75
    parts: list[Any] = [tag("line", x1=_LEFT, x2=_WIDTH, y1=zero, y2=zero, class_="axis")]
    for hour in _HOURS:
        x = _LEFT + hour * slot
        parts.append(
            tag("text", str(hour), x=x + slot / 2, y=_HEIGHT + _BOTTOM - 6, class_="label", text_anchor="middle")
        )
        if hour not in means:
            continue
        height = abs(means[hour]) / highest * zero * 0.95
        told = f"{hour}:00 to {hour}:59: {means[hour]:+.1f} min, {thousands(totals[hour].flights)} flights"
        parts.append(
            tag(
                "rect",
                tag("title", told),
                x=x + 2,
                y=zero - height if means[hour] > 0 else zero,
                width=slot - 4,
                height=min(height, _HEIGHT - zero) if means[hour] <= 0 else height,
                rx=2.5,
                class_="bar c0",
            )
        )
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT + _BOTTOM:g}",
        class_="chart",
        role="img",
        aria_label="Mean arrival delay by departure hour",
    )
