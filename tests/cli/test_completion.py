"""Tests of the shell's completion, on a real ZooKeeper."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from kafka_coord.cli.main import cli
from kafka_coord.groups.requests import submit
from kafka_coord.model import Request, RequestType
from kafka_coord.zk import layout
from tests.coordinator.harness import World

pytestmark = pytest.mark.zookeeper


def offered(hosts: str, words: str, incomplete: str = "") -> list[str]:
    found = ShellComplete(cli, {}, "kafka-coord", "_KAFKA_COORD_COMPLETE")
    return [item.value for item in found.get_completions(["-z", hosts, *words.split()], incomplete)]


def test_names_are_completed(world: World, zk_hosts: str) -> None:
    for group in ("delays", "routes"):
        world.store.ensure_path(layout.ids(group))
    for consumer in ("c1", "c2", "d1"):
        world.store.create(layout.registration("delays", consumer), ephemeral=True)
    world.store.ensure_path(layout.instance(2))
    request = submit(world.store, Request(RequestType.RESIGN))

    assert offered(zk_hosts, "groups describe") == ["delays", "routes"]
    assert offered(zk_hosts, "groups pause", "r") == ["routes"]
    assert offered(zk_hosts, "groups evict delays c1", "c") == ["c1", "c2"]
    assert offered(zk_hosts, "groups evict nobody") == []
    assert offered(zk_hosts, "groups reset-offsets delays --topic", "fl") == ["flights"]
    assert offered(zk_hosts, "groups settings delays --assignor", "r") == ["range", "roundrobin"]
    assert offered(zk_hosts, "coordinator resign --to") == ["2"]
    assert offered(zk_hosts, "coordinator withdraw") == [request]


@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "no such host", ""])
def test_without_zookeeper_nothing_is_completed_or_printed(hosts: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert offered(hosts, "groups describe", "d") == []
    assert capfd.readouterr() == ("", "")
