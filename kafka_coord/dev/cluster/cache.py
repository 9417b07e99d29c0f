"""Manages the cache of downloaded and generated files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_coord.errors import DevClusterError


def cache_directory() -> Path:
    """Returns ``$KAFKA_COORD_CACHE``, or else ``kafka_coord`` in the user's cache directory (XDG). The directory may
    not exist yet."""
    if own := os.environ.get("KAFKA_COORD_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg, "kafka_coord").absolute()
    return Path.home() / ".cache" / "kafka_coord"


@contextmanager
def becoming(home: Path, what: str) -> Iterator[Path]:
    """Creates a directory, and renames it to ``home`` at the end of the block, or discards it if ``home`` exists by
    then. Turns an ``OSError`` into a :class:`DevClusterError` saying that ``what`` cannot be stored there.
    """
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        # The directory is beside its destination, because a rename is atomic only within a file system.
        with tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=home.parent, ignore_cleanup_errors=True) as temp:
            made = Path(temp, "made")
            made.mkdir()
            yield made
            with contextlib.suppress(OSError):  # another process was faster, and the caller checks what it stored
                made.rename(home)
    except OSError as error:
        raise DevClusterError(
            f"{what} cannot be stored in {home}: {error}; free some space there, or set KAFKA_COORD_CACHE"
        ) from error
