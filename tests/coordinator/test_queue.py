"""Tests of the rebalance request queue: no event is lost or duplicated, and no group starves."""

import threading

from kafka_coord.coordinator.queue import CALM_EVERY, RebalanceRequestQueue
from kafka_coord.zk import SystemClock
from tests.coordinator.clock import ManualClock
from tests.waiting import eventually


def taken(queue: RebalanceRequestQueue) -> list[str]:
    groups = []
    while (group := queue.take_now()) is not None:
        groups.append(group)
    return groups


def test_many_events_of_one_group_make_one_entry():
    queue = RebalanceRequestQueue(ManualClock())
    for _ in range(5):
        queue.request("delays")
    assert taken(queue) == ["delays"]


def test_an_event_during_a_pass_enqueues_the_group_again():
    queue = RebalanceRequestQueue(ManualClock())
    queue.request("delays")
    assert queue.take_now() == "delays"
    assert "delays" not in queue.groups_being_rebalanced
    queue.request("delays")  # arrives during the pass
    assert taken(queue) == ["delays"]


def test_a_busy_group_is_enqueued_behind_the_others():
    queue = RebalanceRequestQueue(ManualClock())
    queue.request("busy")
    queue.request("quiet")
    assert queue.take_now() == "busy"
    queue.request("busy")
    assert taken(queue) == ["quiet", "busy"]


def test_a_timer_requests_its_group_when_due_and_the_earliest_wins():
    clock = ManualClock()
    queue = RebalanceRequestQueue(clock)
    queue.request_at("delays", clock.now + 10)
    queue.request_at("delays", clock.now + 2)
    queue.request_at("delays", clock.now + 5)
    assert queue.take_now() is None
    assert queue.next_due() == clock.now + 2
    clock.advance(2)
    assert taken(queue) == ["delays"]
    clock.advance(20)
    assert taken(queue) == []


def test_a_waiting_taker_is_woken_by_a_request_and_by_close():
    queue = RebalanceRequestQueue(SystemClock())
    found: list[str | None] = []
    taker = threading.Thread(target=lambda: found.extend([queue.take(30)]) or found.extend([queue.take(30)]))
    taker.start()
    queue.request("delays")
    eventually(lambda: found == ["delays"])
    queue.close()
    taker.join(10)
    assert found == ["delays", None]


def test_concurrent_requests_are_not_lost():
    queue = RebalanceRequestQueue(ManualClock())
    names = [f"g{n}" for n in range(200)]
    threads = [threading.Thread(target=lambda: [queue.request(n) for n in names]) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen: set[str] = set()
    while any(t.is_alive() for t in threads) or len(queue):
        group = queue.take_now()
        if group is not None:
            seen.add(group)
    for thread in threads:
        thread.join()
    assert seen == set(names)


def test_groups_due_by_time_wait_behind_groups_with_events_except_for_every_eighth():
    clock = ManualClock()
    queue = RebalanceRequestQueue(clock)
    for number in range(2):
        queue.request_at(f"calm-{number}", clock.now + 1)
    clock.advance(2)
    for number in range(10):
        queue.request(f"event-{number}")
    found = []
    while (group := queue.take_now()) is not None:
        found.append(group)
        assert queue.last_was_calm == group.startswith("calm")
    assert found[:7] == [f"event-{number}" for number in range(7)]
    assert found[CALM_EVERY - 1] == "calm-0"
    assert found[-1] == "calm-1"
    assert len(found) == 12


def test_groups_at_rest_are_calm_until_an_event():
    queue = RebalanceRequestQueue(ManualClock())
    for group in ("a", "b", "c"):
        queue.request(group)
    queue.calm({"a", "b", "not there"})
    queue.request("b")
    assert [(queue.take_now(), queue.last_was_calm) for _ in range(3)] == [("c", False), ("b", False), ("a", True)]
    assert queue.take_now() is None


def test_a_calm_group_that_is_put_back_stays_calm_unless_an_event_happens():
    clock = ManualClock()
    queue = RebalanceRequestQueue(clock)
    queue.put_back("a")
    assert (queue.take_now(), queue.last_was_calm) == ("a", True)
    queue.request("a")
    queue.put_back("a")
    assert (queue.take_now(), queue.last_was_calm) == ("a", False)
    assert queue.take_now() is None
    queue.put_back("a")
    assert len(queue) == 1
    assert queue.next_due() == clock.now


def test_a_group_with_a_delayed_event_is_not_calm_when_it_is_due():
    clock = ManualClock()
    queue = RebalanceRequestQueue(clock)
    queue.request_at("calm", clock.now + 1)
    queue.request_at("delays", clock.now + 0.01, event=True)
    queue.request_at("delays", clock.now + 60)
    assert queue.take_now() is None
    clock.advance(1)
    assert [(queue.take_now(), queue.last_was_calm) for _ in range(2)] == [("delays", False), ("calm", True)]
    queue.request_at("delays", clock.now + 0.01, event=True)
    queue.request("delays")
    assert queue.take_now() == "delays"
    clock.advance(1)
    assert (queue.take_now(), queue.last_was_calm) == ("delays", True)
