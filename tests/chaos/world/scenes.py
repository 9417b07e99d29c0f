"""The scene of each event of the world."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaException

from kafka_coord.errors import KafkaCoordError
from tests.chaos.journal import Kind, Observed
from tests.chaos.world import clients, servers, topics
from tests.chaos.world.scene import Abandoned, Scene

SCENES: dict[Kind, Callable[[Scene], None]] = {
    Kind.TOPIC_RECREATED: topics.topic_recreated,
    Kind.LATER_PARTITIONS: topics.later_partitions,
    Kind.RETENTION: topics.retention,
    Kind.TRANSACTIONS: topics.transactions,
    Kind.NO_LEADER: servers.no_leader,
    Kind.FORBIDDEN: servers.forbidden_topic,
    Kind.ZOOKEEPER_SILENT: servers.zookeeper_silent,
    Kind.TREE_LOST: servers.tree_lost,
    Kind.IDLE_CONNECTIONS: clients.idle_connections,
    Kind.LARGE_COMMIT: clients.large_commit,
    Kind.INSTANCE_STOPPED: clients.instance_stopped,
    Kind.INSTANCE_KILLED: clients.instance_killed,
    Kind.PROTOCOL_SWITCHED: clients.protocol_switched,
}


def play(kind: Kind, scene: Scene) -> Observed:
    """Plays the scene, and returns what it observed, also if it had to abandon the scene."""
    with scene:
        try:
            SCENES[kind](scene)
        except (Abandoned, KafkaException, KafkaCoordError) as error:
            return scene.found.observed(abandoned=str(error) or type(error).__name__)
    return scene.found.observed()
