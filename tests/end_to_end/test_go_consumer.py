"""The consumer of docs/examples/go-consumer, written from the specification, in one group with Python's."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.errors import NoNode
from kafka_coord.model import Ledger
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store
from tests.end_to_end.parties import all_given, expected, owners
from tests.go_consumer import go_consumer, records_of
from tests.waiting import eventually

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.kafka,
    pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain here: the example in Go is not tried"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = go_consumer(tmp_path_factory.mktemp("go"))
    assert made is not None
    return made


def owned(store: Store, group: str, consumer: str) -> int:
    path = layout.ledger(group, consumer)
    try:
        node = store.get(path)
    except NoNode:
        return 0
    return len(
        Ledger.from_json(fields.load(node.data, path), path, consumer=consumer, znode_version=node.stat.version).owned
    )


def test_the_go_consumer_joins_a_group_of_both_kinds_and_each_record_is_received_once(
    program, listening, store, make_topic, reader, numbered, tmp_path
):
    topic, group = make_topic(partitions=6), "three-kinds"
    producer = numbered(topic, 6).start()
    readers = [
        reader(group, topic, "z1"),
        reader(group, topic, "s1", zookeeper=None, bootstrap=listening.bootstrap),
    ]
    eventually(lambda: owners(readers) == [3, 3])
    command = [str(program), "-bootstrap", listening.bootstrap, "-group", group, "-topic", topic]
    go = ChildProcess("go-consumer", [*command, "-consumer-id", "g1", "-from", "earliest"], tmp_path / "go.log")
    go.start()
    try:
        eventually(lambda: owners(readers) == [2, 2] and owned(store, group, "g1") == 2)
        eventually(lambda: len(records_of(go)) > 1_000)
        readers[0].stop()
        eventually(lambda: owners(readers[1:]) == [3] and owned(store, group, "g1") == 3)
        readers.append(reader(group, topic, "z2"))
        eventually(lambda: owners(readers[1:]) == [2, 2] and owned(store, group, "g1") == 2)
        go.terminate()
        eventually(lambda: not go.running)
        assert go.exit_code == 0, go.log.read_text()
        eventually(lambda: owners(readers[1:]) == [3, 3])
        written = producer.stop()
        eventually(lambda: len(all_given(readers)) + len(records_of(go)) >= sum(written.values()), within_s=60)
    finally:
        go.kill()
    for one in readers[1:]:
        one.stop()
    given = all_given(readers) + Counter(records_of(go))
    assert set(given) == expected(written)
    assert set(given.values()) == {1}, "no record was delivered twice"
