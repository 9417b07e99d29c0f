"""A member with one of Python's clients: ``member.py LIBRARY BOOTSTRAP TOPIC GROUP NAME [STRATEGY [INSTANCE_ID]]``."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable
from typing import Any

LIBRARY, BOOTSTRAP, TOPIC, GROUP, NAME = sys.argv[1:6]
STRATEGY = sys.argv[6] if len(sys.argv) > 6 else "range"
INSTANCE = sys.argv[7] if len(sys.argv) > 7 else None
SESSION_MS = 6_000
stopping = threading.Event()


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def say_assigned(partitions: Iterable[Any]) -> None:
    say("assigned", ",".join(str(one.partition) for one in sorted(partitions, key=lambda one: one.partition)))


def by_confluent() -> None:
    import confluent_kafka
    from confluent_kafka import Consumer, KafkaException, libversion

    say("# confluent-kafka", confluent_kafka.__version__, "librdkafka", libversion()[0])
    settings: dict[str, Any] = {
        "bootstrap.servers": BOOTSTRAP,
        "group.id": GROUP,
        "client.id": NAME,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if STRATEGY == "kip-848":
        settings |= {"group.protocol": "consumer"}
    else:
        settings |= {"session.timeout.ms": SESSION_MS, "partition.assignment.strategy": STRATEGY}
    consumer = Consumer(settings | ({"group.instance.id": INSTANCE} if INSTANCE else {}))
    consumer.subscribe([TOPIC])
    known = None
    while not stopping.is_set():
        found = [one for one in consumer.consume(200, 0.2) if one.error() is None]
        held = consumer.assignment()
        if held != known:
            known = held
            say_assigned(held)
        for one in found:
            say("record", one.partition(), one.offset())
        if found:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                say("#", error)
            else:
                say("committed")
    consumer.close()


def by_kafka_python() -> None:
    import kafka
    from kafka.consumer.subscription_state import ConsumerRebalanceListener
    from kafka.errors import KafkaConnectionError, KafkaError

    say("# kafka-python", kafka.__version__)

    class Telling(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            say_assigned(consumer.assignment())

    more = {"group_instance_id": INSTANCE} if INSTANCE else {}
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        client_id=NAME,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=1_500,
        **more,
    )
    consumer.subscribe([TOPIC], listener=Telling())
    while not stopping.is_set():
        try:
            found = [one for records in consumer.poll(timeout_ms=200).values() for one in records]
        except KafkaConnectionError as error:  # it is told that a connection was refused
            say("#", repr(error))
            continue
        for one in found:
            say("record", one.partition, one.offset)
        if found:
            try:
                consumer.commit()
            except KafkaError as error:
                say("#", repr(error))
            else:
                say("committed")
    consumer.close()


async def by_aiokafka() -> None:
    import aiokafka
    from aiokafka.abc import ConsumerRebalanceListener
    from aiokafka.errors import KafkaError

    say("# aiokafka", aiokafka.__version__)

    class Telling(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            say_assigned(assigned)

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        client_id=NAME,
        group_instance_id=INSTANCE,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=1_500,
    )
    consumer.subscribe([TOPIC], listener=Telling())
    await consumer.start()
    while not stopping.is_set():
        found = [one for records in (await consumer.getmany(timeout_ms=200)).values() for one in records]
        for one in found:
            say("record", one.partition, one.offset)
        if found:
            try:
                await consumer.commit()
            except KafkaError as error:
                say("#", repr(error))
            else:
                say("committed")
    await consumer.stop()


def wait_for_the_end() -> None:
    sys.stdin.read()
    stopping.set()


threading.Thread(target=wait_for_the_end, daemon=True).start()
if LIBRARY == "aiokafka":
    asyncio.run(by_aiokafka())
else:
    {"confluent-kafka": by_confluent, "kafka-python": by_kafka_python}[LIBRARY]()
say("closed")
