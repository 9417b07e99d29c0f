"""A three-server ZooKeeper ensemble in containers. Without a container engine, these tests are skipped with a
reason."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.ensemble import ContainerEnsemble, remove_stale_containers

SCRIPT = Path(__file__).parents[2] / "scripts" / "container-engine"


@pytest.fixture(scope="session")
def zookeeper_image() -> str:
    """The name of the image of ``zk-docker/``, built if necessary (half a minute the first time).

    Skips if no container engine answers; fails instead with ``KAFKA_COORD_REQUIRE_CONTAINERS=1``, which says that the
    machine has one.
    """
    if fault := _engine_fault():
        reason = (
            f"no container engine answers ({fault}), so nothing was tested against the image of zk-docker/: "
            "start Docker, or on Debian as root run scripts/container-engine"
        )
        if os.environ.get("KAFKA_COORD_REQUIRE_CONTAINERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    remove_stale_containers()
    built = subprocess.run([SCRIPT, "image"], capture_output=True, text=True, check=False, timeout=600)
    if built.returncode != 0:
        pytest.fail(
            f"a container engine answers, but the image of zk-docker/ could not be built:\n{built.stderr[-2000:]}"
        )
    return os.environ.get("KAFKA_COORD_ZOOKEEPER_IMAGE", "kafka-coord-zookeeper") + ":latest"


def _engine_fault() -> str:
    """Why no engine can be used; empty if one can.

    Uses the command, as scripts/container-engine does: docker-py leaks its socket if nothing answers, and warnings are
    errors here.
    """
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError:
        return "there is no docker command"
    except subprocess.TimeoutExpired:
        return "docker info did not end within 20 s"
    return "" if asked.returncode == 0 else (asked.stderr.strip().splitlines() or ["docker info failed"])[-1]


@pytest.fixture(scope="package")
def _running_ensemble(zookeeper_image: str) -> Iterator[ContainerEnsemble]:
    with ContainerEnsemble(zookeeper_image) as ensemble:
        yield ensemble


@pytest.fixture
def container_ensemble(_running_ensemble: ContainerEnsemble) -> ContainerEnsemble:
    """Three servers, all serving, whatever the previous test did to them; a test may kill, stop, pause and start them.

    All tests with containers share them, and each writes below its own node.
    """
    _running_ensemble.start()
    return _running_ensemble
