"""The elected instance freezes, or ZooKeeper does not answer: no consumer loses its membership."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_coord.channel.link import SocketClient, SocketLink
from kafka_coord.channel.operations import Registration
from kafka_coord.dev.cluster.coordinator import serve_beside
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import StoreUnavailable
from kafka_coord.model import Member, Subscription
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import SystemClock, layout
from kafka_coord.zk.store import SessionState
from tests.coordinator.harness import World
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

SESSION_MS, INSTANCE_SESSION_MS = 12_000, 4_000
CONSUMERS = 6


class Follower:
    """A consumer that keeps its membership and reads no records. ``states`` lists its session's states in order."""

    def __init__(self, name: str, bootstrap: list[str]) -> None:
        self.link = SocketLink(
            "delays",
            name,
            SystemClock(),
            session_timeout_ms=SESSION_MS,
            resume_key=name,
            auto_commit=True,
            wake=lambda: None,
            patience_s=5.0,
        )
        self.states: list[SessionState] = []
        self.link.on_session(self.states.append)
        self.client = SocketClient(bootstrap, self.link)
        self.client.start()
        member = Member(name, 0, Subscription.to(["flights"]), session_timeout_ms=SESSION_MS)
        self._value = fields.dump(member.to_json())
        self.registration: Registration = eventually(self._register)

    def _register(self) -> Registration | None:
        try:
            found = self.link.register(self._value)
        except StoreUnavailable:
            return None
        return found if isinstance(found, Registration) else None

    def came_through(self) -> bool:
        """Whether it lost its connection and has a new one, with or without its former membership."""
        return SessionState.SUSPENDED in self.states and self.states[-1] is SessionState.CONNECTED

    def close(self) -> None:
        self.link.close()
        self.client.close()


@pytest.fixture
def serving(world: World, tmp_path: Path) -> Iterator[dict[str, ChildProcess]]:
    """Three instances, keyed by the address on which each listens."""
    made = {}
    for number in (1, 2, 3):
        address = f"127.0.0.1:{free_port()}"
        command = [*serve_beside(number, world.hosts), "--listen-channel", address]
        command += ["--session-timeout-ms", str(INSTANCE_SESSION_MS)]
        made[address] = ChildProcess(f"serve-{number}", command, tmp_path / f"serve-{number}.log")
        made[address].start()
    eventually(lambda: world.node(layout.COORDINATOR) and len(world.children(layout.COORDINATORS)) == len(made))
    yield made
    for process in made.values():
        process.kill()


def test_all_consumers_keep_their_memberships_when_the_coordinator_freezes(
    world: World, serving: dict[str, ChildProcess]
) -> None:
    followers = []
    try:
        for number in range(CONSUMERS):
            followers.append(Follower(f"c{number}", list(serving)))
            time.sleep(SESSION_MS / 3000 / CONSUMERS)  # spreads the consumers' pings evenly over the interval
        leases = [one.link.lease_deadline() for one in followers]
        eventually(lambda: all(one.link.lease_deadline() > lease for one, lease in zip(followers, leases, strict=True)))
        elected = world.value(layout.COORDINATOR)

        serving[elected["endpoints"]["channel"]].pause()

        eventually(lambda: all(one.came_through() for one in followers), within_s=60)
        assert world.value(layout.COORDINATOR)["epoch"] > elected["epoch"]
        assert [one.states.count(SessionState.LOST) for one in followers] == [0] * CONSUMERS
        assert [one.link.session_id for one in followers] == [one.registration.session_id for one in followers]
    finally:
        for one in followers:
            one.close()


def test_all_consumers_keep_their_memberships_when_zookeeper_is_away_for_longer_than_their_sessions(
    zookeeper_server_factory: Callable[..., ZooKeeperServer], tmp_path: Path
) -> None:
    server = zookeeper_server_factory()
    world = World(server.connect_string)
    address = f"127.0.0.1:{free_port()}"
    command = [*serve_beside(1, world.hosts), "--listen-channel", address]
    process = ChildProcess("serve-1", command, tmp_path / "serve-1.log")
    followers: list[Follower] = []
    try:
        process.start()
        eventually(lambda: world.node(layout.COORDINATOR))
        followers += [Follower(f"c{number}", [address]) for number in range(CONSUMERS)]
        server.kill()
        time.sleep(SESSION_MS / 1000 + 3)
        assert all(one.link.lease_deadline() < time.monotonic() for one in followers), "no lease lasts that long"
        server.start()
        eventually(lambda: all(one.link.lease_deadline() > time.monotonic() for one in followers), within_s=60)
        assert [one.states.count(SessionState.LOST) for one in followers] == [0] * CONSUMERS
        assert [one.link.session_id for one in followers] == [one.registration.session_id for one in followers]
    finally:
        for one in followers:
            one.close()
        process.kill()
        world.close()
