from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordinator.conftest import world
from tests.coordinator.harness import World
from tests.monitor.dashboard.served import Served, serving

__all__ = ["world"]


@pytest.fixture
def served(world: World) -> Iterator[Served]:
    """Runs the dashboard of the test's chroot."""
    with serving(world.hosts) as made:
        yield made
