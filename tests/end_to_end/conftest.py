from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.zk import connect
from kafka_coord.zk.store import Store
from tests.end_to_end.parties import Listening, Numbered, Reader


@pytest.fixture
def reader(kafka_cluster) -> Iterator[Callable[..., Reader]]:
    """Makes and starts readers, and stops those that a test leaves running."""
    made: list[Reader] = []

    def make(group: str, topic: str, name: str, **options: Any) -> Reader:
        options.setdefault("zookeeper", kafka_cluster.zookeeper)
        made.append(Reader(options.pop("zookeeper"), group, topic, name, **options).start())
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def numbered(kafka_cluster) -> Iterator[Callable[..., Numbered]]:
    """Makes producers of numbered records, and stops those that a test leaves running."""
    made: list[Numbered] = []

    def make(topic: str, partitions: int, **options: Any) -> Numbered:
        made.append(Numbered(kafka_cluster.bootstrap_servers, topic, partitions, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def store(kafka_cluster) -> Iterator[Store]:
    opened = connect(kafka_cluster.zookeeper)
    yield opened
    opened.close()


@pytest.fixture
def listening(kafka_cluster, tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path, kafka_cluster.brokers[:2])
    for instance in made.instances:
        instance.launch()
    for instance in made.instances:
        instance.wait_ready()
    yield made
    for instance in made.instances:  # the next test would wait until the sessions of killed ones expire
        instance.process.terminate()
    for instance in made.instances:
        instance.stop()
