"""Fetches the Python clients to compare with. One is a newer confluent-kafka, because the releases that this project's
consumer can use (docs/adr/0011) have only a preview of KIP-848.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kafka_coord.dev.cluster.cache import becoming, cache_directory
from kafka_coord.errors import DevClusterError

NEWER_CLIENT = "2.16.1"


def newer_client(on_progress: Callable[[str], None]) -> Path:
    """Returns the directory from which to import the newer confluent-kafka (see :func:`fetched_client`)."""
    return fetched_client(f"confluent-kafka=={NEWER_CLIENT}", on_progress)


def fetched_client(requirement: str, on_progress: Callable[[str], None]) -> Path:
    """Returns the directory from which to import a release (``name==version``). Fetches it into the cache if necessary.
    Raises :class:`DevClusterError`."""
    home = cache_directory() / f"{requirement.replace('==', '-')}-{sys.implementation.cache_tag}"
    if not home.exists():
        on_progress(f"fetching {requirement} into {home} (once)")
        _fetch_into(home, requirement)
    return home


def _fetch_into(home: Path, requirement: str) -> None:
    with becoming(home, requirement) as fetched:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q"]
        ended = subprocess.run(
            [*pip, "--target", str(fetched), requirement], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise DevClusterError(f"pip could not fetch {requirement}: {ended.stderr.strip()[-500:]}")
    if not home.exists():
        raise DevClusterError(f"{requirement} could not be written to {home}: check its permissions")
