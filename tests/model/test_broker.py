"""Tests of a broker's registration, with valid addresses and those that no resolver or client accepts."""

from __future__ import annotations

import json

import pytest

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Broker

UNUSABLE_HOSTS = {
    "lone surrogate": "\ud800.example",
    "empty label": "kafka..example",
    "label of 64 characters": f"{'a' * 64}.example",
    "too long": ".".join(["a" * 60] * 5),
    "comma": "a,b",
    "space": "a b",
    "path": "a/b",
    "no host": "",
    "no IPv6 address": "[::1]x",
}


@pytest.mark.parametrize("host", UNUSABLE_HOSTS.values(), ids=UNUSABLE_HOSTS)
@pytest.mark.parametrize("form", ["host and port", "endpoints"])
def test_an_invalid_host_is_refused_in_every_format(form: str, host: str) -> None:
    good = "PLAINTEXT://fine:9092"
    value = {"host": host, "port": 9092} if form != "endpoints" else {"endpoints": [good, f"SSL://{host}:9093"]}
    with pytest.raises(MalformedValue, match="/brokers/ids/1: "):
        Broker.from_znode(json.dumps(value).encode(), 1, "/brokers/ids/1")
    with pytest.raises(MalformedValue, match="/brokers/ids/1: "):
        Broker.from_json(value, 1, "/brokers/ids/1")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("b1", "b1:9092"),
        ("b1.example.", "b1.example.:9092"),
        ("kafka_1", "kafka_1:9092"),
        ("bücher.example", "bücher.example:9092"),
        ("a" * 63, f"{'a' * 63}:9092"),
        ("[2001:db8::1]", "[2001:db8::1]:9092"),
        ("[fe80::1%eth0]", "[fe80::1%eth0]:9092"),
    ],
)
def test_a_valid_host_is_kept_unchanged(host: str, address: str) -> None:
    broker = Broker.from_json({"endpoints": [f"PLAINTEXT://{host}:9092"]}, 1, "here")
    assert [one.address for one in broker.listeners] == [address]
    assert [one.endpoint for one in broker.listeners] == [f"PLAINTEXT://{address}"]


def test_a_lone_surrogate_anywhere_makes_a_registration_unreadable() -> None:
    raw = b'{"endpoints":["IN://b1:9092"],"listener_security_protocol_map":{"IN":"\\ud800"}}'
    with pytest.raises(MalformedValue, match="not JSON"):
        Broker.from_znode(raw, 1, "/brokers/ids/1")
