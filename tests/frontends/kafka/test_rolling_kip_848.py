"""Changes a group to KIP-848 and back, client by client, by the steps of docs/operations.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from kafka_coord.dev.cluster.topics import TopicAdmin
from tests.cli.running import run
from tests.frontends.kafka.conftest import Front, described, elected, published
from tests.frontends.kafka.feeding import Feed, Reader
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
GROUP, TOPIC, PARTITIONS = "rolled-848", "rolled-848", 4
CLASSIC, KIP_848 = {"group.protocol": "classic"}, {"group.protocol": "consumer"}


@pytest.fixture
def feed(front: Front) -> Iterator[Feed]:
    with elected(front, front.of_elected), published(front.store, front.others):
        TopicAdmin(front.brokers).create(TOPIC, PARTITIONS, replication=3)
        with Feed(front.bootstrap, TOPIC, PARTITIONS).running() as feed:
            yield feed


def test_a_group_changes_to_kip_848_and_back_client_by_client(front: Front, feed: Feed) -> None:
    found: list[int] = []
    coord = partial(run, zookeeper=front.cluster.zookeeper)

    def kind() -> str:
        return described(coord, GROUP)[0]

    def reader(protocol: dict[str, str], places: ExitStack) -> Reader:
        return places.enter_context(Reader(front.bootstrap, GROUP, TOPIC, found, protocol).reading())

    with ExitStack() as before:
        reader(CLASSIC, before)
        assert kind() == "client-assigned"
        to_managed = coord("groups", "convert", GROUP, "--to", "managed", "--execute")
        assert to_managed.code == 0, to_managed.err

    first, second = ExitStack(), ExitStack()
    for protocol in (CLASSIC, KIP_848, CLASSIC):
        for place in (first, second):
            place.close()
            reader(protocol, place)
        assert kind() == "managed"
    so_far = sorted(found)  # two consumers are still reading
    assert so_far == sorted(set(so_far)), "records were read twice although every consumer stopped cleanly"

    to_client_assigned = coord("groups", "convert", GROUP, "--to", "client-assigned", "--execute")
    assert to_client_assigned.code == 0, to_client_assigned.err
    assert kind() == "client-assigned"
    feed.stopping.set()
    eventually(lambda: set(found) >= set(range(feed.produced)), within_s=60)
    first.close()
    second.close()
