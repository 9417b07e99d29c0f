"""The cache of downloaded and generated files, kept for later starts."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_coord.errors import DevClusterError


def cache_directory() -> Path:
    """``$KAFKA_COORD_CACHE``, else ``kafka_coord`` in the user's cache directory (XDG). It may not exist yet."""
    if own := os.environ.get("KAFKA_COORD_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg, "kafka_coord").absolute()
    return Path.home() / ".cache" / "kafka_coord"


@contextmanager
def becoming(home: Path, what: str) -> Iterator[Path]:
    """A directory that is renamed to ``home`` at the end of the block, unless ``home`` exists by then. For any
    ``OSError`` until then, raises :class:`DevClusterError` that ``what`` cannot be kept there.
    """
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        # Beside its destination, so that the rename at the end is one step on one file system.
        with tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=home.parent, ignore_cleanup_errors=True) as temp:
            made = Path(temp, "made")
            made.mkdir()
            yield made
            with contextlib.suppress(OSError):  # another process was faster: the caller looks at what is there
                made.rename(home)
    except OSError as error:
        raise DevClusterError(
            f"{what} cannot be kept in {home}: {error}; free some space there, or set KAFKA_COORD_CACHE"
        ) from error
