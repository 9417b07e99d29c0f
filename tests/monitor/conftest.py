from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordinator.conftest import world
from tests.monitor.written import Tree, opened

__all__ = ["tree", "world"]


@pytest.fixture
def tree(zk_hosts: str) -> Iterator[Tree]:
    """This test's own chroot. The test writes its znodes, and no coordinator or consumer runs."""
    with opened(zk_hosts) as store:
        yield Tree(store)
