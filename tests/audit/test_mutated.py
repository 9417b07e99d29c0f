"""Tests the audit's findings in the log of real coordinators and consumers with a deliberate defect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.model import TopicPartition
from kafka_coord.monitor.audit import AuditRule, audit
from tests.coordinator.harness import World
from tests.simulation.mutations import mutated
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


def one_member(world: World) -> None:
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    c1.position = {TopicPartition("flights", p): 100 for p in range(4)}
    eventually(lambda: len(c1.owned) == 4 and not world.outstanding())


def a_handover(world: World) -> None:
    one_member(world)
    c2 = world.consumer("c2").join()
    eventually(lambda: c2.seen)


def a_handover_nobody_acknowledges(world: World) -> None:
    world.instance(1).start_elected()
    c1 = world.consumer("c1", obedient=False).join()
    eventually(c1.obey)
    world.settles("c1", partitions=4)
    c2 = world.consumer("c2").join()
    eventually(lambda: "c2" in target.members if (target := world.target()) else False)
    eventually(lambda: (world.kafka.topic("other", 1), c2.seen)[1])  # further events cause more passes


@pytest.mark.parametrize(
    ("defect", "play", "found"),
    [
        ("no token check", one_member, {AuditRule.ACK_UNFENCED}),
        ("a start with an outdated offset", a_handover, {AuditRule.START_ELSEWHERE}),
        (
            "only owned partitions count as held",
            a_handover_nobody_acknowledges,
            {AuditRule.TWO_HOLDERS, AuditRule.START_WHILE_HELD},
        ),
        ("partitions released while a stop is outstanding", a_handover_nobody_acknowledges, {AuditRule.RELEASED_EARLY}),
    ],
)
def test_each_defect_is_found_in_the_log(
    world: World, logged_server: ZooKeeperServer, defect: str, play: Callable[[World], None], found: set[AuditRule]
):
    with mutated(defect):
        play(world)
        world.close()
    report = audit([Path(logged_server.directory)], chroot=f"/{world.hosts.partition('/')[2]}", running=True)
    assert {one.rule for one in report.violations} == found


@pytest.mark.parametrize("play", [one_member, a_handover])
def test_without_a_defect_no_violation_is_found(
    world: World, logged_server: ZooKeeperServer, play: Callable[[World], None]
):
    play(world)
    world.close()
    report = audit([Path(logged_server.directory)], chroot=f"/{world.hosts.partition('/')[2]}", running=True)
    assert report.violations == []
