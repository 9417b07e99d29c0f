"""Tests of `groups convert`: a client-assigned group becomes managed, or a managed one client-assigned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec import to_builtins

from kafka_coord import Consumer as CoordConsumer
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.frontends.kafka.managed import administration
from kafka_coord.model import GroupKind, Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.audit import audit
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import GroupRecord, read_kinds
from tests.cli.running import Run, run
from tests.frontends.kafka.conftest import ELECTED, Front, described, elected, published
from tests.frontends.kafka.records import PARTITIONS, filled
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
OFFSETS = {number: number + 1 for number in range(PARTITIONS)}


@pytest.fixture(scope="module")
def coord(front: Front) -> Iterator[Run]:
    """Runs operators' commands. The elected coordinator publishes its own address."""
    with published(front.store, front.others):
        yield partial(run, zookeeper=front.cluster.zookeeper)


@pytest.fixture
def service(front: Front) -> Iterator[CoordinatorService]:
    with elected(front, front.of_elected) as made:
        yield made


@pytest.fixture(scope="module")
def topic(front: Front) -> str:
    return filled(front)


@pytest.fixture
def group() -> str:
    return f"converted-{next(_numbers)}"


@pytest.fixture
def consumer(front: Front, topic: str, group: str) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(beside: tuple[Consumer, ...] = (), **settings: Any) -> Consumer:
        """Makes a consumer that joins, and returns it once it has its share. ``beside`` are the other members."""
        given = {"bootstrap.servers": front.bootstrap, "group.id": group, "enable.auto.commit": False}
        made.append(Consumer(given | {name.replace("_", "."): value for name, value in settings.items()}))
        made[-1].subscribe([topic])
        share = PARTITIONS // (len(beside) + 1)

        def has_joined() -> bool:
            for one in (*beside, made[-1]):
                one.poll(0.05)
            return len(made[-1].assignment()) == share

        eventually(has_joined, within_s=30)
        return made[-1]

    yield make
    for one in made:
        one.close()


def commit(one: Consumer, topic: str) -> None:
    one.commit(offsets=[TopicPartition(topic, *where, "why") for where in OFFSETS.items()], asynchronous=False)


@pytest.fixture
def client_assigned(front: Front, topic: str, group: str) -> str:
    """Makes a client-assigned group with offsets and without members."""
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group})
    commit(one, topic)
    one.close()
    return group


@pytest.fixture
def managed(service: CoordinatorService, topic: str, group: str, consumer: Callable[..., Consumer]) -> str:
    """Makes a managed group with offsets and without members."""
    one = consumer(group_protocol="consumer")
    commit(one, topic)
    one.close()
    return group


def test_a_client_assigned_group_becomes_managed_with_its_offsets_and_the_reason(
    service: CoordinatorService, coord: Run, topic: str, client_assigned: str, consumer: Callable[..., Consumer]
) -> None:
    group = client_assigned
    preview = coord("groups", "convert", group, "--to", "managed", "-o", "json")
    assert [(one["topic"], one["partition"], one["offset"], one["verdict"]) for one in preview.json()] == [
        (topic, *where, "moves") for where in OFFSETS.items()
    ]
    assert f"nothing was changed; --execute moves {PARTITIONS} offsets" in preview.err
    assert described(coord, group) == ("client-assigned", OFFSETS)

    ran = coord("groups", "convert", group, "--to", "managed", "--execute", "--reason", "KIP-848 from today on")
    assert ran.code == 0, ran.err
    assert f"done: group {group} is managed now, with {PARTITIONS} offsets" in ran.err
    assert described(coord, group) == ("managed", OFFSETS)
    (entry,) = coord("groups", "history", group, "-o", "json").json()
    assert (entry["causes"], entry["partitions"]) == (["taken-over"], PARTITIONS)
    assert "asked: KIP-848 from today on" in entry["reason"]
    actions = coord("groups", "history", group, "--actions", "-o", "json").json()
    assert [(one["by"], one["reason"]) for one in actions] == [("the conversion", entry["reason"])]
    again = coord("groups", "convert", group, "--to", "managed", "--execute")
    assert again.code == 0
    assert f"done: group {group} is already managed" in again.err

    one = consumer(group_protocol="consumer")
    assert {found.partition: found.offset for found in one.committed(one.assignment(), 30)} == OFFSETS


def test_a_managed_group_becomes_client_assigned_with_its_offsets(
    front: Front, coord: Run, topic: str, managed: str, consumer: Callable[..., Consumer]
) -> None:
    assert described(coord, managed) == ("managed", OFFSETS)
    preview = coord("groups", "convert", managed, "--to", "client-assigned")
    assert preview.code == 0, preview.err
    assert described(coord, managed)[0] == "managed"

    ran = coord("groups", "convert", managed, "--to", "client-assigned", "--execute")
    assert ran.code == 0, ran.err
    assert f"done: group {managed} is client-assigned now, with {PARTITIONS} offsets" in ran.err
    assert front.store.exists(layout.group(managed)) is None
    assert described(coord, managed) == ("client-assigned", OFFSETS)

    one = consumer()
    found = one.committed(one.assignment(), 30)
    assert {each.partition: each.offset for each in found} == OFFSETS
    assert {each.metadata.rstrip("\0") for each in found} == {"why"}
    one.close()
    assert coord("groups", "convert", managed, "--to", "managed", "--execute").code == 0
    assert described(coord, managed) == ("managed", OFFSETS)


def test_classic_members_of_a_managed_group_rejoin_it_after_it_becomes_client_assigned(
    service: CoordinatorService, coord: Run, topic: str, client_assigned: str, consumer: Callable[..., Consumer]
) -> None:
    group = client_assigned
    assert coord("groups", "convert", group, "--to", "managed", "--execute").code == 0
    first = consumer(enable_auto_commit=True, auto_commit_interval_ms=100)
    second = consumer((first,), partition_assignment_strategy="cooperative-sticky")
    kip_848 = consumer((first, second), group_protocol="consumer")
    mixed = coord("groups", "convert", group, "--to", "client-assigned", "--execute")
    assert mixed.code == 6
    assert f"has members ({kip_848.memberid()})" in instance_answers(service, group, "client-assigned").message
    kip_848.close()
    second.close()
    second = consumer((first,))
    before = described(coord, group)[1]

    preview = coord("groups", "convert", group, "--to", "client-assigned")
    assert "and 2 members" in preview.err
    ran = coord("groups", "convert", group, "--to", "client-assigned", "--execute")
    assert ran.code == 0, ran.err
    found = coord("groups", "describe", group, "-o", "json").json()
    assert found["kind"] == "client-assigned"
    assert all(one["committed_offset"] >= before[one["partition"]] for one in found["offsets"])

    def shared() -> bool:
        for one in (first, second):
            one.poll(0.05)
        members = coord("groups", "describe", group, "-o", "json").json()["members"]
        return len(members) == 2 and {len(one.assignment()) for one in (first, second)} == {PARTITIONS // 2}

    eventually(shared, within_s=60)
    second.commit(offsets=[TopicPartition(topic, second.assignment()[0].partition, 400)], asynchronous=False)
    assert 400 in described(coord, group)[1].values()


def test_a_group_with_a_member_of_kip_848_is_not_converted_and_the_error_names_the_member(
    service: CoordinatorService,
    coord: Run,
    group: str,
    topic: str,
    consumer: Callable[..., Consumer],
    request: pytest.FixtureRequest,
) -> None:
    one = consumer(group_protocol="consumer", group_instance_id="c1")
    commit(one, topic)
    ran = coord("groups", "convert", group, "--to", "client-assigned", "--execute")
    assert ran.code == 6
    assert "has members (c1); stop them first. Nothing was changed" in ran.err
    asked = instance_answers(service, group, "client-assigned")
    assert asked.result == "refused"
    assert "has members" in asked.message
    if not request.config.option.kraft:  # Kafka 4 would take it back
        ran = coord("groups", "give-back", group, "--execute")
        assert ran.code == 6
        assert "its members use KIP-848, which the brokers do not support; stop them, or switch them" in ran.err
        assert read_kinds(service._store, [group])[group] == GroupRecord(GroupKind.MANAGED), "nothing was changed"
    assert described(coord, group)[1] == OFFSETS


def instance_answers(service: CoordinatorService, group: str, to: str) -> Request:
    """Asks an instance to convert the group, as a command that saw no members would, and returns the answer."""
    store = service._store
    value = {"version": 1, "type": str(RequestType.CONVERT_GROUP), "group": group, "to": to}
    path = store.create(layout.REQUEST_PREFIX, fields.dump(value), sequence=True)

    def answer() -> Request | None:
        found = Request.from_json(fields.load(store.get(path).data, path), path)
        return found if found.answered else None

    answered = eventually(answer, within_s=30)
    assert answered is not None
    store.delete(path)
    return answered


def test_a_group_with_a_consumer_over_zookeeper_is_not_converted(
    front: Front, coord: Run, topic: str, managed: str
) -> None:
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=managed, topics=[topic], consumer_id="own") as own:
        eventually(lambda: own.poll(0.05) or len(own.assignment()) == PARTITIONS, within_s=30)
        ran = coord("groups", "convert", managed, "--to", "client-assigned", "--execute")
        assert ran.code == 6
        assert "has members (own)" in ran.err
        assert described(coord, managed)[0] == "managed"


@pytest.mark.parametrize("to", ["managed", "client-assigned"])
def test_the_next_run_completes_a_conversion_that_failed_half_way(
    front: Front,
    coord: Run,
    topic: str,
    group: str,
    consumer: Callable[..., Consumer],
    monkeypatch: pytest.MonkeyPatch,
    to: str,
) -> None:
    alone = {ELECTED: front.listeners[ELECTED]}
    with elected(front, front.of_elected) if to == "client-assigned" else published(front.store, alone):
        one = consumer(group_protocol="consumer" if to == "client-assigned" else "classic")
        commit(one, topic)
        one.close()
        eventually(lambda: not coord("groups", "describe", group, "-o", "json").json()["members"], within_s=30)
    monkeypatch.setattr(administration, "ANSWER_S", 1.0)
    with published(front.store, alone):  # no coordinator is elected
        ran = coord("groups", "convert", group, "--to", to, "--execute")
        assert ran.code == 6, ran.err
        assert "No offsets were lost; run the command again" in ran.err
        assert front.store.exists(layout.group(group)) is not None
    monkeypatch.undo()
    with elected(front, front.of_elected):
        ran = coord("groups", "convert", group, "--to", to, "--execute")
        assert ran.code == 0, ran.err
        assert described(coord, group) == (to, OFFSETS)
        listener = front.serving(group)
        assert listener.manager.has(group) is (to == "client-assigned")
        assert (front.store.exists(layout.group(group)) is None) is (to == "client-assigned")


def test_groups_that_do_not_exist_and_invalid_options_are_refused(service: CoordinatorService, coord: Run) -> None:
    assert coord("groups", "convert", "no-such-group", "--to", "managed", "--execute").code == 7
    assert coord("groups", "convert", "a b", "--to", "managed").code == 2
    assert coord("groups", "convert", "g", "--to", "managed", "--dry-run", "--execute").code == 2
    assert "no group" in instance_answers(service, "no-such-group", "managed").message


def test_the_audit_of_zookeepers_log_finds_no_violations_after_these_tests(front: Front) -> None:
    directory = front.cluster.brokers[0].directory.parent / "zookeeper" / "data"
    found = to_builtins(audit([directory], running=True).document())
    assert [one for one in found["violations"] if one["group"].startswith("converted-")] == []
