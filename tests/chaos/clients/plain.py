"""Runs the plain reader of a run: ``python -m tests.chaos.clients.plain``. It reads every partition of the run's topics
without a group, so how long it waits is what the brokers alone cost. Its journal has only hand-outs.
"""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException
from confluent_kafka import TopicPartition as Position

from tests.chaos.clients.confluent import WAIT_S, settings
from tests.chaos.journal import ConsumerWriter
from tests.chaos.member import run
from tests.chaos.parts import PREFIX, Part

_LOOK_S = 0.5
_ASK_S = 5.0


def work(part: Part, _zookeeper: str, bootstrap: str, journal: ConsumerWriter, stopping: threading.Event) -> None:
    consumer = Consumer(settings(part, bootstrap) | {"enable.auto.commit": False})
    known: set[tuple[str, int]] = set()
    looked = float("-inf")
    while not stopping.is_set():
        if time.monotonic() - looked >= _LOOK_S:
            looked = time.monotonic()
            later = _partitions(consumer) - known
            if later:
                consumer.incremental_assign([Position(*one, OFFSET_BEGINNING) for one in sorted(later)])
                known |= later
        since = time.monotonic()
        found = [one for one in consumer.consume(part.batch, WAIT_S) if one.error() is None]
        rows = [(m.topic(), m.partition(), m.offset(), int(m.value() or b"-1")) for m in found]
        journal.handed(since, time.monotonic(), rows)
    consumer.close()


def _partitions(consumer: Consumer) -> set[tuple[str, int]]:
    try:
        topics = consumer.list_topics(timeout=_ASK_S).topics
    except KafkaException:
        return set()
    return {(name, number) for name, one in topics.items() if name.startswith(PREFIX) for number in one.partitions}


if __name__ == "__main__":
    sys.exit(run("tests.chaos.clients.plain", __doc__, work, None))
