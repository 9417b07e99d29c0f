"""The image of ``zk-docker/`` as an ensemble of three: it elects, replicates, and survives the loss of its leader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient

from kafka_coord.dev.cluster.zookeeper import four_letter_word
from tests.containers.ensemble import ContainerEnsemble
from tests.waiting import eventually

pytestmark = pytest.mark.containers


@contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_each_server_answers_and_one_leads_two_that_follow(container_ensemble: ContainerEnsemble) -> None:
    answers = [four_letter_word(server.port, "srvr") for server in container_ensemble.servers]

    assert all("Zookeeper version: 3." in answer for answer in answers), answers
    assert sorted(str(server.mode()) for server in container_ensemble.servers) == ["follower", "follower", "leader"]


def test_a_znode_written_through_one_server_is_read_through_another_after_the_leader_was_killed(
    container_ensemble: ContainerEnsemble,
) -> None:
    leader = container_ensemble.leader()
    assert leader is not None
    writer, reader = (server for server in container_ensemble.servers if server is not leader)
    with connected(writer.connect_string) as client:
        client.create("/survives", b"the leader")

    leader.kill()
    # Measured 0.3 s; above 10 s if a follower had cached that the new leader's name did not resolve at the start.
    eventually(lambda: container_ensemble.leader() not in (None, leader), within_s=8, every_s=0.1)

    with connected(reader.connect_string) as client:
        assert client.get("/survives")[0] == b"the leader"
        client.set("/survives", b"written by the two that are left")


def test_a_killed_server_comes_back_on_its_port_with_what_was_written_without_it(
    container_ensemble: ContainerEnsemble,
) -> None:
    absent, present, _ = container_ensemble.servers
    hosts = absent.connect_string
    absent.kill()
    assert not absent.running
    assert absent.mode() is None
    eventually(present.serving, within_s=30, every_s=0.1)  # if that was the leader, the others elect one first
    with connected(present.connect_string) as client:
        client.create("/written-meanwhile", b"1")

    absent.start()

    assert absent.connect_string == hosts
    with connected(hosts) as client:
        client.sync("/written-meanwhile")
        assert client.get("/written-meanwhile")[0] == b"1"


def test_a_paused_server_answers_nothing_until_it_is_resumed(container_ensemble: ContainerEnsemble) -> None:
    server = container_ensemble.servers[0]
    server.pause()
    assert four_letter_word(server.port, "srvr", timeout_s=1) == ""

    server.resume()

    eventually(server.serving, within_s=30, every_s=0.1)
