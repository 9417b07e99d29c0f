"""Tests of the socket channel's server, with real sockets and a simulated ZooKeeper."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from kafka_coord.channel.frames import Decoder, Rpc, encode
from kafka_coord.frontends.socket.gateway import Gateway
from kafka_coord.frontends.socket.server import GatewayServer
from tests.frontends.simulated import SimulatedHouse
from tests.waiting import eventually

Listen = Callable[[str], GatewayServer]


@pytest.fixture
def listen() -> Iterator[Listen]:
    servers = []

    def start(address: str) -> GatewayServer:
        house = SimulatedHouse()
        servers.append(GatewayServer(address, house.store, 1, house.leadership_view))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_the_server_answers_at_its_address_and_forgets_closed_connections(listen: Listen) -> None:
    server = listen("127.0.0.1:0")
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(encode(Rpc().ask("cluster-metadata", {})[1]))
        (answer,) = Decoder().feed(connection.recv(65_536))
        assert answer["type"] == "answer"
        assert len(server.gateway._connections) == 1
    assert eventually(lambda: not server.gateway._connections)


def test_an_idle_gateway_rarely_runs_a_step(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step = [], Gateway.step

    def counted(gateway: Gateway) -> float:
        steps.append(gateway)
        return step(gateway)

    monkeypatch.setattr(Gateway, "step", counted)
    listen("127.0.0.1:0")
    time.sleep(0.5)
    assert 0 < len(steps) < 50
