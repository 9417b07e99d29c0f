"""Tests that take native groups over, and give them back, while their members run."""

from __future__ import annotations

import itertools
import logging

import pytest

from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind
from kafka_coord.zk.kinds import read_kinds
from tests.cli.running import Run
from tests.frontends.kafka.conftest import Front, end_term
from tests.frontends.kafka.records import (
    consumed,
    filled,
    flowing,
    kind,
    member,
    members,
    never_lost,
    stored,
    working,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topic(front: Front, service: object) -> str:
    del service
    return filled(front)


@pytest.fixture
def group() -> str:
    return f"moving-{next(_numbers)}"


def done(coord: Run, verb: str, group: str) -> bool:
    """Whether the group was moved. A refused move may be tried again."""
    ran = coord("groups", verb, group, "--execute")
    logging.warning("%s", ran.err)
    return ran.code == 0


def is_fenced(front: Front, group: str) -> bool:
    (only,) = members(front.brokers, group) or [""]
    return only.startswith("kafka-coord")


def test_a_group_is_taken_over_and_given_back_under_load(front: Front, topic: str, group: str, coord: Run) -> None:
    consumed(front.brokers, group, topic, 100)
    with flowing(front, topic), working(front.bootstrap, group, topic, 3, "static-1") as workers:
        eventually(lambda: kind(front, group) is GroupKind.NATIVE)
        before = [one.rebalances for one in workers]
        eventually(lambda: done(coord, "take-over", group), within_s=60)
        assert kind(front, group) is GroupKind.CLIENT_ASSIGNED
        known = [dict(one.committed) for one in workers]
        eventually(lambda: all(one.committed != then for one, then in zip(workers, known, strict=True)), within_s=30)
        assert [one.rebalances for one in workers] == before, "the members go on with their partitions"
        assert is_fenced(front, group), "the fence stays"
        never_lost(workers, front.bootstrap, group, topic)

        eventually(lambda: done(coord, "give-back", group), within_s=60)
        assert kind(front, group) is GroupKind.NATIVE
        eventually(lambda: members(front.brokers, group) == ["worker-0", "worker-1", "worker-2"], within_s=60)
        known = [dict(one.committed) for one in workers]
        eventually(lambda: all(one.committed != then for one, then in zip(workers, known, strict=True)), within_s=60)
        never_lost(workers, front.brokers, group, topic)


def test_a_member_behind_the_brokers_own_listener_is_named_and_nothing_is_changed(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    consumed(front.brokers, group, topic, 10)
    with working(front.bootstrap, group, topic, 1) as (worker,):
        stranger = member(front.brokers, group, topic, **{"client.id": "stranger"})
        try:
            eventually(lambda: stranger.poll(0.05) or stranger.assignment(), within_s=30)
            before = worker.rebalances

            def refused() -> bool:
                ran = coord("groups", "take-over", group, "--execute")
                assert ran.code == 6
                return "stranger at 127.0.0.1" in ran.err

            eventually(refused, within_s=60)
            assert kind(front, group) is GroupKind.NATIVE
            assert not read_kinds(front.store, [group])[group].moving
            eventually(lambda: members(front.brokers, group) == ["stranger", "worker-0"])
            assert worker.rebalances <= before + 1
        finally:
            stranger.close()


def test_nobody_can_join_the_namesake_of_a_group_that_was_taken_over(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    found = consumed(front.brokers, group, topic, 50)
    eventually(lambda: done(coord, "take-over", group), within_s=60)
    eventually(lambda: is_fenced(front, group))
    assert sum(offset for offset in stored(front.bootstrap, group, topic).values() if offset > 0) == len(found)
    late = member(front.brokers, group, topic)
    try:
        assert not any(late.poll(0.5) and not late.poll(0).error() for _ in range(4) if late.assignment())
        assert not late.assignment()
    finally:
        late.close()
    end_term(front, partition_of(group))
    eventually(lambda: is_fenced(front, group))


def test_the_dry_run_and_a_group_that_does_not_exist(front: Front, topic: str, group: str, coord: Run) -> None:
    consumed(front.brokers, group, topic, 50)
    consumed(front.bootstrap, group, topic, 0)
    ran = coord("groups", "take-over", group)
    assert ran.code == 0
    assert f"group {group} is Empty" in ran.out
    assert "nothing was changed" in ran.err
    assert kind(front, group) is GroupKind.NATIVE
    assert coord("groups", "take-over", f"{group}-none", "--execute").code != 0
