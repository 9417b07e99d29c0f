"""A small run of :mod:`tests.frontends.attacks`: the instance serves a bystander during each attack."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tests.coordinator.harness import World
from tests.frontends.attacks import Instance, play, play_tls

pytestmark = pytest.mark.zookeeper
SECONDS = 3.0
"""How long each attack lasts."""


def test_a_bystander_is_served_during_each_attack(world: World, tmp_path: Path) -> None:
    instance = Instance(world.hosts, 1, tmp_path)
    try:
        found = play(instance, consumers=100, seconds=SECONDS, share=0.05, say=lambda _line: None)
    finally:
        instance.process.kill()
    assert {name: waited for name, waited in found.items() if waited.worst_s >= SECONDS or waited.lost} == {}


def test_a_bystander_is_served_while_many_tls_handshakes_never_complete(world: World, tmp_path: Path) -> None:
    authority, pem = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    instance = Instance(world.hosts, 1, tmp_path, pem)
    try:
        waited = play_tls(instance, authority.cert_pem.bytes().decode(), count=300, seconds=SECONDS)
    finally:
        instance.process.kill()
    assert waited.worst_s < SECONDS, waited
