"""Tests of rebalances as OpenTelemetry traces, as the SDK exports them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kafka_coord.model import Cause
from tests.coordinator.conftest import world
from tests.coordinator.harness import Instance, World
from tests.waiting import eventually

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kafka_coord.monitor.tracing import RebalanceTracer

__all__ = ["world"]

pytestmark = pytest.mark.zookeeper

Spans = Sequence[ReadableSpan]


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


@pytest.fixture
def traced(world: World, exported: InMemorySpanExporter) -> Instance:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    instance = world.instance(1)
    instance.service._observer = RebalanceTracer(provider, instance.store.clock)
    return instance.start_elected()


def said(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("kafka_coord."): value for name, value in (span.attributes or {}).items()}


def roots(exported: InMemorySpanExporter) -> list[ReadableSpan]:
    return [one for one in exported.get_finished_spans() if one.parent is None]


def children(exported: InMemorySpanExporter, root: ReadableSpan) -> list[ReadableSpan]:
    found = [one for one in exported.get_finished_spans() if one.parent and one.parent.span_id == root.context.span_id]
    return sorted(found, key=lambda one: one.start_time or 0)


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def test_a_trace_has_the_event_the_decision_and_every_command_until_its_acknowledgement(
    world: World, traced: Instance, exported: InMemorySpanExporter
) -> None:
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    eventually(lambda: len(roots(exported)) == 1)
    exported.clear()

    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    (root,) = eventually(lambda: roots(exported))

    assert root.name == "rebalance"
    told = said(root)
    assert {name: told[name] for name in ("group", "generation", "epoch", "members", "partitions")} == {
        "group": "delays",
        "generation": 2,
        "epoch": 1,
        "members": 2,
        "partitions": 4,
    }
    assert told["causes"] == (Cause.MEMBER_JOINED,)
    assert (told["moved_partitions"], told["ended"]) == (2, "settled")
    spans = children(exported, root)
    assert [one.name for one in spans] == ["wait", "decide", "stop-fetcher", "start-fetcher"]
    wait, decide, stop, start = spans
    assert (said(stop)["consumer"], said(start)["consumer"]) == ("c1", "c2")
    assert said(stop)["command_partitions"] == said(start)["command_partitions"] != ""
    assert all(said(one)["acknowledged"] for one in (stop, start))
    begins, ends = times(root)
    assert begins == times(wait)[0]
    assert times(wait)[1] == times(decide)[0]
    assert times(decide)[1] <= times(stop)[0] <= times(stop)[1] <= times(start)[0] <= times(start)[1] <= ends
    assert {one.context.trace_id for one in spans} == {root.context.trace_id}


def test_a_newer_decision_and_the_end_of_the_leadership_end_a_trace(
    world: World, traced: Instance, exported: InMemorySpanExporter
) -> None:
    world.consumer("c1", obedient=False).join()
    eventually(world.outstanding)
    world.consumer("c2").join()
    (first,) = eventually(lambda: roots(exported))
    assert said(first)["ended"] == "replaced by generation 2"
    assert [said(one).get("acknowledged") for one in children(exported, first)][-1] is False

    traced.stop()
    second = roots(exported)[-1]
    assert said(second)["ended"] == "the leadership ended"
