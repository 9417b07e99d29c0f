from __future__ import annotations

from functools import partial

import pytest

from tests.cli.running import Run, run
from tests.coordinator.conftest import world
from tests.monitor.conftest import tree

__all__ = ["coord", "tree", "world"]


@pytest.fixture
def coord(zk_hosts: str) -> Run:
    """``coord("groups", "list")``: the command on this test's ZooKeeper."""
    return partial(run, zookeeper=zk_hosts)
