"""Tests of copying offsets between the brokers' own groups and those of the instances, in both directions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.groups.copies import CopyPosition, KafkaOffsetStore
from kafka_coord.model import GroupKind
from kafka_coord.model import TopicPartition as Where
from kafka_coord.model.names import partition_of
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import record_new
from kafka_coord.zk.store import Check
from tests.cli.running import Run
from tests.frontends.kafka.conftest import Front
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
PARTITIONS = 3
IMPORT, EXPORT = ("groups", "import", "--from-kafka"), ("groups", "export", "--to-kafka")


@pytest.fixture(scope="module")
def topic(front: Front) -> str:
    TopicAdmin(front.cluster.bootstrap_servers).create("copied", PARTITIONS, replication=3)
    return "copied"


@pytest.fixture
def group() -> str:
    return f"copied-{next(_numbers)}"


Commit = Callable[[str, str, dict[int, int]], None]


def coordinate(front: Front, group: str) -> None:
    """Records the group as client-assigned, so that its namesake at the brokers is another group."""
    partition = partition_of(group)
    path = layout.log_partition(partition)
    record_new(
        front.store, partition, {group: GroupKind.CLIENT_ASSIGNED}, Check(path, front.store.get(path).stat.version)
    )
    eventually(lambda: all(one.kinds.of(group) for one in front.listeners.values()))


@pytest.fixture
def commit(front: Front, topic: str) -> Commit:
    def commit(bootstrap: str, group: str, offsets: dict[int, int]) -> None:
        coordinate(front, group)
        wanted = [TopicPartition(topic, number, offset, f"by {group}") for number, offset in offsets.items()]
        with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as one:
            one.commit(offsets=wanted, asynchronous=False)

    return commit


def committed(bootstrap: str, group: str) -> dict[int, tuple[int, str]]:
    """The committed offsets and their metadata, by partition."""
    asked = [TopicPartition("copied", number) for number in range(PARTITIONS)]
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as one:
        return {
            found.partition: (found.offset, found.metadata or "")
            for found in one.committed(asked, 30)
            if found.offset >= 0
        }


def test_a_group_moves_to_the_instances_and_back(front: Front, coord: Run, group: str, commit: Commit) -> None:
    brokers, instances = front.cluster.bootstrap_servers, front.bootstrap
    commit(brokers, group, {0: 10, 1: 20})

    preview = coord(*IMPORT, group)
    assert preview.code == 0, preview.err
    assert "nothing was changed; --execute writes 2 offsets" in preview.err
    assert committed(instances, group) == {}

    done = coord(*IMPORT, group, "--execute")
    assert done.code == 0, done.err
    assert "copied and read back 1 of 1 groups" in done.err
    assert committed(instances, group) == {0: (10, f"by {group}"), 1: (20, f"by {group}")}
    paths = [f"{layout.REQUESTS}/{name}" for name in front.store.children(layout.REQUESTS)]
    requests = [json.loads(front.store.get(path).data) for path in paths]  # no coordinator is elected to answer them
    (recorded,) = [one for one in requests if one.get("change", "").startswith(f"group {group} ")]
    assert recorded["change"] == f"group {group} copied 0: - → 10, 1: - → 20"
    assert (recorded["action"], recorded["reason"]) == ("reset-offsets", "import of the brokers' offsets")
    again = coord(*IMPORT, group, "--execute", "-o", "json")
    assert [row["verdict"] for row in again.json()] == ["same", "same"]

    commit(instances, group, {1: 25, 2: 5})
    assert coord(*EXPORT, group, "--execute").code == 0
    assert {number: offset for number, (offset, _) in committed(brokers, group).items()} == {0: 10, 1: 25, 2: 5}


def test_metadata_of_the_largest_size_is_copied_unchanged(front: Front, coord: Run, topic: str, group: str) -> None:
    brokers, instances = (
        KafkaOffsetStore(name, bootstrap, {}, 30.0)
        for name, bootstrap in (("brokers", front.cluster.bootstrap_servers), ("instances", front.bootstrap))
    )
    largest = {Where(topic, 0): CopyPosition(5, "é" * 2_048), Where(topic, 1): CopyPosition(6)}
    assert instances.write({group: largest}) == {}

    done = coord(*EXPORT, "--all", "--execute")

    assert done.code == 0, done.err
    assert brokers.read([group])[group].positions == largest


def test_an_import_moves_no_offset_back_unless_overwrite_is_given(
    front: Front, coord: Run, group: str, commit: Commit
) -> None:
    commit(front.cluster.bootstrap_servers, group, {0: 10, 1: 10})
    commit(front.bootstrap, group, {0: 50})

    careful = coord(*IMPORT, group, "--execute")
    assert careful.code == 0
    assert "skipped 1 partition, because the target is ahead" in careful.err
    assert {number: offset for number, (offset, _) in committed(front.bootstrap, group).items()} == {0: 50, 1: 10}

    assert coord(*IMPORT, group, "--overwrite", "--execute").code == 0
    assert committed(front.bootstrap, group)[0][0] == 10


def test_groups_with_members_at_the_target_are_refused_and_the_others_are_copied(
    front: Front, coord: Run, topic: str, group: str, commit: Commit
) -> None:
    idle = f"{group}-idle"
    for name in (group, idle):
        commit(front.cluster.bootstrap_servers, name, {0: 7})
    settings = {"bootstrap.servers": front.bootstrap, "group.id": group, "client.id": "works"}
    with closing(Consumer(settings)) as member:
        member.subscribe([topic])
        eventually(lambda: member.poll(0.05) or len(member.assignment()) == PARTITIONS)

        refused = coord(*IMPORT, group, idle, "--execute")

    assert refused.code == 6
    assert f"group {group}: the instances: it has members (works); stop them first" in refused.err
    assert committed(front.bootstrap, idle)[0][0] == 7
    assert 0 not in committed(front.bootstrap, group)


def test_a_warning_names_members_at_the_source_because_they_may_commit_more(
    front: Front, coord: Run, topic: str, group: str, commit: Commit
) -> None:
    commit(front.cluster.bootstrap_servers, group, {0: 7})
    settings = {"bootstrap.servers": front.cluster.bootstrap_servers, "group.id": group, "client.id": "works"}
    with closing(Consumer(settings)) as member:
        member.subscribe([topic])
        eventually(lambda: member.poll(0.05) or len(member.assignment()) == PARTITIONS)
        done = coord(*IMPORT, group, "--execute")
    assert done.code == 0
    assert f"group {group}: the brokers: its members (works) may commit more" in done.err


def test_groups_of_both_kinds_are_exported(front: Front, coord: Run, topic: str, group: str, commit: Commit) -> None:
    managed = f"{group}-managed"
    store = front.store
    for path in (layout.group(managed), layout.ids(managed), layout.owners(managed)):
        store.ensure_path(path)
    store.ensure_path(layout.topic_offsets(managed, topic))
    store.create(layout.offset(managed, topic, 2), b"33")
    commit(front.bootstrap, group, {0: 3})

    done = coord(*EXPORT, "--all", "--execute")

    assert done.code == 0, done.err
    assert committed(front.cluster.bootstrap_servers, group)[0][0] == 3
    assert committed(front.cluster.bootstrap_servers, managed) == {2: (33, "")}


@pytest.mark.parametrize("arguments", [(), ("g", "--all"), ("g", "--dry-run", "--execute")])
def test_contradictory_arguments_are_refused(coord: Run, arguments: tuple[str, ...]) -> None:
    assert coord(*IMPORT, *arguments).code == 2
    assert coord("groups", "import", "g").code == 2


def test_the_error_names_a_group_without_offsets_at_the_source(coord: Run) -> None:
    missing = coord(*IMPORT, "no-such-group")
    assert missing.code == 7
    assert "the brokers have no committed offsets for no-such-group" in missing.err
