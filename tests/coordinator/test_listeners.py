"""Tests of which groups the pause of all groups, and its end, enqueue. No I/O."""

from __future__ import annotations

from types import SimpleNamespace

from kafka_coord.coordinator.listeners import PauseListener
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.zk.store import Node, Stat


class StandingClock:
    def monotonic(self) -> float:
        return 0.0

    def time(self) -> float:
        return 0.0


def node() -> Node:
    return Node(b"{}", Stat(*([0] * len(Stat.__annotations__))))


def taken(queue: RebalanceRequestQueue) -> set[str]:
    found: set[str] = set()
    while (group := queue.take_now()) is not None:
        found.add(group)
    return found


def test_the_beginning_and_the_end_of_the_pause_enqueue_every_group():
    queue = RebalanceRequestQueue(StandingClock())
    listener = PauseListener(SimpleNamespace(groups={"a", "b"}), queue, set)
    listener.on_data(None)
    assert taken(queue) == set()
    listener.on_data(node())
    assert taken(queue) == {"a", "b"}
    listener.on_data(None)
    assert taken(queue) == {"a", "b"}


def test_an_unobserved_pause_enqueues_the_groups_that_may_have_seen_it():
    queue = RebalanceRequestQueue(StandingClock())
    listener = PauseListener(SimpleNamespace(groups={"a", "b", "c"}), queue, lambda: {"b"})
    listener.on_data(None)
    listener.on_data(None)
    assert taken(queue) == {"b"}
