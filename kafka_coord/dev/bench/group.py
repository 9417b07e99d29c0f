"""Runs ZooKeeper for benchmarks without a broker, and creates topic znodes and registrations in it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kafka_coord.consumer.settings import MemberSettings, member_settings
from kafka_coord.dev.bench.usage import megabytes, open_files
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings, four_letter_word
from kafka_coord.zk import layout
from kafka_coord.zk.session import connect
from kafka_coord.zk.store import Store


@contextmanager
def zookeeper(
    directory: Path, settings: ZooKeeperSettings, session_timeout_ms: int = 60_000
) -> Iterator[tuple[ZooKeeperServer, Store]]:
    """Runs a ZooKeeper server with the znodes that brokers and coordinators expect, and opens a session. Its timeout is
    long, so that the session does not expire while this process is busy."""
    with (
        ZooKeeperServer(directory / "zookeeper", settings=settings) as server,
        closing(connect(server.connect_string, session_timeout_ms=session_timeout_ms)) as store,
    ):
        for path in (layout.BROKER_TOPICS, layout.BROKER_IDS, *layout.PERSISTENT_ROOTS):
            store.ensure_path(path)
        yield server, store


def held(server: ZooKeeperServer) -> dict[str, float | None]:
    """Returns how much ZooKeeper holds. The heap is that of live objects, which a JDK's ``jcmd`` tells."""
    told = dict(line.split("\t", 1) for line in four_letter_word(server.port, "mntr").splitlines() if "\t" in line)
    pid = str(server.process.pid)
    heap_mb = None
    if shutil.which("jcmd"):
        ran = subprocess.run(["jcmd", pid, "GC.class_histogram"], capture_output=True, text=True, check=False)
        total = ran.stdout.split()[-1:]
        heap_mb = round(int(total[0]) / 1e6, 1) if ran.returncode == 0 and total else None
    return {
        "znodes": int(told["zk_znode_count"]),
        "zookeeper_data_mb": round(int(told["zk_approximate_data_size"]) / 1e6, 1),
        "zookeeper_heap_mb": heap_mb,
        "zookeeper_disk_mb": megabytes(server.directory / "data"),
        "zookeeper_files": open_files(server.process.pid),
    }


def write_topic(store: Store, topic: str, partitions: int) -> None:
    """Creates the topic's znode, or changes the number of partitions in its data, as Kafka does."""
    path = layout.broker_topic(topic)
    value = topic_value(partitions)
    if store.exists(path):
        store.set(path, value)
    else:
        store.create(path, value)


def zxid_now(store: Store) -> int:
    """Writes a znode and returns the zxid of the write, so that transactions can be counted."""
    path = "/bench"
    store.ensure_path(path)
    return store.set(path, b"").mzxid


def plain_member(group: str, topic: str, consumer: str) -> MemberSettings:
    """Returns a member that subscribes to a topic, with defaults for all other fields."""
    return member_settings(group=group, topics=[topic], consumer_id=consumer)
