"""Exports rebalances as OpenTelemetry traces: the event, the decision, and each command until it is acknowledged.

Needs the extra ``otel``. docs/observability.md lists the names of spans and attributes.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span

from kafka_coord import __version__
from kafka_coord.coordinator.decision_writer import PreparedPlan
from kafka_coord.coordinator.execute import NewCommands
from kafka_coord.coordinator.steps import SetTarget, WriteLedgerAndCommands
from kafka_coord.model import Decision, parse_command_id
from kafka_coord.zk.store import Clock

log = logging.getLogger(__name__)

MAX_TEXT = 500


class Tracing:
    """Exports traces over OTLP (HTTP) on a thread of its own. The standard ``OTEL_*`` variables configure it."""

    def __init__(self, broker_id: int) -> None:
        own = {"service.name": "kafka-coord", "service.version": __version__, "service.instance.id": str(broker_id)}
        resource = Resource.create().merge(Resource(own)).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def observer(self, clock: Clock) -> RebalanceTracer:
        return RebalanceTracer(self._provider, clock)

    def close(self) -> None:
        """Exports the remaining spans, which takes up to ``OTEL_EXPORTER_OTLP_TIMEOUT``."""
        self._provider.shutdown()


@dataclass(slots=True)
class _Rebalance:
    """A decision that has not settled. ``commands`` maps the consumer and name of each unacknowledged command to its
    span and start time. ``began_ns`` is the time (ns since 1970) when the monotonic clock was 0, fixed for the whole
    trace so that its times are consistent."""

    root: Span
    context: Context
    began_ns: int
    commands: dict[tuple[str, str], tuple[Span, int]] = field(default_factory=dict)

    def ns(self, moment: float) -> int:
        """Converts monotonic seconds to nanoseconds since 1970."""
        return self.began_ns + round(moment * 1e9)


class RebalanceTracer:
    """Traces each rebalance that this instance decides on. A trace ends when the rebalance settles, when a newer
    decision replaces it, or when the leadership ends. Does not trace decisions made by earlier coordinators."""

    def __init__(self, provider: trace.TracerProvider, clock: Clock) -> None:
        self._tracer = provider.get_tracer("kafka_coord", __version__)
        self._clock = clock
        self._open: dict[str, _Rebalance] = {}

    def written(self, plan: PreparedPlan, commands: NewCommands) -> None:
        try:
            self._written(plan, commands)
        except Exception:
            self._open.pop(plan.memory.group, None)
            log.exception("cannot trace the rebalance group=%s", plan.memory.group)

    def interrupted(self) -> None:
        for group in list(self._open):
            self._end(group, "the leadership ended")

    def _written(self, plan: PreparedPlan, commands: NewCommands) -> None:
        group = plan.memory.group
        rebalance = self._open.get(group)
        if rebalance is not None:
            self._acknowledge(rebalance, plan)
        decision = plan.decision
        if decision is not None and any(isinstance(step, SetTarget) for step in plan.plan.steps):
            self._end(group, f"replaced by generation {decision.generation}")
            rebalance = self._begin(plan, decision)
        if rebalance is None:
            return
        for path in commands:
            *_, consumer, name = path.split("/")
            rebalance.commands[consumer, name] = self._command(rebalance, plan, consumer, name)
        if decision is not None and decision.settled_ms is not None:
            self._end(group, "settled")

    def _begin(self, plan: PreparedPlan, decision: Decision) -> _Rebalance:
        memory = plan.memory
        began_ns = time.time_ns() - round(self._clock.monotonic() * 1e9)
        began = _began(plan)
        root = self._tracer.start_span(
            "rebalance",
            Context(),
            start_time=began_ns + round(began * 1e9),
            attributes={
                "kafka_coord.group": memory.group,
                "kafka_coord.generation": decision.generation,
                "kafka_coord.epoch": decision.epoch,
                "kafka_coord.causes": [str(cause) for cause in decision.causes],
                "kafka_coord.reason": decision.reason,
                "kafka_coord.assignor": decision.assignor,
                "kafka_coord.members": decision.members,
                "kafka_coord.partitions": decision.partitions,
                "kafka_coord.moved_partitions": decision.moved,
            },
        )
        rebalance = self._open[memory.group] = _Rebalance(root, trace.set_span_in_context(root, Context()), began_ns)
        if memory.requested is not None:
            self._tracer.start_span("wait", rebalance.context, start_time=rebalance.ns(began)).end(
                rebalance.ns(memory.taken)
            )
        decide = self._tracer.start_span("decide", rebalance.context, start_time=rebalance.ns(memory.taken))
        decide.end(rebalance.ns(self._clock.monotonic()))
        return rebalance

    def _command(self, rebalance: _Rebalance, plan: PreparedPlan, consumer: str, name: str) -> tuple[Span, int]:
        command_id = parse_command_id(name)
        kind = str(command_id.type) if command_id is not None else name
        partitions = [
            str(command.partitions)
            for step in plan.plan.steps
            if isinstance(step, WriteLedgerAndCommands) and step.ledger.consumer == consumer
            for command in step.commands
            if str(command.type) == kind
        ]
        now = rebalance.ns(self._clock.monotonic())
        span = self._tracer.start_span(
            kind,
            rebalance.context,
            start_time=now,
            attributes={
                "kafka_coord.consumer": consumer,
                "kafka_coord.command": name,
                "kafka_coord.command_partitions": " ".join(partitions)[:MAX_TEXT],
            },
        )
        return span, now

    def _acknowledge(self, rebalance: _Rebalance, plan: PreparedPlan) -> None:
        """Ends the spans of commands whose znodes no longer exist."""
        seen = plan.snapshot.observation
        outstanding = {(c, one.name) for c, channel in seen.channels.items() for one in channel.commands}
        at = rebalance.ns(_began(plan))
        for key in rebalance.commands.keys() - outstanding:
            span, written = rebalance.commands.pop(key)
            span.set_attribute("kafka_coord.acknowledged", key[0] in seen.members)
            span.end(max(at, written))  # the acknowledgement may arrive before the write's response

    def _end(self, group: str, why: str) -> None:
        rebalance = self._open.pop(group, None)
        if rebalance is None:
            return
        now = rebalance.ns(self._clock.monotonic())
        for span, _ in rebalance.commands.values():
            span.set_attribute("kafka_coord.acknowledged", False)
            span.end(now)
        rebalance.root.set_attribute("kafka_coord.ended", why)
        rebalance.root.end(now)


def _began(plan: PreparedPlan) -> float:
    """Returns the time of the event that caused the pass (monotonic seconds), or the start of the pass if there was no
    event."""
    return plan.memory.taken if plan.memory.requested is None else plan.memory.requested
