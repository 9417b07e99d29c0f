"""An instance is killed while its broker runs on: no answer names it after its session has ended, so that each client
library waits quietly until the instance is back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.bench.kafka_groups.client import RawClient
from kafka_coord.dev.bench.kafka_groups.moving import coordinators
from kafka_coord.dev.bench.kafka_groups.servers import Servers, started
from kafka_coord.dev.bench.rolling.feeder import feeding
from kafka_coord.dev.bench.rolling.journal import What
from kafka_coord.dev.bench.rolling.run import JAVA, LIBRARIES, READ, Commands, RollingClient, RollingOptions
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.wire.messages import message
from kafka_coord.zk import connect
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
PARTITIONS, WATCHED_S = 3, 8.0
MOST_LINES = dict.fromkeys(LIBRARIES, 20) | {"aiokafka": 120}
"""The lines that one client may log in :data:`WATCHED_S`. Named all the time, a dead instance causes a Java client to
log some 100 lines a second. aiokafka repeats FindCoordinator after 0.1 s, and logs each COORDINATOR_NOT_AVAILABLE."""


@pytest.fixture
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    kraft = request.config.option.kraft
    with started(tmp_path / "servers", brokers=3, as_in_production=False, kraft=kraft) as made:
        TopicAdmin(made.broker.address).create(READ, PARTITIONS, replication=3)
        yield made


def lines(client: RollingClient, since: float) -> int:
    """How many lines the client has logged since then: warnings, and with Java everything that its log has."""
    if client.place.library != JAVA:
        return sum(one.what is What.WARNED and one.at >= since for one in client.notes())
    wall_ms = (since + time.time() - time.monotonic()) * 1000
    stamped = (line.split(" ", 1)[0] for line in client.child.log.read_text().splitlines())
    return sum(word.isdigit() and int(word) >= wall_ms for word in stamped)


def committed(client: RollingClient) -> float:
    return max((one.at for one in client.notes() if one.what is What.COMMITTED), default=0.0)


def named(servers: Servers, at: int, group: str) -> tuple[int, list[int], set[int]]:
    """The error of a FindCoordinator at one instance, the brokers in its Metadata, and the leaders of partitions."""
    with RawClient(servers.instances[at].address) as client:
        asked = message("FindCoordinatorRequest")(coordinator_keys=(group,))
        (found,) = client.ask("FindCoordinator", 4, asked).coordinators
    producer = Producer({"bootstrap.servers": servers.instances[at].address, "log_level": 0})
    listed = producer.list_topics(READ, 10)
    return found.error_code, sorted(listed.brokers), {one.leader for one in listed.topics[READ].partitions.values()}


@pytest.mark.long
@pytest.mark.timeout(600)  # on a busy machine, the servers alone take three minutes
def test_a_killed_instance_is_named_no_longer_than_its_session(servers: Servers, tmp_path: Path) -> None:
    killed, others = 3, (1, 2)
    names = [f"killed-{number}" for number in range(60)]
    where = coordinators(servers, names)
    here = (name for name in names if where[name] == servers.instances[killed].address)
    commands = Commands(tmp_path, RollingOptions(), lambda _text: None)
    with ExitStack() as running:
        running.enter_context(feeding(servers.cluster.bootstrap_servers, READ, PARTITIONS))
        store = running.enter_context(closing(connect(servers.zookeeper)))
        clients = []
        for library, group in zip(LIBRARIES, itertools.islice(here, len(LIBRARIES)), strict=True):
            clients.append(commands.start(library, servers.cluster.instance_servers, group))
            running.callback(clients[-1].child.close)
        eventually(lambda: all(one.reads(PARTITIONS) for one in clients), within_s=90)

        servers.instances[killed].process.kill()
        eventually(lambda: killed not in read_cluster(store).instances, within_s=30)
        time.sleep(1.0)  # the other instances read the change, and clients finish what they had begun
        ended = time.monotonic()
        group = clients[0].place.group
        for at in others:
            error, brokers, leaders = named(servers, at, group)
            assert error == Error.COORDINATOR_NOT_AVAILABLE
            assert brokers == list(others)
            assert killed not in leaders
        time.sleep(WATCHED_S - (time.monotonic() - ended))
        found = {one.place.library: lines(one, ended) for one in clients}
        assert all(count <= MOST_LINES[library] for library, count in found.items()), found

        servers.instances[killed].process.start()
        back = time.monotonic()
        eventually(lambda: all(committed(one) > back for one in clients), within_s=60)
        assert named(servers, 1, group)[:2] == (Error.NONE, [1, 2, 3])
        rebalances = {one.place.library: sum(note.what is What.ASSIGNED for note in one.notes()) for one in clients}
        assert set(rebalances.values()) == {1}, rebalances
