from __future__ import annotations

from functools import partial

import pytest

from tests.cli.running import Run, run
from tests.coordinator.conftest import world
from tests.monitor.conftest import tree

__all__ = ["coord", "tree", "world"]


@pytest.fixture
def coord(zk_hosts: str) -> Run:
    """Runs a command on this test's ZooKeeper: ``coord("groups", "list")``."""
    return partial(run, zookeeper=zk_hosts)
