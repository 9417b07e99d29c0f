"""Writes the class archives of ZooKeeper and Kafka. A server that finds its archive starts with half the CPU time.

Servers write them too, but only when the first of a kind ends; by then, most servers of a test run have started.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer

if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as directory,
        ZooKeeperServer(Path(directory, "zookeeper")) as server,
        KafkaCluster(Path(directory), server.connect_string, brokers=1),
    ):
        pass
