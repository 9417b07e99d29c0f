"""A consumer of one Python library with its default settings, which commits synchronously all the time. It runs until
its standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.dev.bench.rolling.journal import What, line_of

POLL_S = 0.1
COMMIT_S = 0.2
"""The time between two commits, in seconds."""


@dataclass(frozen=True, slots=True)
class ClientPlace:
    """What a client needs to know. It writes to the file ``journal``. With ``static``, it has its group's name as
    ``group.instance.id``."""

    library: str
    bootstrap: str
    group: str
    topic: str
    journal: str
    static: bool = False

    @property
    def instance_id(self) -> str | None:
        return self.group if self.static else None


class Notes(logging.Handler):
    """Writes the journal, including a line for each warning of the library."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.WARNING)
        self._file = Path(path).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115  open until the process ends

    def note(self, what: What, rest: object) -> None:
        self._file.write(line_of(time.monotonic_ns(), what, rest))

    def emit(self, record: logging.LogRecord) -> None:
        self.note(What.WARNED, f"{record.levelname} {record.name} {record.getMessage()}")


def read_confluent(place: ClientPlace, notes: Notes, ending: threading.Event) -> None:
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    settings |= {"group.instance.id": place.instance_id} if place.static else {}
    logger = logging.getLogger("librdkafka")
    consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": place.group, **settings}, logger=logger)
    consumer.subscribe([place.topic], on_assign=lambda _, found: notes.note(What.ASSIGNED, len(found)))

    def read() -> set[int]:
        found = consumer.consume(500, POLL_S)
        return {number for one in found if one.error() is None and (number := one.partition()) is not None}

    _read(read, lambda: consumer.commit(asynchronous=False), notes, ending)
    consumer.close()


def read_kafka_python(place: ClientPlace, notes: Notes, ending: threading.Event) -> None:
    from kafka import KafkaConsumer
    from kafka.consumer.subscription_state import ConsumerRebalanceListener

    consumer = KafkaConsumer(
        bootstrap_servers=place.bootstrap.split(","),
        group_id=place.group,
        group_instance_id=place.instance_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    consumer.subscribe([place.topic], listener=_listener(ConsumerRebalanceListener, notes))
    _read(lambda: {one.partition for one in consumer.poll(POLL_S * 1000)}, consumer.commit, notes, ending)
    consumer.close()


def read_aiokafka(place: ClientPlace, notes: Notes, ending: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.abc import ConsumerRebalanceListener

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=place.bootstrap,
            group_id=place.group,
            group_instance_id=place.instance_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        consumer.subscribe([place.topic], listener=_listener(ConsumerRebalanceListener, notes))
        await consumer.start()
        due = time.monotonic()
        while not ending.is_set():
            found = await consumer.getmany(timeout_ms=round(POLL_S * 1000))
            for number in {one.partition for one in found}:
                notes.note(What.RECORD, number)
            if found and time.monotonic() >= due:
                began = time.monotonic_ns()
                try:
                    await consumer.commit()
                except Exception as error:  # noqa: BLE001  the application sees whatever it raises
                    notes.note(What.FAILED, repr(error))
                else:
                    notes.note(What.COMMITTED, time.monotonic_ns() - began)
                due = time.monotonic() + COMMIT_S
        await consumer.stop()

    asyncio.run(run())


def _listener(base: type, notes: Notes) -> Any:
    def assigned(_: object, partitions: Iterable[object]) -> None:
        notes.note(What.ASSIGNED, len(list(partitions)))

    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    told = {"on_partitions_assigned": assigned, "on_partitions_revoked": nothing, "on_partitions_lost": nothing}
    return type("Listener", (base,), told)()


def _read(read: Callable[[], set[int]], commit: Callable[[], object], notes: Notes, ending: threading.Event) -> None:
    """Reads and commits until ``ending`` is set. ``read`` returns the partitions whose records have arrived."""
    due = time.monotonic()
    while not ending.is_set():
        found = read()
        for number in found:
            notes.note(What.RECORD, number)
        if found and time.monotonic() >= due:
            began = time.monotonic_ns()
            try:
                commit()
            except Exception as error:  # noqa: BLE001  the application sees whatever it raises
                notes.note(What.FAILED, repr(error))
            else:
                notes.note(What.COMMITTED, time.monotonic_ns() - began)
            due = time.monotonic() + COMMIT_S


READING = {"confluent-kafka": read_confluent, "kafka-python": read_kafka_python, "aiokafka": read_aiokafka}


def main() -> None:
    place = ClientPlace(**json.loads(sys.argv[1]))
    notes, ending = Notes(place.journal), threading.Event()
    logging.basicConfig(level=logging.WARNING, handlers=[notes])

    def wait() -> None:
        with suppress(OSError):
            sys.stdin.read()
        ending.set()

    threading.Thread(target=wait, daemon=True).start()
    READING[place.library](place, notes, ending)


if __name__ == "__main__":
    main()
