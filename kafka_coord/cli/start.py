"""Runs the console script. If an extra (even ``cli``) is not installed, prints how to install it."""

from __future__ import annotations

import sys

from kafka_coord.errors import SettingsError

_EXTRA = {
    "click": "cli",
    "crc32c": "cli",
    "maven_artifact": "dev",
    "opentelemetry": "otel",
    "rich": "cli",
    "yaml": "cli",
    "prometheus_client": "serve",
    "pyarrow": "spark",
    "pyspark": "spark",
}
"""Maps a module to the extra (in setup.cfg) that installs it."""


def install(extra: str) -> str:
    if extra == "dev":
        return "pip install ./kafka_coord/dev (in a clone of the repository)"
    return f"pip install 'kafka-coord[{extra}]'"


def missing(error: Exception) -> str | None:
    """Returns the message for an import that failed because of a missing extra. Returns ``None`` for other errors."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    if (extra := _EXTRA.get(module)) is None:
        return None
    return f"this command needs the package {module}, which is not installed: {install(extra)}"


def main() -> None:
    try:
        from kafka_coord.cli.main import main as program
    except ModuleNotFoundError as error:
        if (wanting := missing(error)) is None:
            raise
        sys.stderr.write(f"kafka-coord: {wanting}\n")
        sys.exit(SettingsError.exit_code)
    program()
