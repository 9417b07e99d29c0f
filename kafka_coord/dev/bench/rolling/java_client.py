"""Compiles the client that uses Kafka's own library (``RollingClient.java``, with the jars of the brokers)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kafka_coord.dev.bench.rolling.client import ClientPlace
from kafka_coord.dev.bench.rolling.journal import Note, What
from kafka_coord.dev.cluster.class_archive import COMPILER, run_java
from kafka_coord.dev.cluster.jars import KAFKA, class_path
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java

_SOURCE = Path(__file__).with_name("RollingClient.java")
_COMPILING_S = 120.0
_LOGGING = """
appender.a.type = Console
appender.a.name = A
appender.a.target = SYSTEM_ERR
appender.a.layout.type = PatternLayout
appender.a.layout.pattern = %d{UNIX_MILLIS} %p %c{1} %m%n
rootLogger.level = INFO
rootLogger.appenderRef.a.ref = A
"""
_WARNING = re.compile(r"^([0-9]{13}) (?:WARN|ERROR|FATAL) (.*)$")


def java_client(directory: Path) -> str:
    """Compiles the client into ``directory`` and returns the class path. Raises :class:`DevClusterError`, for example
    without a compiler."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log4j2.properties").write_text(_LOGGING, "utf-8")
    found = os.pathsep.join(map(str, (directory, *class_path(KAFKA))))
    ran = run_java([*COMPILER, "-d", str(directory), "-cp", found, str(_SOURCE)], _COMPILING_S)
    if ran.returncode != 0:
        raise DevClusterError(f"{_SOURCE.name} cannot be compiled; is Java a JDK? {ran.stdout.strip()[-500:]}")
    return found


def java_command(class_path: str, place: ClientPlace) -> Sequence[str]:
    """Returns the command that starts the client."""
    flags = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.disable.jmx=true")
    where = (place.bootstrap, place.group, place.topic, place.journal, place.instance_id or "")
    return (str(find_java().executable), *flags, "-cp", class_path, "RollingClient", *where)


def java_warnings(log: Path) -> Iterator[Note]:
    """Yields a note for each warning in the client's log, whose times are those of the wall clock."""
    ahead = time.time() - time.monotonic()
    for line in log.read_text("utf-8", "replace").splitlines():
        found = _WARNING.match(line)
        if found is not None:
            yield Note(int(found[1]) / 1000 - ahead, What.WARNED, found[2])
