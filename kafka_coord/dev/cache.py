"""Where what is fetched or made once is kept for later starts."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """``$KAFKA_COORD_CACHE``, else ``kafka_coord`` in the user's cache directory (XDG). It may not exist yet."""
    if own := os.environ.get("KAFKA_COORD_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg, "kafka_coord").absolute()
    return Path.home() / ".cache" / "kafka_coord"
