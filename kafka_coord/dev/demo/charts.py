"""Draws the charts of a run as SVG with the page's colours (classes ``c0`` … for consumers)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kafka_coord.dev.demo.timeline import Ending, Span, Timeline
from kafka_coord.dev.html import Markup, join, tag
from kafka_coord.model import TopicPartition

WIDTH = 1120.0
LEFT = 92.0
RIGHT = 14.0
COLOURS = 8
"""The number of colours. The ninth consumer gets the first colour again."""

_ROW = 20.0
_BAR = 15.0
_MARKER = 9.0
_AXIS = 26.0


def colour_of(timeline: Timeline, consumer: str) -> str:
    """Returns the CSS class of a consumer's colour, which is the same in every chart."""
    return f"c{timeline.consumers.index(consumer) % COLOURS}" if consumer in timeline.consumers else "c-none"


def thousands(value: float) -> str:
    """Returns ``1,234`` (below ten thousand), ``12 k`` or ``1.5 M``."""
    if value < 10_000:
        return f"{value:,.0f}"
    return f"{value / 1000:,.0f} k" if value < 1_000_000 else f"{value / 1_000_000:,.1f} M"


def minutes(value: float | None) -> str:
    """Returns ``+12.34 min``, or a dash for None."""
    return "-" if value is None else f"{value:+.2f} min"


@dataclass(frozen=True, slots=True)
class _Frame:
    """The time axis of a chart. Maps milliseconds to x, and draws lines through all rows."""

    timeline: Timeline
    top: float
    bottom: float
    left: float = LEFT
    width: float = WIDTH - LEFT - RIGHT

    def x(self, at_ms: float) -> float:
        share = (at_ms - self.timeline.from_ms) / self.timeline.duration_ms
        return self.left + self.width * min(1.0, max(0.0, share))

    def time_axis(self) -> Markup:
        """Draws ticks at regular intervals, with light grid lines."""
        seconds = self.timeline.duration_ms / 1000
        step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if seconds / s <= 14), 1_200)
        ticks = []
        for tick in range(0, int(seconds) + 1, step):
            x = self.x(self.timeline.from_ms + tick * 1000)
            ticks.append(tag("line", x1=x, x2=x, y1=self.top, y2=self.bottom, class_="grid"))
            label = f"{tick} s" if tick == 0 or tick + step > seconds else str(tick)
            ticks.append(tag("text", label, x=x, y=self.bottom + 16, class_="tick", text_anchor="middle"))
        return join(*ticks)

    def event_lines(self, *, numbered: float | None = None) -> Markup:
        """Draws a line at each event. With ``numbered``, also draws a numbered dot at that height, or higher if two
        dots touch."""
        drawn = []
        rows = [-100.0, -100.0]
        for number, event in enumerate(self.timeline.events, 1):
            x = self.x(event.at_ms)
            title = tag("title", f"{self.timeline.seconds(event.at_ms):.1f} s: {event.text}")
            parts = [tag("line", x1=x, x2=x, y1=self.top, y2=self.bottom, class_="event")]
            if numbered is not None:
                row = 0 if x - rows[0] > 2 * _MARKER + 2 or x - rows[0] >= x - rows[1] else 1
                rows[row] = x
                y = numbered - row * (2 * _MARKER + 1)
                parts[0] = tag("line", x1=x, x2=x, y1=y, y2=self.bottom, class_="event")
                parts.append(tag("circle", cx=x, cy=y, r=_MARKER, class_="marker"))
                parts.append(tag("text", str(number), x=x, y=y + 3.5, class_="marker-text", text_anchor="middle"))
            drawn.append(tag("g", title, *parts, class_="event-mark"))
        return join(*drawn)


def _svg(height: float, description: str, *parts: str, width: float = WIDTH, class_: str = "chart") -> Markup:
    return tag(
        "svg",
        tag("title", description) if class_ != "chart" else "",
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        class_=class_,
        role="img",
        aria_label=description,
    )


def ownership_chart(timeline: Timeline) -> Markup:
    """Draws one row per partition, with a bar for each ownership, below the coordinators and the events."""
    lane, first = 46.0, 82.0
    bottom = first + _ROW * len(timeline.partitions)
    frame = _Frame(timeline, lane, bottom)
    rows = [_row_label(tp, first + at * _ROW, first_of_topic=at == 0) for at, tp in enumerate(timeline.partitions)]
    places = {tp: first + at * _ROW for at, tp in enumerate(timeline.partitions)}
    bars = [_span_bar(frame, span, places[span.partition]) for span in timeline.spans]
    return _svg(
        bottom + _AXIS,
        "Owners of each partition over time",
        frame.time_axis(),
        *rows,
        _coordinator_lane(frame, lane),
        frame.event_lines(numbered=30.0),
        *bars,
    )


def _row_label(tp: TopicPartition, y: float, *, first_of_topic: bool) -> Markup:
    label = str(tp) if first_of_topic else f"{tp.partition}"
    return tag("text", label, tag("title", str(tp)), x=LEFT - 8, y=y + _BAR - 3, class_="label", text_anchor="end")


def _span_bar(frame: _Frame, span: Span, y: float) -> Markup:
    timeline = frame.timeline
    x, end = frame.x(span.from_ms), frame.x(span.to_ms)
    width = max(1.5, end - x - 0.8)
    tooltip = (
        f"{span.partition}: {span.consumer} from {timeline.seconds(span.from_ms):.1f} s "
        f"to {timeline.seconds(span.to_ms):.1f} s, {span.records:,} records, {span.ending}"
    )
    colour = colour_of(timeline, span.consumer)
    parts = [
        tag("title", tooltip),
        tag("rect", x=x, y=y, width=width, height=_BAR, rx=2.5, class_=f"bar {colour}"),
    ]
    name = span.consumer
    if width > 7.5 * len(name) + 8:
        parts.append(tag("text", name, x=x + 6, y=y + _BAR - 4, class_="in-bar"))
    if span.ending is Ending.KILLED:
        parts.append(tag("path", d=_cross(x + width, y + _BAR / 2), class_="cross"))
    return tag("g", *parts, class_="span")


def _cross(x: float, y: float) -> str:
    return f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"


def _coordinator_lane(frame: _Frame, y: float) -> Markup:
    parts = [tag("text", "coordinator", x=LEFT - 8, y=y + _BAR - 3, class_="label", text_anchor="end")]
    for reign in frame.timeline.reigns:
        x, end = frame.x(reign.from_ms), frame.x(reign.to_ms)
        width = max(1.5, end - x - 0.8)
        name = f"beside broker {reign.broker_id}, epoch {reign.epoch}"
        drawn = [
            tag("title", f"coordinator {name}"),
            tag("rect", x=x, y=y, width=width, height=_BAR, rx=2.5, class_="reign"),
        ]
        if width > 6.4 * len(name) + 8:
            drawn.append(tag("text", name, x=x + 6, y=y + _BAR - 4, class_="in-reign"))
        parts.append(tag("g", *drawn, class_="span"))
    return join(*parts)


def rate_chart(timeline: Timeline) -> Markup:
    top, height = 14.0, 190.0
    frame = _Frame(timeline, top, top + height)
    per_s = 1000 / timeline.rate_bucket_ms
    totals = [sum(found) for found in zip(*timeline.rates.values(), strict=True)] if timeline.rates else []
    highest = max(totals, default=0) * per_s
    scale, ticks = _value_axis(frame, highest)
    bars = []
    for bucket in range(len(totals)):
        from_ms = timeline.from_ms + bucket * timeline.rate_bucket_ms
        x, end = frame.x(from_ms), frame.x(from_ms + timeline.rate_bucket_ms)
        y = top + height
        for consumer, counts in timeline.rates.items():
            if not counts[bucket]:
                continue
            tall = counts[bucket] * per_s * scale
            y -= tall
            tooltip = f"{timeline.seconds(from_ms):.0f} s: {consumer} {counts[bucket] * per_s:,.0f} records/s"
            rect = tag(
                "rect",
                tag("title", tooltip),
                x=x + 0.5,
                y=y,
                width=max(0.6, end - x - 1),
                height=max(0.3, tall - 0.7),
                class_=f"bar {colour_of(timeline, consumer)}",
            )
            bars.append(rect)
    return _svg(
        top + height + _AXIS, "Records per second by consumer", frame.time_axis(), ticks, *bars, frame.event_lines()
    )


def lag_chart(timeline: Timeline) -> Markup:
    """Draws the lag of all partitions together."""
    top, height = 14.0, 190.0
    frame = _Frame(timeline, top, top + height)
    scale, ticks = _value_axis(frame, max((sample.total_lag for sample in timeline.samples), default=0))
    points = [(frame.x(s.at_ms), top + height - s.total_lag * scale) for s in timeline.samples]
    dots = [
        tag(
            "circle",
            tag("title", f"{timeline.seconds(s.at_ms):.1f} s: {s.total_lag:,} records behind"),
            cx=x,
            cy=y,
            r=5.0,
            class_="touch",
        )
        for s, (x, y) in zip(timeline.samples, points, strict=True)
    ]
    return _svg(
        top + height + _AXIS,
        "Lag of the group over time",
        frame.time_axis(),
        ticks,
        *_area(points, top + height, "total"),
        frame.event_lines(),
        *dots,
    )


def lag_of_partition(timeline: Timeline, partition: TopicPartition) -> Markup:
    """Draws a small chart of a partition's lag, in the colour of its owner at each moment."""
    width, height = 264.0, 74.0
    frame = _Frame(timeline, 20.0, height - 4, left=2.0, width=width - 4)
    highest = max((sample.lag(partition) for sample in timeline.samples), default=0)
    scale = (frame.bottom - frame.top) / highest if highest else 0.0
    samples = [sample for sample in timeline.samples if partition in sample.ends]
    points = [(frame.x(s.at_ms), frame.bottom - s.lag(partition) * scale) for s in samples]
    owned: list[Markup] = []
    for at in range(len(points) - 1):
        owner = samples[at].owners.get(partition)
        colour = colour_of(timeline, owner) if owner else "c-none"
        owned += _area(points[at : at + 2], frame.bottom, colour)
    return _svg(
        height,
        f"Lag of {partition}, up to {highest:,} records",
        tag("line", x1=2.0, x2=width - 2, y1=frame.bottom, y2=frame.bottom, class_="grid"),
        *owned,
        frame.event_lines(),
        tag("text", str(partition), x=2.0, y=12.0, class_="small-title"),
        tag("text", f"up to {highest:,}", x=width - 2, y=12.0, class_="tick", text_anchor="end"),
        width=width,
        class_="small",
    )


def _area(points: Sequence[tuple[float, float]], bottom: float, class_: str) -> tuple[Markup, ...]:
    """Draws a line, and fills the area below it with a lighter colour."""
    if not points:
        return ()
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    below = f"M{points[0][0]:.1f} {bottom:.1f}L{line}L{points[-1][0]:.1f} {bottom:.1f}Z"
    return tag("path", d=below, class_=f"area {class_}"), tag("path", d=f"M{line}", class_=f"line {class_}")


def _value_axis(frame: _Frame, highest: float) -> tuple[float, Markup]:
    """Returns the pixels per unit and the ticks of a scale from 0 to at least ``highest``."""
    step = _nice_step(highest)
    top_value = max(step, -(-highest // step) * step)
    scale = (frame.bottom - frame.top) / top_value
    drawn = []
    for number in range(round(top_value / step) + 1):
        y = frame.bottom - number * step * scale
        drawn.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        drawn.append(tag("text", thousands(number * step), x=LEFT - 8, y=y + 4, class_="tick", text_anchor="end"))
    return scale, join(*drawn)


def _nice_step(highest: float, wanted: int = 4) -> float:
    """Returns a step of 1, 2 or 5 times a power of ten that reaches ``highest`` in about ``wanted`` steps."""
    step = 1.0
    factors: Iterable[float] = (2.0, 2.5, 2.0)
    while True:
        for factor in factors:
            if highest / step <= wanted + 1:
                return step
            step *= factor
