"""Makes Spark's JVMs cheap, because most of them live only for seconds in tests.

With an archive of Spark's classes, a Spark application that does little costs 6 CPU seconds instead of 10.
``python -m tests.spark_jvm`` writes the archive.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from kafka_coord.dev.cluster import class_archive
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java

OPTIONS = "SPARK_SUBMIT_OPTS"
_LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The second compiler of the JVM would cost more than it gives."""


def archive() -> Path | None:
    """Returns the path of the archive, or ``None`` if there is no Java that can write one."""
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        with suppress(DevClusterError):
            jars = sorted(Path(spec.origin).parent.glob("jars/*.jar"))
            return class_archive.archive_path("spark", find_java(), jars)
    return None


def options() -> str:
    """Returns the options for a JVM of Spark. It uses the archive if the archive exists by then."""
    path = archive()
    return " ".join(_LIGHT if path is None else (*_LIGHT, *class_archive.use(path)))


def write(path: Path) -> None:
    """Runs a small Spark application and writes its classes into the archive. This takes at least 15 seconds."""
    from kafka_coord.spark.session import spark_session

    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        os.environ[OPTIONS] = " ".join((*_LIGHT, *class_archive.write_at_exit(path, directory)))
        with spark_session("classes", master="local[1]") as spark:
            gateway = spark.sparkContext._gateway
            table = str(directory / "table")
            spark.range(9).selectExpr("id % 3 AS third").groupBy("third").count().write.parquet(table)
            spark.read.parquet(table).count()
            stream = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda rows, _: rows.count())
            query = stream.trigger(processingTime="200 milliseconds").start()
            query.awaitTermination(2)
            query.stop()
        gateway.proc.stdin.close()  # ends the JVM, which then writes the archive
        gateway.proc.wait(120)
        class_archive.keep_archives(directory)


if __name__ == "__main__":
    found = archive()
    if found is not None and not found.is_file():
        write(found)
