"""The embedded ZooKeeper: real servers, started, frozen, killed and restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from kafka_coord.dev.cluster.zookeeper import (
    ZooKeeperEnsemble,
    ZooKeeperServer,
    await_no_ephemeral,
    ephemeral_exists,
    four_letter_word,
)
from kafka_coord.errors import DevClusterError
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


def write(hosts: str, path: str, value: bytes) -> None:
    client = KazooClient(hosts)
    client.start(timeout=15)
    client.create(path, value, makepath=True)
    client.stop()
    client.close()


def read(hosts: str, path: str) -> bytes:
    client = KazooClient(hosts)
    client.start(timeout=15)
    try:
        return client.get(path)[0]
    finally:
        client.stop()
        client.close()


def test_the_shared_server_serves_below_a_chroot_of_the_tests_own(zookeeper: ZooKeeperServer, zk_hosts: str) -> None:
    assert zookeeper.mode() == "standalone"
    write(zk_hosts, "/hello", b"there")
    assert read(zk_hosts, "/hello") == b"there"
    assert read(zookeeper.connect_string, f"/{zk_hosts.partition('/')[2]}/hello") == b"there"


def test_written_znodes_survive_a_kill_and_a_start_on_the_same_port(
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory()
    write(server.connect_string, "/kept", b"1")
    hosts, first_pid = server.connect_string, server.pid

    server.kill()
    assert server.mode() is None
    assert not server.running
    server.start()

    assert server.connect_string == hosts
    assert server.pid != first_pid
    assert read(hosts, "/kept") == b"1"


def test_a_paused_server_answers_nothing_until_it_is_resumed(
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory()

    server.pause()
    assert server.running
    assert four_letter_word(server.port, "ruok", timeout_s=0.3) == ""

    server.resume()
    eventually(lambda: four_letter_word(server.port, "ruok") == "imok")


def test_a_paused_server_can_be_stopped(zookeeper_server_factory: Callable[..., ZooKeeperServer]) -> None:
    server = zookeeper_server_factory()
    server.pause()
    server.stop()
    assert not server.running


def test_a_server_on_a_port_that_is_taken_says_so(zookeeper_server_factory: Callable[..., ZooKeeperServer]) -> None:
    taken = zookeeper_server_factory().port
    with pytest.raises(DevClusterError, match=f"port {taken} .* is taken"):
        zookeeper_server_factory(port=taken)


def test_an_ensemble_elects_another_leader_and_takes_the_old_one_back(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    write(zookeeper_ensemble.connect_string, "/kept", b"1")
    old = zookeeper_ensemble.leader()
    assert old is not None

    old.kill()
    eventually(lambda: zookeeper_ensemble.leader() not in {None, old})
    old.start()

    assert old.mode() == "follower"
    assert sorted(server.mode() or "" for server in zookeeper_ensemble.servers) == ["follower", "follower", "leader"]
    assert read(old.connect_string, "/kept") == b"1"


def test_an_ephemeral_znode_exists_or_not_or_is_unknown_while_the_server_is_silent(
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory()
    client = KazooClient(server.connect_string, timeout=60)
    client.start(timeout=15)
    client.create("/held", ephemeral=True)
    assert ephemeral_exists(server.connect_string, "/held") is True
    assert ephemeral_exists(server.connect_string, "/hel") is False
    assert not await_no_ephemeral(server.connect_string, "/held", 0.2)
    server.pause()
    assert ephemeral_exists(server.connect_string, "/held") is None
    back = threading.Timer(0.5, server.resume)
    back.start()
    assert not await_no_ephemeral(server.connect_string, "/held", 7.0), "silence is no answer"
    back.join()
    client.stop()
    client.close()
    assert await_no_ephemeral(server.connect_string, "/held", 20.0)
