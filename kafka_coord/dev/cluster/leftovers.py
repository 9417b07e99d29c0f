"""Stops servers that an earlier process left running, according to the cluster's record."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from kafka_coord.dev.cluster.class_archive import keep_archives
from kafka_coord.dev.cluster.record import KINDS, ServerRecord

_STOP_TIMEOUT_S = 20.0


def end_servers(servers: Iterable[ServerRecord]) -> None:
    """Stops the servers cleanly: coordinators, then brokers, then ZooKeeper. Kills any that are still running
    after 20 s."""
    running = [(server, server.process) for server in servers if server.process is not None]
    for kind in KINDS:
        ending = [(server, process) for server, process in running if server.kind == kind]
        for _, process in ending:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)  # a paused process would not handle the first signal
        for server, process in ending:
            if process.wait(_STOP_TIMEOUT_S):
                keep_archives(server.log.parent)
            else:
                process.signal(signal.SIGKILL)
                process.wait(_STOP_TIMEOUT_S)
