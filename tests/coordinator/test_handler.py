"""Tests of one step of the handler for many groups: it reads them together, decides about each, and returns in time."""

from __future__ import annotations

import logging

import pytest

from kafka_coord.channel.operations import register_ops
from kafka_coord.coordinator.assignors import built_in_assignors
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.group_reader import GROUPS_AT_ONCE
from kafka_coord.coordinator.queue import GATHER_S, LOOK_AGAIN_S
from kafka_coord.dev.bench.group import plain_member
from kafka_coord.errors import RequestTooLarge, StoreUnavailable
from kafka_coord.model import Assignment, Request, RequestType, TopicInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.zk import layout
from kafka_coord.zk.election import Leadership
from kafka_coord.zk.store import Check
from tests.coordinator.led import Led
from tests.simulation.store import Quiet, SimulatedStore


class Counting(Quiet):
    """Counts read requests, and can cause an event before one of them."""

    def __init__(self) -> None:
        self.reads = 0
        self.lost = False

    def before_effect(self, _store: SimulatedStore, doing: str) -> None:
        if doing.startswith("read"):
            self.reads += 1
            if self.lost:
                raise StoreUnavailable("lost")


class World(Led):
    """Groups of one member each, and the handler of an elected instance."""

    def __init__(self, groups: int) -> None:
        self.requests_made = Counting()
        super().__init__("flights", 4, self.requests_made)
        self.groups = [f"g{number:02}" for number in range(groups)]
        for group in self.groups:
            self.join(group, "c1")
        self.requests_made.reads = 0

    def settle(self) -> None:
        """Steps, lets all consumers carry out their commands, and steps again."""
        self.handler.step()
        for group in self.groups:
            for command in self.store.children(layout.channel(group, "c1")):
                self.store.delete(layout.command(group, "c1", command))
        self.clock.now += 2 * LOOK_AGAIN_S
        self.handler.step()

    def ask(self, group: str) -> str:
        """Writes an operator's request for a rebalance. Returns the request's name."""
        asked = Request(RequestType.REBALANCE, group=group, reason="to see")
        path = self.store.create(layout.REQUEST_PREFIX, fields.dump(asked.to_json()), sequence=True)
        return path.rpartition("/")[2]

    def decided(self) -> list[str]:
        return [group for group in self.groups if self.store.exists(layout.assignment(group))]


def test_many_groups_are_read_with_as_many_requests_as_one() -> None:
    one, many = World(1), World(GROUPS_AT_ONCE + 4)
    assert one.handler.step()
    assert many.handler.step()
    assert many.handler.passes == GROUPS_AT_ONCE
    assert many.decided() == many.groups[:GROUPS_AT_ONCE], "the groups must be served in the order of their events"
    looks, decisions = 3, one.requests_made.reads - 3
    assert many.requests_made.reads == looks + GROUPS_AT_ONCE * decisions
    assert many.handler.step()
    assert many.decided() == many.groups


def test_decisions_about_many_groups_are_written_in_one_request() -> None:
    world = World(5)
    doings: list[str] = []
    world.requests_made.before_effect = lambda _store, doing: doings.append(doing.split()[0])  # type: ignore[method-assign,misc]
    world.handler.step()
    assert doings.count("multi") == 1
    assert world.decided() == world.groups
    assert all(world.store.children(layout.channel(group, "c1")) for group in world.groups)


def test_a_group_that_changed_in_the_meantime_does_not_prevent_the_writes_for_others() -> None:
    world = World(5)
    path = layout.assignment("g01")
    meddling = True

    def meddle(store: SimulatedStore, doing: str) -> None:
        nonlocal meddling
        if meddling and doing.startswith("multi"):
            meddling = False
            store.create(path, b"{}")

    world.requests_made.before_effect = meddle  # type: ignore[method-assign]
    world.handler.step()
    assert world.handler.failed_passes == 1
    assert "g01" in world.queue.groups_being_rebalanced
    written = [group for group in world.groups if world.store.children(layout.channel(group, "c1"))]
    assert written == ["g00", "g02", "g03", "g04"]


@pytest.mark.parametrize("trouble", [RequestTooLarge("together it is too much"), ValueError("a defect")])
def test_decisions_that_cannot_be_written_together_are_written_one_by_one(trouble: Exception) -> None:
    world = World(5)
    refusing = True

    def refuse(_store: SimulatedStore, doing: str) -> None:
        nonlocal refusing
        if refusing and doing.startswith("multi"):
            refusing = False
            raise trouble

    world.requests_made.before_effect = refuse  # type: ignore[method-assign]
    world.handler.step()
    assert world.decided() == world.groups
    assert world.handler.failed_passes == 0


def test_a_write_for_many_groups_whose_reply_was_lost_is_not_repeated() -> None:
    world = World(5)
    losing = True

    def lose(_store: SimulatedStore, doing: str) -> None:
        nonlocal losing
        if losing and doing.startswith("multi"):
            losing = False
            raise StoreUnavailable("lost")

    world.requests_made.before_reply = lose  # type: ignore[method-assign]
    world.handler.step()
    assert world.handler.failed_passes == 5
    world.clock.now += 1.0
    world.handler.step()
    for group in world.groups:
        assert len(world.store.children(layout.channel(group, "c1"))) == 1, "the member must get one start"
        assert fields.load(world.store.get(layout.assignment(group)).data, "here")["generation"] == 1


def test_a_refused_request_is_not_carried_out_later_if_the_refusals_reply_was_lost() -> None:
    world = World(1)
    world.settle()
    (group,) = world.groups
    asked = Request(RequestType.EVICT, group=group, consumer="c2")
    path = world.store.create(layout.REQUEST_PREFIX, fields.dump(asked.to_json()), sequence=True)
    world.requests.load([path.rpartition("/")[2]])
    losing = True

    def lose(_store: SimulatedStore, doing: str) -> None:
        nonlocal losing
        if losing and doing.startswith("multi"):
            losing = False
            raise StoreUnavailable("lost")

    world.requests_made.before_reply = lose  # type: ignore[method-assign]
    world.queue.request(group)
    world.handler.step()
    assert b"c2 is not a member" in world.store.get(path).data

    world.join(group, "c2")
    for _ in range(3):
        world.clock.now += 1.0
        world.handler.step()
    assert world.store.exists(layout.registration(group, "c2")) is not None
    assert world.store.get(path).stat.version == 1, "the request must be answered once"
    assert world.store.children(layout.channel(group, "c1")), "c1 must be told to stop the partitions that c2 gets"


def test_a_new_consumer_costs_one_more_read() -> None:
    world = World(1)
    world.handler.step()
    (group,) = world.groups
    world.store.ensure_path(layout.channel(group, "c2"))
    world.store.multi(register_ops(group, "c2", plain_member(group, "flights", "c2").registration_value(world.store)))
    world.store.delete(layout.registration(group, "c1"))
    world.queue.request(group)
    world.requests_made.reads = 0

    world.handler.step()

    assert world.requests_made.reads == 2 + 1, "one read each for the group, for c2, and for its start offsets"
    (command,) = world.store.children(layout.channel(group, "c2"))
    assert command.startswith("start-"), "c2 must start the partitions of c1, which is gone"
    assert world.store.exists(layout.ledger(group, "c1")) is None


def test_a_group_with_outstanding_commands_waits_for_an_event_or_its_next_pass() -> None:
    world = World(1)
    world.handler.step()
    (group,) = world.groups
    assert group not in world.queue.groups_being_rebalanced, "before the acknowledgement, there is nothing to decide"
    (command,) = world.store.children(layout.channel(group, "c1"))
    due = world.queue.next_due()
    assert due is not None
    assert due - world.clock.monotonic() == pytest.approx(LOOK_AGAIN_S)

    world.store.delete(layout.command(group, "c1", command))
    while world.store.has_notification():
        world.store.deliver()

    assert group in world.queue.groups_being_rebalanced, "an acknowledgement must cause a pass at once"


def test_one_pass_handles_acknowledgements_that_arrive_together() -> None:
    world = World(1)
    (group,) = world.groups
    world.join(group, "c2")
    world.handler.step()

    for consumer, is_last in (("c1", False), ("c2", True)):
        (command,) = world.store.children(layout.channel(group, consumer))
        world.store.delete(layout.command(group, consumer, command))
        while world.store.has_notification():
            world.store.deliver()
        assert (group in world.queue.groups_being_rebalanced) is is_last
        due = world.queue.next_due()
        assert due is not None
        assert due - world.clock.monotonic() <= GATHER_S


def test_the_history_has_the_duration_of_the_stops() -> None:
    world = World(1)
    (group,) = world.groups
    world.settle()
    world.join(group, "c2")
    for _ in range(4):
        world.handler.step()
        world.clock.now += 1.0
        for consumer in ("c1", "c2"):
            for command in world.store.children(layout.channel(group, consumer)):
                world.store.delete(layout.command(group, consumer, command))
        world.queue.request(group)
    *_, last = Trail.from_json(fields.load(world.store.get(layout.history(group)).data, "here"), "here").decisions
    assert (last.generation, last.stopped_ms, last.settled_ms) == (2, 2_000, 2_000)


def test_the_reason_why_a_group_waits_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    (group,) = world.groups
    world.settle()
    world.join(group, "c2")
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            world.queue.request(group)
            world.handler.step()
    said = [message for message in caplog.messages if "waiting" in message]
    assert len(said) == len(set(said)) >= 1, said


def test_a_group_comes_to_rest_despite_frequent_passes_and_its_state_stays_known() -> None:
    world = World(1)
    (group,) = world.groups
    world.settle()
    for _ in range(3):
        world.queue.request(group)
        world.handler.step()
        world.clock.now += 0.6 * CoordinatorOptions().settled_after_ms / 1000
    assert world.store.exists(layout.settled(group)) is not None

    known, world.requests_made.reads = world.handler.outcomes[group], 0
    world.clock.now += CoordinatorOptions().look_interval_ms / 1000
    world.handler.step()
    assert world.requests_made.reads == 1
    assert world.handler.outcomes[group] == known


def test_a_group_at_rest_with_an_event_does_not_wait_behind_later_events() -> None:
    world = World(2)
    world.settle()
    at_rest, active = world.groups
    world.handler.step()
    while world.queue.take_now() is not None:
        pass
    reader = world.handler._reader
    reader._may_be_idle = lambda group: group == at_rest  # type: ignore[method-assign]
    for group in (at_rest, active):
        world.queue.request(group)

    batch = reader.take(0)
    assert batch is not None
    assert [memory.group for memory in batch.memories] == [at_rest]
    world.queue.request("later")
    assert world.queue.take_now() == active


def test_a_group_that_cannot_be_decided_yet_gets_another_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    (group,) = world.groups
    monkeypatch.setattr("kafka_coord.coordinator.decision_writer.match_patterns", lambda *_: False)
    world.handler.step()
    assert group in world.queue.groups_being_rebalanced
    monkeypatch.undo()
    world.handler.step()
    assert world.decided() == [group]


def test_a_decision_that_moves_no_partition_takes_one_read_and_one_write() -> None:
    world = World(1)
    (group,) = world.groups
    world.settle()
    world.requests.load([world.ask(group)])
    while world.handler.step():
        pass
    world.queue.request(group)
    world.requests_made.reads = 0

    world.handler.step()

    assert world.requests_made.reads == 1, "the coordinator must not read the history that it wrote itself"
    found = Trail.from_json(fields.load(world.store.get(layout.history(group)).data, "here"), "here").decisions
    assert [(one.generation, one.settled_ms is not None) for one in found] == [(1, True), (2, True)]
    assert group not in world.queue.groups_being_rebalanced


def test_a_history_that_another_client_wrote_is_read_again() -> None:
    world = World(1)
    world.handler.step()
    (group,) = world.groups
    node = world.store.get(layout.history(group))
    world.store.set(layout.history(group), node.data)
    for command in world.store.children(layout.channel(group, "c1")):
        world.store.delete(layout.command(group, "c1", command))
    for _ in range(3):
        world.clock.now += 2 * LOOK_AGAIN_S
        world.handler.step()
    (decision,) = Trail.from_json(fields.load(world.store.get(layout.history(group)).data, "here"), "here").decisions
    assert decision.settled_ms is not None


def test_a_topic_that_grows_during_a_groups_first_pass_is_not_missed() -> None:
    world = World(1)
    (group,) = world.groups

    def grow(_store: SimulatedStore, doing: str) -> None:
        if doing.startswith("read") and len(world.catalog.topics["flights"].partitions) == 4:
            world.catalog.put(TopicInfo("flights", frozenset(range(6)), "id-1"))
            assert not world.registry.groups_for_topic("flights"), "the registry must not have the subscription yet"

    world.requests_made.before_effect = grow  # type: ignore[method-assign]
    world.handler.step()
    assert group in world.queue.groups_being_rebalanced
    world.handler.step()
    written = world.store.get(layout.assignment(group)).data
    target = Assignment.from_json(fields.load(written, "here"), "here", znode_version=0)
    assert target.members["c1"].of_topic("flights") == frozenset(range(6))


def test_a_group_with_a_second_event_during_the_step_gets_another_pass() -> None:
    world = World(3)
    take_now, taken = world.queue.take_now, []

    def take_and_ask_again() -> str | None:
        group = take_now()
        if group == "g01" and group not in taken:
            world.queue.request("g01")
        taken.append(group)
        return group

    world.queue.take_now = take_and_ask_again  # type: ignore[method-assign]
    world.handler.step()
    assert world.handler.passes == 3
    assert "g01" in world.queue.groups_being_rebalanced


def test_groups_that_could_not_be_read_are_read_again_later() -> None:
    world = World(3)
    world.requests_made.lost = True
    assert world.handler.step()
    assert world.handler.failed_passes == 3
    assert world.decided() == []
    due = world.queue.next_due()
    assert due is not None
    assert due - world.clock.monotonic() == pytest.approx(CoordinatorOptions().retry_backoff_ms / 1000)
    world.requests_made.lost = False
    world.clock.now += 1.0
    world.handler.step()
    assert world.decided() == world.groups


def test_a_handler_that_no_longer_leads_decides_nothing() -> None:
    world = World(3)
    plain = world.requests_made.before_effect

    def deposed(store: SimulatedStore, doing: str) -> None:
        plain(store, doing)
        world.leads = world.requests_made.reads < 2

    world.requests_made.before_effect = deposed  # type: ignore[method-assign]
    world.handler.step()
    assert world.decided() == []
    assert all(group in world.queue.groups_being_rebalanced for group in world.groups), "they must stay in the queue"


def test_a_new_coordinator_decides_about_a_request_with_two_reads_and_one_write() -> None:
    before = World(1)
    (group,) = before.groups
    before.settle()
    before.ask(group)
    coordinator = elected(before)
    coordinator.coordinator_startup()
    doings: list[str] = []
    before.requests_made.before_effect = lambda _store, doing: doings.append(doing.split()[0])  # type: ignore[method-assign,misc]

    coordinator.handler.step()

    assert doings[:3] == ["read", "read", "multi"], "the second reads what the group remembers of its subscriptions"
    found = Trail.from_json(fields.load(before.store.get(layout.history(group)).data, "here"), "here").decisions
    assert [one.generation for one in found] == [1, 2], "the entries of the other coordinator must be kept"


def elected(world: World) -> ConsumerCoordinator:
    world.store.ensure_path(layout.BROKER_TOPICS)
    world.store.ensure_path(layout.broker_topic("flights"))
    world.store.set(layout.broker_topic("flights"), b'{"version":2,"partitions":{"0":[1],"1":[1],"2":[1],"3":[1]}}')
    leadership = Leadership(1, Check(layout.COORDINATOR_EPOCH), world.store.session.session_id)
    return ConsumerCoordinator(
        world.store, leadership, lambda: True, lambda: None, built_in_assignors(), CoordinatorOptions()
    )


def test_a_startup_that_cannot_read_a_topic_fails() -> None:
    world = World(1)
    coordinator = elected(world)

    def lose(_store: SimulatedStore, doing: str) -> None:
        if layout.broker_topic("flights") in doing:
            raise StoreUnavailable("lost")

    world.requests_made.before_effect = lose  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="topics and groups"):
        coordinator.coordinator_startup()


def test_a_startup_takes_as_many_requests_for_many_groups_as_for_one() -> None:
    asked = []
    for groups in (1, 30):
        world = World(groups)
        world.store.ensure_path(layout.broker(1))
        coordinator = elected(world)
        doings: list[str] = []
        world.requests_made.before_effect = lambda _store, doing, doings=doings: doings.append(doing)  # type: ignore[method-assign,misc]
        coordinator.coordinator_startup()
        assert coordinator.groups == set(world.groups)
        assert len(coordinator.queue) == groups
        assert coordinator.registry.groups_for_topic("flights") == set(world.groups)
        asked.append(len(doings))
    # watches of the roots (children, then data); brokers; watches of groups and topics; the topic; the members
    assert asked[0] == asked[1] == 7, "each request would delay the first decision"
