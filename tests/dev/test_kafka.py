"""The embedded brokers: real ones, killed and restarted, and their topics."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kafka_coord.dev.cluster.kafka import KafkaBroker, KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import DevClusterError, NotFound, RequestRefused, Timeout
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

MakeTopic = Callable[..., str]


def produce(cluster: KafkaCluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(90) == 0


def consume(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < count:
        for message in consumer.consume(count, timeout=30):
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


def another_controller(zookeeper: KazooClient, asked: bytes) -> bool:
    """Makes the brokers elect a controller, perhaps the same one."""
    with contextlib.suppress(NoNodeError):  # deposed already
        zookeeper.delete("/controller")

    def elected() -> bytes | None:
        try:
            return bytes(zookeeper.get("/controller")[0])
        except NoNodeError:
            return None

    return bool(json.loads(eventually(elected))["brokerid"] != json.loads(asked)["brokerid"])


def test_every_broker_lists_all_three_and_a_controller(kafka_cluster: KafkaCluster) -> None:
    for broker in kafka_cluster.brokers:
        view = broker.view()
        assert view is not None
        assert set(view.brokers) == {1, 2, 3}
        assert view.brokers[broker.broker_id] == broker.address
        assert view.controller in {1, 2, 3}


def test_records_go_in_and_come_out_by_a_plain_group_consumer(
    kafka_cluster: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    values = [f"{number}".encode() for number in range(1000)]
    produce(kafka_cluster, topic, values)
    assert sorted(consume(kafka_cluster, topic, 1000)) == sorted(values)


def test_retention_deletes_no_records_with_old_timestamps(kafka_cluster: KafkaCluster, make_topic: MakeTopic) -> None:
    resource = ConfigResource("topic", make_topic())
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "-1"


def test_a_killed_broker_comes_back_on_its_port_with_its_records(
    kafka_cluster: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    produce(kafka_cluster, topic, [b"before"] * 30)
    broker = kafka_cluster.broker(2)
    address = broker.address

    broker.kill()
    assert broker.view() is None
    broker.start()

    assert broker.address == address
    assert broker.sees({1, 2, 3})
    eventually(lambda: (view := broker.view()) and view.led_partitions(topic) == 3)
    assert consume(kafka_cluster, topic, 30) == [b"before"] * 30


def test_a_broker_id_that_is_running_is_refused_with_what_to_do(
    kafka_cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    second = KafkaBroker(
        tmp_path_factory.mktemp("second"),
        1,
        kafka_cluster.zookeeper,
        settings=KafkaSettings(session_ms=100),
    )
    with pytest.raises(DevClusterError, match="another broker with this id"):
        second.launch()


def test_partitions_are_added_and_every_broker_knows(
    kafka_cluster: KafkaCluster, topics: TopicAdmin, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    topics.add_partitions(topic, 5)
    assert topics.partition_count(topic) == 5
    for broker in kafka_cluster.brokers:
        view = broker.view()
        assert view is not None
        assert view.led_partitions(topic) == 5
    with pytest.raises(RequestRefused, match=topic):
        topics.add_partitions(topic, 3)


def test_a_deleted_topic_is_gone_and_its_name_can_be_used_at_once_with_fewer_partitions(
    topics: TopicAdmin, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=4)
    topics.delete(topic)
    with pytest.raises(NotFound, match=topic):
        topics.partition_count(topic)
    assert make_topic(partitions=1, name=topic) == topic
    assert topics.partition_count(topic) == 1


def test_a_topic_is_created_though_another_broker_controls_the_cluster_now(
    kafka_cluster: KafkaCluster, topics: TopicAdmin, make_topic: MakeTopic
) -> None:
    make_topic()  # from now on, every broker knows the controller
    zookeeper = KazooClient(kafka_cluster.zookeeper)
    zookeeper.start()
    try:
        asked, _ = zookeeper.get("/controller")
        eventually(lambda: another_controller(zookeeper, asked))
    finally:
        zookeeper.stop()
        zookeeper.close()
    assert topics.partition_count(make_topic(partitions=2)) == 2


def test_a_topic_that_exists_is_not_created_again(topics: TopicAdmin, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with pytest.raises(RequestRefused, match=f"create topic {topic}.*already exists"):
        topics.create(topic)


def test_a_broker_that_never_responds_causes_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = TopicAdmin(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=1.0)
        with pytest.raises(Timeout, match=r"no broker at 127\.0\.0\.1:\d+ answered within 1 s"):
            admin.create("flights")


def test_a_former_controller_may_have_carried_a_change_out() -> None:
    said = [KafkaError.NOT_CONTROLLER, KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.TOPIC_ALREADY_EXISTS]

    def answered() -> dict[str, Future[None]]:
        answer: Future[None] = Future()
        answer.set_exception(KafkaException(KafkaError(said.pop(0))))
        return {"t": answer}

    topics = TopicAdmin("127.0.0.1:1", timeout_s=0.1)
    topics._ask(answered, "create topic t", KafkaError.TOPIC_ALREADY_EXISTS)
    with pytest.raises(RequestRefused, match="cannot create topic t"):
        topics._ask(answered, "create topic t", KafkaError.TOPIC_ALREADY_EXISTS)
