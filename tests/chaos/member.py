"""Runs the process of one consumer of a run, for every kind of consumer."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kafka_coord.dev.cluster.process import stopping_event
from kafka_coord.errors import KafkaCoordError
from tests.chaos.journal import ConsumerWriter
from tests.chaos.parts import Part

log = logging.getLogger("kafka_coord.chaos.member")

AGAIN_S = 0.5
"""The delay before a consumer starts again, if ZooKeeper is unreachable or another process still has its name."""

Working = Callable[[Part, str, str, ConsumerWriter, threading.Event], None]
"""Consumes until the event is set. The arguments are the part, the addresses of ZooKeeper and the brokers, and the
journal.
"""


def run(module: str, description: str | None, work: Working, arguments: Sequence[str] | None) -> int:
    """Runs the process. Returns 0 after a clean leave at SIGTERM, and else the error's exit code."""
    parser = argparse.ArgumentParser(prog=module, description=description)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--part", required=True, type=Part.from_argument)
    parser.add_argument("--directory", required=True, type=Path)
    given = parser.parse_args(arguments)
    part: Part = given.part
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("kazoo", "kafka_coord.zk.kazoo"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    stopping = stopping_event()
    journal = ConsumerWriter(
        given.directory,
        consumer=part.name,
        group=part.group,
        pid=os.getpid(),
        session_timeout_ms=part.session_timeout_ms,
        socket=part.socket,
        kind=part.described(),
    )
    with journal:
        try:
            work(part, given.zookeeper, given.bootstrap, journal, stopping)
        except KafkaCoordError as error:
            log.exception("ended consumer=%s", part.name)
            return error.exit_code
    return 0
