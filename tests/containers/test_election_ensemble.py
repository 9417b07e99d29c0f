"""The election on a three-server ensemble of the image of ``zk-docker/``: the same scenarios as on one server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.containers.ensemble import ContainerEnsemble
from tests.waiting import eventually
from tests.zk.election_scenarios import SCENARIOS, Candidate
from tests.zk.sessions import OpenStore, create_chroot, opening_stores

pytestmark = pytest.mark.containers

_chroots = itertools.count(1)


@pytest.fixture
def open_store(container_ensemble: ContainerEnsemble) -> Iterator[OpenStore]:
    """Opens stores on any server of the ensemble, below a chroot for this test only."""
    hosts = create_chroot(container_ensemble.connect_string, f"/election-{next(_chroots)}", connect_timeout_s=60)
    with opening_stores(lambda: hosts) as open_one:
        yield open_one


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_election(scenario: Callable[[OpenStore], None], open_store: OpenStore) -> None:
    scenario(open_store)


def test_the_coordinator_outlives_the_zookeeper_leader(
    container_ensemble: ContainerEnsemble, open_store: OpenStore
) -> None:
    first = Candidate(open_store, 1, call_timeout_s=10)
    second = Candidate(open_store, 2, call_timeout_s=10)
    won = first.wins()
    leading = container_ensemble.leader()
    assert leading is not None

    leading.kill()

    eventually(lambda: container_ensemble.leader() not in (None, leading), within_s=30, every_s=0.1)
    eventually(lambda: first.has_written(won, "/consumers/after-the-failover"), within_s=30)
    eventually(lambda: second.has_written(won, "/consumers/by-anyone-who-holds-the-fence"), within_s=30)
    eventually(first.election.still_leads, within_s=30)
    assert first.election.elect() == won
    assert second.election.elect() is None
