"""Kills the host that coordinates a group (broker and instance, ``kill -9``) while stock clients consume:
``python -m tests.frontends.kafka.killed_host --protocol consumer``.

Prints how long the members got no record of a partition, and what they lost. The topic has one replica of each
partition, so the partitions of other brokers do not wait for the dead one: they must continue. No member may lose its
membership.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from confluent_kafka import Consumer, Producer

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.dev.bench.kafka_groups.moving import coordinators
from kafka_coord.dev.bench.kafka_groups.servers import Servers, started
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.zk.session import connect

say = print
TOPIC, GROUP = "killed-host", "killed-host"
MEMBERS, PARTITIONS, EVERY_S = 6, 30, 0.05
CLASSIC = {"cooperative": "cooperative-sticky", "eager": "range"}


class Member(threading.Thread):
    """A stock client with default settings. ``seen`` has the times at which it received records, by partition."""

    def __init__(self, bootstrap: str, protocol: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.seen: dict[int, list[float]] = defaultdict(list)
        self.events: list[tuple[float, str, int]] = []
        self._stopping = stopping
        kind: dict[str, Any] = {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
        if protocol in CLASSIC:
            kind = {"partition.assignment.strategy": CLASSIC[protocol]}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **kind})
        self._consumer.subscribe([TOPIC], self._noting("assigned"), self._noting("revoked"), self._noting("lost"))

    def _noting(self, what: str) -> Any:
        return lambda _consumer, those: self.events.append((time.monotonic(), what, len(those)))

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen[message.partition()].append(time.monotonic())
        self._consumer.close()

    @property
    def owned(self) -> int:
        return len(self._consumer.assignment())


def feed(brokers: str, stopping: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 0, "message.timeout.ms": 5_000})
    while not stopping.wait(EVERY_S):
        for partition in range(PARTITIONS):
            with suppress(BufferError):  # the buffer is full of records for the dead broker
                producer.produce(TOPIC, b"x", partition=partition)
        producer.poll(0)
    producer.purge()


def leaders(brokers: str) -> dict[int, int]:
    found = Producer({"bootstrap.servers": brokers}).list_topics(TOPIC, 10).topics[TOPIC].partitions
    return {number: one.leader for number, one in found.items()}


def play(servers: Servers, protocol: str, seconds: float) -> None:
    if protocol in CLASSIC:
        store = connect(servers.zookeeper)
        ensure_group(store, GROUP)
        store.close()
    address = coordinators(servers, [GROUP])[GROUP]
    killed = next(number for number, one in servers.instances.items() if one.address == address)
    bootstrap = ",".join(one.address for one in servers.instances.values())
    stopping, ending = threading.Event(), threading.Event()
    members = [Member(bootstrap, protocol, stopping) for _ in range(MEMBERS)]
    feeder = threading.Thread(target=feed, args=(servers.cluster.bootstrap_servers, ending))
    for thread in (*members, feeder):
        thread.start()
    each = PARTITIONS // MEMBERS
    deadline = time.monotonic() + 90
    while any(one.owned != each for one in members) or any(len(one.seen) < each for one in members):
        assert time.monotonic() < deadline, [one.owned for one in members]
        time.sleep(0.2)
    time.sleep(5)
    led = leaders(servers.cluster.bootstrap_servers)
    at = time.monotonic()
    servers.instances[killed].process.kill()
    next(one for one in servers.cluster.brokers if one.broker_id == killed).kill()
    time.sleep(seconds)
    ending.set()
    feeder.join()
    stopping.set()
    for one in members:
        one.join()
    silences, share = [], [number for number in range(PARTITIONS) if led[number] != killed]
    for number in share:
        times = sorted(t for one in members for t in one.seen[number] if at - 1 < t < at + seconds)
        silences.append(max((b - a for a, b in itertools.pairwise(times)), default=seconds))
    changes = [
        f"{t - at:.2f} s {what} {count}"
        for one in members
        for t, what, count in one.events
        if at < t < at + seconds and count
    ]
    say(f"{protocol}: {MEMBERS} members; the host of broker {killed} was killed; {seconds:g} s followed")
    say(f"longest silence of the {len(share)} partitions with other leaders: median {median(silences):.2f} s, ", end="")
    say(f"max {max(silences):.2f} s (records come every {EVERY_S} s)")
    say(f"assignments that changed: {', '.join(changes) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=["consumer", *CLASSIC], default="consumer")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long to watch after the kill")
    given = parser.parse_args()
    with ExitStack() as running:
        servers = running.enter_context(started(Path(mkdtemp()), brokers=3))
        TopicAdmin(servers.broker.address).create(TOPIC, PARTITIONS, replication=1)
        play(servers, given.protocol, given.seconds)


if __name__ == "__main__":
    main()
