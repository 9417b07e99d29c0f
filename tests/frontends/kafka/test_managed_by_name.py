"""Tests of the setting `managed_groups`: groups of classic clients are managed because of their names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import SettingsError
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind
from kafka_coord.monitor.doctor.kafka_clients import check_kafka_clients
from tests.cli.running import Run, run
from tests.frontends.kafka.conftest import Front, described, elected, published
from tests.frontends.kafka.peer import Peer, join
from tests.frontends.kafka.records import PARTITIONS, filled, kind
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
WITHOUT = 2
"""The broker id of the instance that does not have the setting."""
PATTERN = "named-.*|other"
OFFSETS = {number: number + 1 for number in range(PARTITIONS)}


@dataclass
class Named:
    """A cluster with the setting (except ``WITHOUT``), and a client-assigned group with a member that joined before."""

    front: Front
    coord: Run
    topic: str
    live: Consumer = field(init=False)
    live_group: str = field(init=False)

    def group(self) -> str:
        """A name that matches the pattern. An instance with the setting coordinates this group."""
        return next(name for name in _names if self.front.coordinator(partition_of(name)) != WITHOUT)

    def consumer(self, group: str) -> Consumer:
        one = Consumer({"bootstrap.servers": self.front.bootstrap, "group.id": group, "enable.auto.commit": False})
        one.subscribe([self.topic])
        eventually(lambda: one.poll(0.05) or len(one.assignment()) == PARTITIONS)
        return one


_names = (f"named-{number}" for number in itertools.count(1))


@pytest.fixture(scope="module")
def named(front: Front) -> Iterator[Named]:
    others = front.others
    with elected(front, front.of_elected):
        made = Named(front, partial(run, zookeeper=front.cluster.zookeeper), filled(front))
        made.live_group = made.group()
        made.live = made.consumer(made.live_group)
        made.live.commit(offsets=[TopicPartition(made.topic, *one) for one in OFFSETS.items()], asynchronous=False)
        with published(front.store, others):
            _restart(front, PATTERN)
            try:
                yield made
            finally:
                made.live.close()
                _restart(front, None)


def _restart(front: Front, pattern: str | None) -> None:
    for broker_id in sorted(front.listeners.keys() - {WITHOUT}):
        front.stop(broker_id)
        front.start(broker_id, managed_groups=pattern)
    eventually(front.serves_every_group, within_s=60)


def test_a_group_whose_name_matches_is_managed_from_its_first_member_on(named: Named) -> None:
    group = named.group()
    one = named.consumer(group)
    assert described(named.coord, group)[0] == "managed"
    one.close()
    ran = named.coord("groups", "convert", group, "--to", "client-assigned", "--execute")
    assert ran.code == 6
    assert f"the name {group} matches managed_groups" in ran.err


@pytest.mark.parametrize("suffix", ["", " with a name that ZooKeeper cannot hold"])
def test_groups_of_other_types_or_with_illegal_names_stay_client_assigned(named: Named, suffix: str) -> None:
    group = named.group() + suffix
    kind = "consumer" if suffix else "connect"
    with Peer(named.front.serving(group)) as peer:
        assert peer.ask("JoinGroup", 3, **join(group) | {"protocol_type": kind}).error_code == Error.NONE
        assert described(named.coord, group)[0] == "client-assigned"


def test_a_group_with_members_becomes_managed_only_once_it_is_empty(named: Named) -> None:
    listener = named.front.serving(named.live_group)
    eventually(lambda: named.live.poll(0.1) or named.live_group in listener.manager.groups())
    assert described(named.coord, named.live_group) == ("client-assigned", OFFSETS)
    named.live.close()
    eventually(lambda: kind(named.front, named.live_group) is GroupKind.MANAGED, within_s=60)
    eventually(lambda: described(named.coord, named.live_group) == ("managed", OFFSETS), within_s=60)
    (entry,) = named.coord("groups", "history", named.live_group, "-o", "json").json()
    assert entry["reason"].endswith("its name matches managed_groups")


def test_the_doctor_reports_instances_whose_settings_differ(named: Named) -> None:
    found = [one.what for one in check_kafka_clients(named.front.store, {})]
    assert any(f"(1: {PATTERN}, 2: none, 3: {PATTERN})" in one for one in found), found


def test_a_pattern_that_re2_does_not_support_is_refused_at_startup(named: Named) -> None:
    with pytest.raises(SettingsError, match="RE2"):
        KafkaListener("127.0.0.1:0", "127.0.0.1:1", named.front.store, 9, managed_groups="(a)\\1")
    options = ("--broker-id", "9", "--listen-kafka", "h:1", "--broker-listener", "h:2", "--managed-groups", "(a)\\1")
    assert named.coord("serve", *options).code == 2
