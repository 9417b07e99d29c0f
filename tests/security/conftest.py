"""Parties on a real ZooKeeper, each with its own ZooKeeper identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kafka_coord.zk import connect
from kafka_coord.zk.acl import ANY_GROUP, AclPlan, digest_identity
from kafka_coord.zk.options import Digest, ZkOptions
from kafka_coord.zk.session import KazooStore
from tests.coordinator.harness import World

PASSWORDS = {
    "coordinator": "one",
    "operator": "two",
    "delays": "three",
    "sales": "four",
    "others": "five",
    "stranger": "six",
}
STRANGER = ZkOptions()


def plan() -> AclPlan:
    """Users: the coordinator, an operator, consumers of ``delays``, of ``sales``, and of all groups not named."""
    who = {user: (digest_identity(user, password),) for user, password in PASSWORDS.items()}
    return AclPlan(
        coordinators=who["coordinator"],
        operators=who["operator"],
        consumers={"delays": who["delays"], "sales": who["sales"], ANY_GROUP: who["others"]},
    )


def identified(user: str) -> ZkOptions:
    """A client that authenticates as ``user`` and creates znodes by the plan."""
    return ZkOptions(digest=Digest(user, PASSWORDS[user]), plan=plan())


def credentials(user: str) -> ZkOptions:
    """A client that authenticates as ``user`` and creates znodes without ACLs; "stranger" does not authenticate."""
    return STRANGER if user == "stranger" else ZkOptions(digest=Digest(user, PASSWORDS[user]))


OpenAs = Callable[[ZkOptions], KazooStore]


@pytest.fixture
def open_as(zk_hosts: str) -> Iterator[OpenAs]:
    """Opens a session with these options; all are closed when the test ends."""
    with ExitStack() as opened:

        def open_one(options: ZkOptions) -> KazooStore:
            store = connect(zk_hosts, session_timeout_ms=5_000, options=options)
            opened.callback(store.close)
            return store

        yield open_one


@pytest.fixture
def world(zk_hosts: str) -> Iterator[World]:
    """A topic ``flights`` of four partitions, and a client without any identity."""
    made = World(zk_hosts)
    made.kafka.topic("flights", 4)
    yield made
    made.close()
