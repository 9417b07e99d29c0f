"""Makes Spark's JVMs cheap, because they live for seconds in tests. Each test starts its own.

With an archive of Spark's classes, a Spark application that does little costs 6 CPU seconds instead of 10.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kafka_coord.dev.cluster import class_archive
from kafka_coord.dev.cluster.jars import pyspark_jars_directory
from kafka_coord.dev.cluster.java import archives_classes
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.java import find_java

_LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The second compiler of the JVM would cost more than it gives."""

_PROGRAM = """
import sys
from kafka_coord.spark.session import spark_session

with spark_session("classes", master="local[1]") as spark:
    gateway = spark.sparkContext._gateway
    rows = spark.range(9).selectExpr("id % 3 AS third").groupBy("third").count()
    rows.write.parquet(sys.argv[1])
    assert spark.read.parquet(sys.argv[1]).count() == 3
    stream = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda rows, _: rows.count())
    query = stream.trigger(processingTime="200 milliseconds").start()
    query.awaitTermination(2)
    query.stop()
gateway.proc.stdin.close()  # ends the JVM, which then writes the archive
gateway.proc.wait(120)
"""


def options() -> str:
    """Returns the options for a JVM of Spark. It uses the archive if the archive exists by then."""
    archive = _archive()
    return " ".join(_LIGHT if archive is None else (*_LIGHT, *class_archive.use(archive)))


def archive_classes() -> None:
    """Writes the archive, unless it exists. This takes about 15 seconds. Without an archive, Spark only starts more
    slowly, so a failure is ignored."""
    archive = _archive()
    if archive is None or archive.is_file():
        return
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        flags = (*_LIGHT, *class_archive.write_at_exit(archive, directory))
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(directory / "table")],
            env=os.environ | {"SPARK_SUBMIT_OPTS": " ".join(flags)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
        class_archive.keep_archives(directory)


def _archive() -> Path | None:
    """Returns the path of the archive, or ``None`` if there is no Java that can write one."""
    try:
        java = find_java()
        if not archives_classes(java):
            return None
        return class_archive.archive_path("spark", java, sorted(pyspark_jars_directory().glob("*.jar")))
    except DevClusterError:
        return None
