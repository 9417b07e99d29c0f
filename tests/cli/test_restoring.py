"""Tests of backup and restore with real ZooKeeper servers, an old one and a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.groups.backup import read_file
from kafka_coord.groups.requests import ask
from kafka_coord.groups.restore import plan_restore, restore, still_answering
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, change_record, finish_tree, make_tree, read_cluster_record
from tests.cli.running import Run, run
from tests.coordinator.harness import ScriptedConsumer, World
from tests.waiting import eventually

ID = "TMyOC9fMQO2RvZzC_cfMOw"
Worlds = Callable[[str], World]


@pytest.fixture
def worlds() -> Iterator[Worlds]:
    """Opens the tree at an address, with Kafka's topic ``flights`` of four partitions."""
    made: list[World] = []

    def open_world(hosts: str) -> World:
        made.append(World(hosts))
        made[-1].kafka.topic("flights", 4, ID)
        return made[-1]

    yield open_world
    for world in made:
        world.close()


@pytest.fixture
def backup(worlds: Worlds, zookeeper_server_factory: Callable[..., ZooKeeperServer], tmp_path: Path) -> Path:
    """A backup of the group ``delays``. ``c1`` and ``c2`` own two partitions each, and have committed in each. The
    instance stopped first, and after the backup, everything else."""
    server, file = zookeeper_server_factory(), tmp_path / "kafka-coord.backup"
    old = worlds(server.connect_string)
    instance = old.instance(1).start_elected()
    consumers = [old.consumer(name, process=f"process of {name}").join() for name in ("c1", "c2")]
    eventually(lambda: [len(one.owned) for one in consumers] == [2, 2])
    for one in consumers:
        assert one.registration is not None
        one.channel.commit(one.registration, {tp: 10 + tp.partition for tp in one.owned})
    instance.stop()
    ran = run("backup", str(file), zookeeper=server.connect_string)
    assert ran.code == 0, ran.err
    assert ran.out == f"wrote 1 groups with 4 offsets to {file}\n"
    old.close()
    server.kill()
    return file


@pytest.fixture
def new(worlds: Worlds, zk_hosts: str) -> World:
    return worlds(zk_hosts)


@pytest.fixture
def coord(zk_hosts: str) -> Run:
    return partial(run, zookeeper=zk_hosts)


def restored(world: World, file: Path) -> None:
    """Does what ``restore --execute`` does where there is no groups log."""
    finish_tree(world.store, restore(world.store, plan_restore(*read_file(file))))


def started(consumer: ScriptedConsumer) -> dict[int, int]:
    return {tp.partition: offset for tp, offset in consumer.started.items()}


def test_processes_of_the_lost_tree_go_on_where_they_committed(backup: Path, new: World, coord: Run) -> None:
    # they have found the new servers before the tree is restored
    consumers = [new.consumer(name, process=f"process of {name}").join() for name in ("c1", "c2")]

    shown = coord("restore", str(backup), "-o", "json")
    assert coord("restore", str(backup)).err.count("nothing was changed; --execute restores 1 groups") == 1
    restored(new, backup)

    assert shown.json()["groups"] == [
        {"group": "delays", "offsets": 4, "held": {"flights": "0-3"}, "older": {}, "beyond": {}, "unknown_topics": []}
    ]
    instance = new.instance(1).start_elected()
    eventually(lambda: [len(one.owned) for one in consumers] == [2, 2])
    assert started(consumers[0]) | started(consumers[1]) == {0: 10, 1: 11, 2: 12, 3: 13}
    eventually(lambda: new.node(layout.held("delays")) is None)
    assert instance.service.coordinator is not None
    assert instance.service.coordinator.leadership.epoch == 2


def test_another_process_of_the_same_name_waits(backup: Path, new: World, coord: Run) -> None:
    restored(new, backup)
    new.kafka.topic("flights", 5, ID)
    imposter = new.consumer("c1", process="another").join()

    new.instance(1).start_elected()

    eventually(lambda: set(imposter.owned) == {TopicPartition("flights", 4)})
    summary = coord("groups", "history", "delays", "-o", "json")
    assert new.node(layout.held("delays")) is not None
    assert summary.code == 0


def test_a_topic_that_has_no_id_is_started_only_where_an_operator_says(
    worlds: Worlds, zookeeper_server_factory: Callable[..., ZooKeeperServer], zk_hosts: str, tmp_path: Path, coord: Run
) -> None:
    server, file = zookeeper_server_factory(), tmp_path / "kafka-coord.backup"
    old, new = World(server.connect_string), worlds(zk_hosts)
    old.kafka.topic("flights", 4)
    instance = old.instance(1).start_elected()
    consumer = old.consumer("c1", process="p").join()
    eventually(lambda: len(consumer.owned) == 4)
    assert consumer.registration is not None
    consumer.channel.commit(consumer.registration, dict.fromkeys(consumer.owned, 10))
    instance.stop()
    assert run("backup", str(file), zookeeper=server.connect_string).code == 0
    old.close()
    server.kill()

    assert "1 topics have no id in the backup" in coord("restore", str(file)).err
    restored(new, file)
    new.instance(1).start_elected()
    back = new.consumer("c1", process="p").join()
    eventually(lambda: "is not a topic identity" in coord("groups", "describe", "delays", "-o", "json").out)
    assert not back.owned

    to_seven = dict.fromkeys((TopicPartition("flights", number) for number in range(4)), 7)
    answered = ask(new.store, Request(RequestType.RESET_OFFSETS, "delays", offsets=to_seven), 30, lambda _told: None)

    assert answered.result == "done", answered.message
    eventually(lambda: started(back) == {0: 7, 1: 7, 2: 7, 3: 7})


def test_only_an_empty_tree_is_restored(backup: Path, new: World, coord: Run) -> None:
    new.instance(1).start_elected()
    running = coord("restore", str(backup))
    new.instances.pop().stop()
    used = coord("restore", str(backup))

    assert running.code == used.code == 6
    assert "instances run on this tree (1); stop them" in running.err
    assert "there is a tree already" in used.err


def test_a_restore_goes_on_where_it_was_interrupted(backup: Path, new: World) -> None:
    made = ClusterRecord.new(new.store, 2, making="restore")
    make_tree(new.store, made)
    new.store.ensure_path(layout.group("delays"))
    new.store.ensure_path(layout.COORDINATORS)

    instance = new.instance(1)
    instance.service.start()
    eventually(lambda: "is still being made" in instance.service._status)
    instance.stop()
    restored(new, backup)

    record = read_cluster_record(new.store)
    assert record is not None
    assert (record.tree, record.making) == (made.tree, "")
    assert new.store.get(layout.offset("delays", "flights", 3)).data == b"13"
    change_record(new.store, lambda found: ClusterRecord.new(new.store, 2, making="restore"))
    restored(new, backup)


def test_what_still_answers_is_named(backup: Path, new: World, coord: Run, zookeeper: ZooKeeperServer) -> None:
    header = read_file(backup)[0].header

    assert still_answering(structs.replace(header, zookeeper=(zookeeper.connect_string, *header.zookeeper)), []) == [
        f"ZooKeeper {zookeeper.connect_string}"
    ]
    assert not still_answering(
        structs.replace(header, zookeeper=(zookeeper.connect_string,)), [zookeeper.connect_string]
    )
    ran = coord("restore", str(backup), "--execute")
    assert ran.code == 5
    assert "the groups log may know a newer tree, and no broker tells" in ran.err
