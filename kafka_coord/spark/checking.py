"""Checks the packages and the Java that a Spark query needs before Spark starts, so that the error says what to
install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kafka_coord.errors import SettingsError

MINIMUM_JAVA = 17
_EXTRA = "pip install 'kafka-coord[spark]'"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Supported:
    """The supported releases of ``package``, from ``least`` up to, but not including, ``below``. ``why`` gives the
    reason for these limits."""

    package: str
    least: tuple[int, ...]
    below: tuple[int, ...]
    why: str

    def problem(self, version: str) -> str:
        """Returns a message that says what is wrong with ``version``, or ``""`` if it is supported."""
        if self.least <= _numbers(version) < self.below:
            return ""
        return f"{self.package} {version} is installed, but only {self} are supported ({self.why})"

    def __str__(self) -> str:
        least, below = (".".join(map(str, numbers)) for numbers in (self.least, self.below))
        return f"versions from {least} up to, but not including, {below}"


SUPPORTED = (
    Supported("pyspark", (4, 2), (5,), "Python sources with admission control came with 4.2"),
    Supported("pandas", (2, 2), (3,), "PySpark 4 does not work with pandas 3"),
    Supported("pyarrow", (15,), (1_000,), "PySpark 4 passes batches in Arrow's format"),
)
"""The packages that a query needs. The limits match those in setup.cfg; a test compares the two."""


def require_versions(installed: Mapping[str, str] | None = None) -> None:
    """Raises :class:`SettingsError` if a required package is missing or its version is not supported. The message says
    which releases are supported and how to install them. ``installed`` maps packages to versions (default: those of
    this Python).
    """
    problems = list(_problems(_installed() if installed is None else installed))
    if problems:
        raise SettingsError(f"{'; '.join(problems)}; {_EXTRA} installs supported versions")


def require_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raises :class:`SettingsError` if the Java that Spark would start is missing or too old.

    Like Spark's start scripts, checks ``$JAVA_HOME/bin/java`` if ``JAVA_HOME`` is set, and otherwise the first ``java``
    on the ``PATH``.
    """
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    install = (
        f"Spark needs Java {MINIMUM_JAVA} or newer. Install it, for example with "
        f"`apt-get install openjdk-{MINIMUM_JAVA}-jre-headless`, or set JAVA_HOME to an existing installation"
    )
    if java is None:
        raise SettingsError(f"no Java found: JAVA_HOME is not set, and there is no java on the PATH. {install}")
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"cannot run {java}{' (from JAVA_HOME)' if home else ''}: {error}. {install}") from None
    version = _JAVA_VERSION.search(process.stderr + process.stdout)
    if version is None:
        raise SettingsError(f"{java} does not report its version. {install}")
    if int(version.group(1)) < MINIMUM_JAVA:
        raise SettingsError(f"{java} is Java {version.group(1)}. {install}")


def _problems(installed: Mapping[str, str]) -> Iterable[str]:
    for supported in SUPPORTED:
        version = installed.get(supported.package)
        problem = (
            supported.problem(version)
            if version
            else f"{supported.package} is not installed; {supported} are supported"
        )
        if problem:
            yield problem


def _installed() -> dict[str, str]:
    versions = {}
    for supported in SUPPORTED:
        try:
            versions[supported.package] = metadata.version(supported.package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers in a version, such as (4, 2, 0) for ``4.2.0.dev1``."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()
