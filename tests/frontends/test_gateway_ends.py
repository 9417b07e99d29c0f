"""If a gateway's thread ends, the gateway reports it, and the instance ends too."""

from __future__ import annotations

import pytest

from kafka_coord.frontends.socket.gateway import Gateway
from kafka_coord.frontends.socket.server import GatewayServer
from tests.frontends.simulated import SimulatedHouse
from tests.waiting import eventually


def test_a_gateway_whose_thread_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    house = SimulatedHouse()
    server = GatewayServer("127.0.0.1:0", house.store, 1, house.leadership_view)
    try:
        server.raise_failure()
        assert [thread.is_alive() for thread in server.threads] == [True, True]

        def fails(_gateway: Gateway) -> float:
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr(Gateway, "step", fails)

        def has_ended() -> bool:
            try:
                server.raise_failure()
            except ZeroDivisionError:
                return True
            return False

        eventually(has_ended)
        eventually(lambda: [thread.is_alive() for thread in server.threads] == [True, False])
    finally:
        server.close()
