"""Tests that a request is answered once. An answered request is not carried out again, even if the reply to its
answer was lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_coord.coordinator.assignors import built_in_assignors
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.execute import Decided, Executor
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.errors import StoreUnavailable
from kafka_coord.model import Request, RequestType, TopicInfo, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, Delete, Op, SetData, Store
from tests.coordinator.led import Led
from tests.coordinator.plan.world import World as PlannedWorld
from tests.simulation.scheduler import VirtualClock
from tests.simulation.store import Quiet, SimulatedStore, connected_store

GROUP, TOPIC = "delays", "flights"


class Losing(Quiet):
    """Loses the reply to the next write for which ``loses`` returns true, although the write takes effect."""

    def __init__(self) -> None:
        self.loses: Callable[[str], bool] = lambda _: False
        self.lost = 0

    def before_reply(self, _store: SimulatedStore, doing: str) -> None:
        if doing.startswith("multi") and self.loses(doing):
            self.loses = lambda _: False
            self.lost += 1
            raise StoreUnavailable("the reply was lost")


def ask(store: Store, request: Request) -> str:
    """Writes the request, and returns its path."""
    return store.create(layout.REQUEST_PREFIX, fields.dump(request.to_json()), sequence=True)


def read(store: Store, path: str) -> Request:
    return Request.from_json(fields.load(store.get(path).data, path), path)


class World(Led):
    """A group with a topic of ``partitions`` partitions, each with the committed offset 100."""

    def __init__(self, partitions: int) -> None:
        self.network = Losing()
        super().__init__(TOPIC, partitions, self.network)
        self.partitions = range(partitions)
        self.store.ensure_path(layout.ids(GROUP))
        self.store.ensure_path(layout.channels(GROUP))
        self.store.ensure_path(layout.topic_offsets(GROUP, TOPIC))
        for partition in self.partitions:
            self.store.create(layout.offset(GROUP, TOPIC, partition), b"100")

    def ask(self, request: Request) -> str:
        """Writes the request, and lets the coordinator read it. Returns its path."""
        path = ask(self.store, request)
        self.requests.load(self.store.children(layout.REQUESTS))
        self.queue.request(GROUP)
        return path

    def settle(self, seconds: float = 30.0) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            while self.handler.step():
                pass
            for consumer in self.store.children(layout.channels(GROUP)):
                for command in self.store.children(layout.channel(GROUP, consumer)):
                    self.store.delete(layout.command(GROUP, consumer, command))
            self.clock.now += 0.5

    def offsets(self) -> set[bytes]:
        return {self.store.get(layout.offset(GROUP, TOPIC, partition)).data for partition in self.partitions}


def reset_of(world: World, offset: int = 7) -> Request:
    offsets = {TopicPartition(TOPIC, partition): offset for partition in world.partitions}
    return Request(RequestType.RESET_OFFSETS, group=GROUP, offsets=offsets)


def test_a_refusal_whose_reply_was_lost_stays_the_answer_when_the_request_becomes_possible() -> None:
    world = World(2)
    world.join(GROUP, "c1")
    world.settle()
    world.network.loses = lambda doing: layout.REQUESTS in doing
    path = world.ask(reset_of(world))
    for _ in range(100):
        if not world.network.lost:
            world.clock.now += 0.1
            world.handler.step()
    assert world.network.lost == 1
    assert read(world.store, path).result == "refused"

    world.store.delete(layout.registration(GROUP, "c1"))
    world.queue.request(GROUP)
    world.settle()

    assert read(world.store, path).result == "refused"
    assert world.offsets() == {b"100"}


def test_a_reset_in_several_parts_writes_no_offset_once_it_is_answered() -> None:
    world = World(2_500)
    path = world.ask(reset_of(world))
    answered = fields.dump({**read(world.store, path).to_json(), "result": "refused", "message": "no"})
    world.store.set(path, answered)

    world.settle()

    assert world.store.get(path).data == answered
    assert world.offsets() == {b"100"}
    next_request = world.ask(reset_of(world, 9))
    world.settle()
    assert read(world.store, next_request).result == "done", "an answered request must not delay later ones"


@pytest.mark.parametrize("lost", range(3))
def test_a_reset_in_several_parts_whose_replies_are_lost_is_completed_and_then_answered(lost: int) -> None:
    world = World(2_500)
    path = world.ask(reset_of(world))
    parts = iter(range(10))
    world.network.loses = lambda doing: layout.topic_offsets(GROUP, TOPIC) in doing and next(parts) == lost

    world.settle()

    assert world.network.lost == 1
    assert read(world.store, path).result == "done"
    assert world.offsets() == {b"7"}


def test_a_withdrawn_request_does_not_delay_later_ones() -> None:
    world = World(2)
    world.store.delete(world.ask(reset_of(world)))
    later = world.ask(Request(RequestType.LOOK, group=GROUP))
    world.settle()
    assert read(world.store, later).result == "done"
    assert world.offsets() == {b"100"}


def test_each_eviction_is_written_together_with_its_answer() -> None:
    world = PlannedWorld()
    world.topic(TOPIC, 8)
    for consumer in ("c1", "c2", "c3", "c4"):
        world.join(consumer, rejoin_grace_ms=60_000)
    world.join("c5")
    world.join("c6")
    world.settle()
    for consumer in ("c1", "c2", "c5", "c6"):
        world.leave(consumer)
    world.join("c6")
    world.bad_registrations.add("c6")  # the registration's incarnation differs from that in the ledger
    asked = {c: world.ask(type=RequestType.EVICT, consumer=c) for c in ("c4", "c2", "c6", "c3", "c5", "c1")}
    observation = world.observe()
    store = Led(TOPIC, 4).store

    units = Executor(store, Check(layout.COORDINATOR_EPOCH)).prepare(
        Decided(plan(observation, built_in_assignors()), observation)
    )

    for consumer, request in asked.items():
        answered = layout.request(request.request_id)
        (unit,) = [unit for unit in units for op in unit if _answers(op, answered)]
        gone = {layout.registration(world.observe().group, consumer), layout.ledger(world.observe().group, consumer)}
        assert any(isinstance(op, Delete) and op.path in gone for op in unit), consumer


def _answers(op: Op, path: str) -> bool:
    return isinstance(op, SetData) and op.path == path


@pytest.mark.parametrize("lost", [True, False])
def test_a_coordinator_resigns_after_its_answer_even_if_the_answers_reply_was_lost(lost: bool) -> None:
    clock, network = VirtualClock(), Losing()
    store = connected_store(clock=clock, around=network, timeout_ms=600_000)
    service = CoordinatorService(store, 1, options=CoordinatorOptions(resign_pause_ms=60_000))
    resigned = []

    def turn() -> None:
        clock.now += 0.5
        while store.has_notification():
            store.deliver()
        store.heartbeat()
        service.turn()
        resigned.append(service.leadership is None)

    for _ in range(5):
        turn()
    assert service.leads
    path = ask(store, Request(RequestType.RESIGN))
    network.loses = lambda doing: lost and layout.REQUESTS in doing
    doings: list[str] = []
    network.before_effect = lambda _store, doing: doings.append(doing)  # type: ignore[method-assign]
    for _ in range(5):
        turn()

    assert network.lost == lost
    assert not any(doing.endswith(layout.COORDINATOR_EPOCH) for doing in doings), "no read may delay the next election"
    assert resigned[-1]
    assert read(store, path).message == "coordinator 1 resigned from epoch 1"


def test_a_reset_keeps_what_came_after_a_registration_that_the_group_does_not_remember_yet() -> None:
    """The topic was created after the registration, so none of its records is skipped."""
    world = World(3)
    for partition in world.partitions:
        world.store.delete(layout.offset(GROUP, TOPIC, partition))
    world.store.delete(layout.topic_offsets(GROUP, TOPIC))
    world.join(GROUP, "c1")
    world.catalog.put(TopicInfo(TOPIC, frozenset(world.partitions), "id-1", former_identity=str(1 << 40)))
    first = world.partitions[0]
    path = world.ask(Request(RequestType.RESET_OFFSETS, group=GROUP, offsets={TopicPartition(TOPIC, first): 7}))
    world.settle()
    assert read(world.store, path).result == "done"
    assert world.store.get(layout.topic_offsets(GROUP, TOPIC)).data == b"id-1 0"
