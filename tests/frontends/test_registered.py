"""How an instance follows the registrations of the others, against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kafka_coord.frontends.kafka.instances import READ_AGAIN_S, RegisteredInstances
from kafka_coord.zk import layout
from kafka_coord.zk.instance import InstanceRegistration
from tests.waiting import beside, eventually
from tests.zk.sessions import expire, opening_stores

pytestmark = pytest.mark.zookeeper
SOON_S = READ_AGAIN_S / 2
"""Sooner than without a watch."""


@contextmanager
def followed(instances: RegisteredInstances) -> Iterator[None]:
    async def run(ended: threading.Event) -> None:
        task = asyncio.create_task(instances.follow())
        while not ended.is_set():
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with beside(lambda ended: asyncio.run(run(ended))):
        yield


def test_an_instance_is_followed_until_its_session_ends(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_store:
        own, other = open_store(), open_store()
        instances = RegisteredInstances(own)
        with followed(instances):
            time.sleep(0.1)
            assert instances.addresses == {}, "nobody has registered, and the parent does not exist"
            own.ensure_path(layout.COORDINATORS)
            InstanceRegistration(own, 1, {"kafka": "one:9092"}, lambda: None).register()
            eventually(lambda: instances.addresses == {1: ("one", 9092)}, within_s=SOON_S)
            InstanceRegistration(other, 2, {"kafka": "two:9092"}, lambda: None).register()
            eventually(lambda: instances.addresses == {1: ("one", 9092), 2: ("two", 9092)}, within_s=SOON_S)
            expire(other)
            eventually(lambda: instances.addresses == {1: ("one", 9092)}, within_s=SOON_S)


def test_an_instance_that_refuses_clients_is_named_no_more_until_it_listens_again(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_store:
        own, other = open_store(), open_store()
        own.ensure_path(layout.COORDINATORS)
        registration = InstanceRegistration(other, 2, {"kafka": "two:9092", "http": "two:80"}, lambda: None)
        registration.register()
        instances = RegisteredInstances(own)
        with followed(instances):
            eventually(lambda: instances.addresses == {2: ("two", 9092)}, within_s=SOON_S)
            registration.tell(ready=True, waiting_for="its broker", withdrawn=["kafka"])
            eventually(lambda: instances.addresses == {}, within_s=SOON_S)
            eventually(lambda: not registration.is_registered())  # it has noticed that its znode was written
            registration.register()
            registration.tell(ready=True, waiting_for="")
            eventually(lambda: instances.addresses == {2: ("two", 9092)}, within_s=SOON_S)


def test_an_instance_without_kafka_clients_is_not_named_and_an_unreadable_one_is(zk_hosts: str) -> None:
    with opening_stores(lambda: zk_hosts) as open_store:
        own = open_store()
        own.ensure_path(layout.COORDINATORS)
        InstanceRegistration(own, 1, {"http": "one:80"}, lambda: None).register()
        own.create(layout.instance(2), b"damaged", ephemeral=True)
        instances = RegisteredInstances(own)
        with followed(instances):
            eventually(lambda: instances.addresses == {2: None}, within_s=SOON_S)
