"""Scenes about topics: made anew, grown, cut short by retention, and written in transactions."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as Offset
from confluent_kafka.admin import AdminClient

from kafka_coord.model import TopicPartition
from tests.chaos.world.casts import of_all_kinds, over_socket, own
from tests.chaos.world.scene import Abandoned, Scene

COMMITTED_S = 3.0
"""After this time, in seconds, automatic commits have committed what was read: three intervals."""
_TRANSACTION_S = 30.0


def topic_recreated(scene: Scene) -> None:
    """The group has read a topic. The topic is deleted, and made anew with more records than it had."""
    topic = scene.topic(partitions=2)
    for part in of_all_kinds(scene.testbed.clients, scene.name, topic):
        scene.join(part)
    scene.produce(topic, 60, (0, 1))
    if not scene.wait_until_read():
        return
    time.sleep(COMMITTED_S)
    scene.make_anew(topic, partitions=2)
    scene.produce(topic, 150, (0, 1))
    scene.wait_until_read()


def later_partitions(scene: Scene) -> None:
    """A group that begins at the end of a pattern's topics knows its positions. Then its topic gets partitions, perhaps
    while the group is paused, and the pattern gets a topic. Records are produced to them at once."""
    topic = scene.topic()
    pattern = rf"{topic[:-1]}.*"
    for make in (own, over_socket):
        scene.join(make(scene.name, pattern=pattern, latest=True))
    scene.require(lambda: scene.started(TopicPartition(topic, 0)), f"{topic} was started")
    scene.read_something(topic)
    paused = scene.pick < 0.5
    if paused:
        scene.faults.command("groups", "pause", scene.name, "--reason", "chaos")
    scene.topics.add_partitions(topic, 3)
    scene.produce(topic, 100, (1, 2))
    scene.produce(scene.topic("b"), 100)
    if paused:
        scene.faults.resume(scene.name)
    scene.wait_until_read()


def retention(scene: Scene) -> None:
    """A group that begins at the end is stopped. Records that it has not read are deleted, but others still exist when
    it starts again."""
    topic = scene.topic()
    members = [scene.join(make(scene.name, topic, latest=True)) for make in (own, over_socket)]
    scene.require(lambda: scene.started(TopicPartition(topic, 0)), f"{topic} was started")
    scene.read_something(topic)
    time.sleep(COMMITTED_S)
    for member in members:
        scene.leave(member)
    scene.produce(topic, 100, owed=False)
    _, gone_to = scene.watermarks(topic)
    scene.produce(topic, 50)
    _delete_records(scene, topic, gone_to)
    scene.require(lambda: scene.watermarks(topic)[0] == gone_to, "the records were deleted")
    for make in (own, over_socket):
        scene.join(make(scene.name, topic, latest=True))
    if scene.wait_until_read():
        scene.produce(topic, 20)
        scene.wait_until_read()


def transactions(scene: Scene) -> None:
    """A producer commits and aborts transactions. An abort comes last in one partition, and a commit in the other."""
    topic = scene.topic(partitions=2)
    scene.join(own(scene.name, topic))
    scene.join(over_socket(scene.name, topic))
    producer = Producer(
        {"bootstrap.servers": scene.testbed.bootstrap, "transactional.id": scene.name, "log_level": 0, "acks": "all"}
    )
    try:
        producer.init_transactions(_TRANSACTION_S)
        for partition, count, commits in ((0, 50, True), (1, 1, True), (1, 200, False), (1, 30, True), (0, 80, False)):
            producer.begin_transaction()
            records = scene.numbers(topic, partition, count)
            scene.send(producer, records)
            (producer.commit_transaction if commits else producer.abort_transaction)(_TRANSACTION_S)
            if commits:
                scene.owe(topic, partition, records[0][1], records[-1][1] + 1)
    except KafkaException as error:
        raise Abandoned(f"a transaction failed: {error}") from error
    if scene.wait_until_read():
        scene.note_positions(topic)


def _delete_records(scene: Scene, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": scene.testbed.bootstrap, "log_level": 0})
    for asked in admin.delete_records([Offset(topic, 0, before)], request_timeout=30.0).values():
        try:
            asked.result(40.0)
        except (KafkaException, TimeoutError) as error:
            raise Abandoned(f"the records of {topic} were not deleted: {error}") from error
