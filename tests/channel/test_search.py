"""Tests of which host a consumer asks for its coordinator, and how long it waits. They need no I/O."""

from __future__ import annotations

import pytest

from kafka_coord.channel.messages import WAIT_MS, ClusterMetadata, Coordinator, MetadataQuestion
from kafka_coord.channel.search import (
    CONNECT_S,
    HURRIED_PAUSE_S,
    LONGEST_PAUSE_S,
    SHARE_OF_LEASE,
    Ask,
    Connect,
    CoordinatorSearch,
    Wait,
)

FROZEN = Coordinator(1, 7, "a:1")
NEXT = Coordinator(2, 8, "b:1")
NO_LEASE = 0.0


def metadata(coordinator: Coordinator | None, *instances: str) -> ClusterMetadata:
    return ClusterMetadata(1, {}, list(instances), coordinator)


@pytest.fixture
def search() -> CoordinatorSearch:
    """A search that asks the hosts in the given order."""
    numbers = iter(range(1_000))
    return CoordinatorSearch(["a:1", "b:1", "c:1"], lambda low, _high: low + next(numbers) / 1e6)


def asked(search: CoordinatorSearch, lease_left_s: float = NO_LEASE) -> Ask:
    step = search.next(lease_left_s)
    assert isinstance(step, Ask)
    return step


def connects(search: CoordinatorSearch, coordinator: Coordinator = FROZEN) -> None:
    search.take_answer(asked(search).host, metadata(coordinator))
    assert isinstance(search.next(NO_LEASE), Connect)
    search.connected()


def test_each_round_asks_every_host_once_and_the_pauses_double_up_to_a_limit(search: CoordinatorSearch) -> None:
    pauses = []
    for _ in range(10):
        hosts = []
        while isinstance(step := search.next(NO_LEASE), Ask):
            hosts.append(step.host)
            search.failed(step.host, "refused")
        assert hosts == ["a:1", "b:1", "c:1"]
        assert isinstance(step, Wait)
        assert step.problem == "c:1: refused"
        pauses.append(step.seconds)
    assert pauses[:3] == pytest.approx([0.08, 0.16, 0.32], rel=0.01)
    assert 0.8 * LONGEST_PAUSE_S <= pauses[-1] <= LONGEST_PAUSE_S


def test_after_silence_other_hosts_are_asked_at_once_for_another_coordinator(
    search: CoordinatorSearch,
) -> None:
    connects(search)
    search.ended(FROZEN, "silent", silent=True, lasted=True)
    first = asked(search, 4.0)
    assert (first.host, first.question.not_epoch) == ("b:1", FROZEN.epoch)
    assert 0 < first.question.wait_ms < first.within_s * 1000
    search.failed("b:1", "timed out")
    assert asked(search, 4.0).host == "c:1"
    search.failed("c:1", "timed out")
    assert asked(search, 4.0).host == "a:1"


@pytest.mark.parametrize("lease_left_s", [60.0, 4.2, 1.0, 0.2])
def test_no_single_wait_is_longer_than_a_quarter_of_the_lease(search: CoordinatorSearch, lease_left_s: float) -> None:
    connects(search)
    search.ended(FROZEN, "silent", silent=True, lasted=True)
    most = lease_left_s * SHARE_OF_LEASE
    while isinstance(step := search.next(lease_left_s), Ask):
        assert step.within_s <= most
        assert step.question.wait_ms / 1000 <= step.within_s / 2
        search.failed(step.host, "timed out")
    assert isinstance(step, Wait)
    assert step.seconds <= min(most, HURRIED_PAUSE_S)
    search.take_answer(asked(search, lease_left_s).host, metadata(NEXT))
    connect = search.next(lease_left_s)
    assert isinstance(connect, Connect)
    assert connect.within_s <= most


def test_without_a_lease_the_limits_are_those_of_the_protocol(search: CoordinatorSearch) -> None:
    assert asked(search) == Ask("a:1", MetadataQuestion(), CONNECT_S)
    search.take_answer("a:1", metadata(None))
    assert asked(search) == Ask("b:1", MetadataQuestion(WAIT_MS), CONNECT_S + WAIT_MS / 1000)


def test_after_a_closed_connection_the_same_coordinator_is_accepted(
    search: CoordinatorSearch,
) -> None:
    connects(search)
    search.ended(FROZEN, "closed", silent=False, lasted=True)
    assert asked(search, 4.0).question == MetadataQuestion()


def test_the_next_request_excludes_a_coordinator_that_cannot_be_reached(search: CoordinatorSearch) -> None:
    search.take_answer(asked(search).host, metadata(FROZEN))
    step = search.next(NO_LEASE)
    assert step == Connect(FROZEN, "a:1", CONNECT_S)
    search.failed("a:1", "refused")
    assert asked(search).question == MetadataQuestion(WAIT_MS, FROZEN.epoch)


def test_a_coordinator_that_closes_the_connection_at_once_is_asked_again_after_a_pause(
    search: CoordinatorSearch,
) -> None:
    connects(search)
    search.ended(FROZEN, "shutting-down", silent=False, lasted=False)
    step = search.next(NO_LEASE)
    assert isinstance(step, Wait)
    assert "shutting-down" in step.problem


def test_hosts_in_answers_are_asked_too_and_invalid_addresses_are_not(search: CoordinatorSearch) -> None:
    search.take_answer(asked(search).host, metadata(None, "d:1", "no address", "a:1"))
    hosts = []
    for _ in range(2):
        while isinstance(step := search.next(NO_LEASE), Ask):
            hosts.append(step.host)
            search.failed(step.host, "refused")
    assert hosts == ["b:1", "c:1", "a:1", "d:1", "b:1", "c:1"]


def test_a_consumer_with_a_short_session_pauses_for_a_quarter_of_it_at_most() -> None:
    search = CoordinatorSearch(["a:1"], lambda _low, high: high, session_s=4.0)
    pauses = []
    while len(pauses) < 8:
        step = search.next(NO_LEASE)
        if isinstance(step, Wait):
            pauses.append(step.seconds)
        else:
            search.failed("a:1", "refused")
    assert max(pauses) == 1.0
