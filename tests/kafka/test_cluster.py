"""The brokers of a cluster, and the error if none can be asked."""

from __future__ import annotations

import asyncio

import pytest

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.errors import BrokerError, SettingsError
from kafka_coord.kafka.cluster import ClusterClient


@pytest.mark.parametrize("bootstrap", ["broker1", "broker1:9092,:1", "SSL://broker1"])
def test_invalid_addresses_are_reported_as_a_mistake_in_the_settings(bootstrap: str) -> None:
    with pytest.raises(SettingsError, match=r"kafka\.bootstrap\.servers: .* expected HOST:PORT"):
        ClusterClient.of(bootstrap, {})


def test_each_broker_that_does_not_answer_is_named() -> None:
    ports = free_port(), free_port()
    cluster = ClusterClient.of(",".join(f"127.0.0.1:{port}" for port in ports), {})

    async def ask() -> None:
        try:
            await cluster.metadata()
        finally:
            cluster.close()

    with pytest.raises(BrokerError, match=rf"no broker answers: .*:{ports[0]}: .*; .*:{ports[1]}: "):
        asyncio.run(ask())
