"""Runs one Spark application with two queries, and computes the report of their table in the same JVM.

The first query starts immediately, the second on SIGUSR1. On SIGTERM, both leave the group, and then the process writes
the report.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from kafka_coord.dev.cluster.process import stopping_event
from kafka_coord.dev.demo.worker import run_process
from kafka_coord.dev.jobs.delays import write_report
from kafka_coord.dev.jobs.flights import decoded
from kafka_coord.dev.jobs.streaming import Ended, StreamOptions, run_stream
from kafka_coord.errors import ConsumerError
from kafka_coord.spark.session import find_java, spark_session

log = logging.getLogger(__name__)

LIGHT: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for a fast start, because Spark runs for only a minute."""

_POLL_S = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the process. Returns 0 if both queries left cleanly and the report was written, or else the error's exit
    code."""
    parser = argparse.ArgumentParser(prog="kafka_coord.dev.demo.queries", description=__doc__)
    for option in ("zookeeper", "group", "topic", "output", "first", "second", "max-offsets", "session-timeout-ms"):
        parser.add_argument(f"--{option}", required=True)
    return run_process(parser, _run, arguments)


def _run(given: argparse.Namespace) -> None:
    names = [given.first, given.second]
    second = stopping_event(signal.SIGUSR1)
    with spark_session("kafka-coord demo", master="local[2]", conf=LIGHT, java=find_java().executable) as spark:
        stopping = stopping_event()  # after Spark, which sets its own handler when it starts
        with ThreadPoolExecutor(len(names)) as pool:
            running: list[Future[Ended]] = []
            try:
                while not stopping.wait(_POLL_S):
                    if len(running) < (2 if second.is_set() else 1):
                        options = _options(given, names[len(running)])
                        running.append(pool.submit(run_stream, spark, options, decoded, stopping))
                    if any(query.done() for query in running):
                        break
            finally:
                stopping.set()
            ended = [query.result() for query in running]
        if not all(one.clean for one in ended):
            raise ConsumerError("a query was interrupted in the middle of a micro-batch")
        report = write_report(spark, given.output)
        log.info("report directory=%s flights=%d", report.directory, report.summary.flights)


def _options(given: argparse.Namespace, consumer_id: str) -> StreamOptions:
    source = {
        "zookeeper": given.zookeeper,
        "sessionTimeoutMs": given.session_timeout_ms,
        "group": given.group,
        "topics": given.topic,
        "consumerId": consumer_id,
        "maxOffsetsPerTrigger": given.max_offsets,
        "startingOffsets": "earliest",
    }
    return StreamOptions(source, given.output)


if __name__ == "__main__":
    sys.exit(main())
