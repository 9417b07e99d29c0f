"""Fetches a newer confluent-kafka for members of KIP-848 groups. This project's consumer cannot use this release
(docs/adr/0011), and its own release has only a preview of KIP-848.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kafka_coord.dev.cluster.cache import becoming, cache_directory
from kafka_coord.errors import DevClusterError

NEWER_CLIENT = "2.16.1"

_MEGABYTES = 20


def newer_client(on_progress: Callable[[str], None]) -> Path:
    """Returns the directory from which to import the release. Fetches the release into the cache if necessary. Raises
    :class:`DevClusterError`."""
    home = cache_directory() / f"confluent-kafka-{NEWER_CLIENT}-{sys.implementation.cache_tag}"
    if not home.exists():
        on_progress(f"fetching confluent-kafka {NEWER_CLIENT} into {home} ({_MEGABYTES} MB, once)")
        _fetch_into(home)
    return home


def _fetch_into(home: Path) -> None:
    with becoming(home, f"confluent-kafka {NEWER_CLIENT}") as fetched:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q", "--no-deps"]
        ended = subprocess.run(
            [*pip, "--target", str(fetched), f"confluent-kafka=={NEWER_CLIENT}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise DevClusterError(f"pip could not fetch confluent-kafka {NEWER_CLIENT}: {ended.stderr.strip()[-500:]}")
    if not home.exists():
        raise DevClusterError(f"confluent-kafka {NEWER_CLIENT} could not be written to {home}: check its permissions")
