"""The paths of all znodes, defined only here (docs/design.md, section 2).

All paths are below the chroot of the store. Functions take names that
:func:`kafka_coord.model.names.legal` has checked, so no name contains ``/``.
"""

from __future__ import annotations

from enum import Enum

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
"""The brokers and topics, for every reader: the store reads them below the :class:`Root` that ``CLUSTER`` names."""
CONTROLLER = "/controller"
MIGRATION = "/migration"
KAFKA_ID = "/cluster/id"

CONSUMERS = "/consumers"
COORDINATOR = "/consumers/coordinator"
COORDINATOR_EPOCH = "/consumers/coordinator_epoch"
COORDINATORS = "/consumers/coordinators"
REQUESTS = "/consumers/requests"
PAUSED = "/consumers/paused"
HISTORY = "/consumers/history"
SUCCESSOR = "/consumers/successor"
GROUPS = "/consumers/groups"
LOG_PARTITIONS = "/consumers/kafka"
MISSING_RIGHTS = "/consumers/rights"
RETENTION = "/consumers/retention"
HEARD = "/consumers/heard"
RESTORED = "/consumers/restored"
KINDS = "/consumers/kinds"
CLUSTER = "/consumers/cluster"
MIRRORED_BROKERS = "/consumers/cluster/brokers"
MIRRORED_TOPICS = "/consumers/cluster/topics"
MIRROR_TROUBLE = "/consumers/cluster/trouble"
CHANGED = "/consumers/cluster/changed"

PERSISTENT_ROOTS = (CONSUMERS, COORDINATORS, REQUESTS, GROUPS)
"""The znodes that every instance creates if they are missing, before it stands for election."""


KAFKAS_ROOT = "/brokers"
"""Kafka's own znode, whatever the root is."""
BROKERS = f"{KAFKAS_ROOT}/"
KAFKAS_OWN = "kafka:"


class Root(Enum):
    """Where the znodes of the brokers and topics are (ADR 56). Readers name them ``/brokers/...`` in either case."""

    KAFKA = (BROKER_IDS, BROKER_TOPICS)
    """Kafka's own znodes."""
    MIRROR = (MIRRORED_BROKERS, MIRRORED_TOPICS)
    """What the elected coordinator copies from the brokers' answers."""

    def at(self, path: str) -> str:
        """Returns where the znode is that readers call ``path``."""
        for name, place in zip(Root.KAFKA.value, self.value, strict=True):
            if path == name or path.startswith(f"{name}/"):
                return place + path[len(name) :]
        return path


def kafkas_own(path: str) -> str:
    """Returns the name of Kafka's own znode at ``path``, whatever the root is. Only for reads."""
    return f"{KAFKAS_OWN}{path}"


def as_readers_name_it(path: str) -> str:
    """Returns the name under which readers know the znode at ``path``: the opposite of :meth:`Root.at`."""
    for name, place in zip(Root.KAFKA.value, Root.MIRROR.value, strict=True):
        if path == place or path.startswith(f"{place}/"):
            return name + path[len(place) :]
    return path


def broker(broker_id: str | int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_topic(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}"


def partition_state(topic: str, partition: int) -> str:
    """Returns the path of Kafka's znode that names the leader of a partition."""
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}/state"


def instance(broker_id: int) -> str:
    """Returns the path of a running instance's znode, elected or not."""
    return f"{COORDINATORS}/{broker_id}"


def log_partition(partition: int) -> str:
    """Returns the path of the znode for a partition of the groups log. The znode's version is the current term."""
    return f"{LOG_PARTITIONS}/{partition}"


def kinds(partition: int) -> str:
    """Returns the path of the kinds of the groups that are in a partition of the groups log."""
    return f"{KINDS}/{partition}"


def kinds_heard(partition: int, broker_id: int) -> str:
    """Returns the path at which an instance says that it has heard of the kinds."""
    return f"{KINDS}/{partition}/{broker_id}"


def given_up(partition: int, broker_id: int) -> str:
    """Returns the path at which an instance says which member ids nobody uses any more."""
    return f"{KINDS}/{partition}/{broker_id}-given-up"


def missing_right(broker_id: int) -> str:
    """Returns the path of the znode in which an instance tells that its broker denies it a right."""
    return f"{MISSING_RIGHTS}/{broker_id}"


def request(request_id: str) -> str:
    return f"{REQUESTS}/{request_id}"


REQUEST_PREFIX = f"{REQUESTS}/request-"


def group(name: str) -> str:
    return f"{GROUPS}/{name}"


def ids(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/ids"


def registration(group_name: str, consumer: str) -> str:
    return f"{GROUPS}/{group_name}/ids/{consumer}"


def assignment(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/assignment"


def owners(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/owners"


def ledger(group_name: str, consumer: str) -> str:
    return f"{GROUPS}/{group_name}/owners/{consumer}"


def held(group_name: str) -> str:
    """Returns the path of what a restored group's members held when the backup was made."""
    return f"{GROUPS}/{group_name}/held"


def channels(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/channel"


def channel(group_name: str, consumer: str) -> str:
    return f"{GROUPS}/{group_name}/channel/{consumer}"


def command(group_name: str, consumer: str, command_id: str) -> str:
    return f"{GROUPS}/{group_name}/channel/{consumer}/{command_id}"


def offsets(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/offsets"


def topic_offsets(group_name: str, topic: str) -> str:
    return f"{GROUPS}/{group_name}/offsets/{topic}"


def offset(group_name: str, topic: str, partition: int) -> str:
    return f"{GROUPS}/{group_name}/offsets/{topic}/{partition}"


def details(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/details"


def topic_details(group_name: str, topic: str) -> str:
    return f"{GROUPS}/{group_name}/details/{topic}"


def offset_details(group_name: str, topic: str, partition: int) -> str:
    """Returns the path of a Kafka client's leader epoch and metadata for an offset."""
    return f"{GROUPS}/{group_name}/details/{topic}/{partition}"


def unresolved(group_name: str) -> str:
    """Returns the parent of the znodes that say what the group's members cannot resolve."""
    return f"{GROUPS}/{group_name}/unresolved"


def refusals(group_name: str, consumer: str) -> str:
    """Returns the path of the topics that a consumer is not allowed to read."""
    return f"{GROUPS}/{group_name}/unresolved/{consumer}"


def awaited_end(group_name: str, topic: str, partition: int) -> str:
    """Returns the path that exists from a partition's first start at its end until someone has listed that end. No
    consumer's name contains a colon."""
    return f"{GROUPS}/{group_name}/unresolved/{topic}:{partition}"


def history(group_name: str) -> str:
    """Returns the path of the history of a group's last decisions."""
    return f"{GROUPS}/{group_name}/history"


def settled(group_name: str) -> str:
    """Returns the path of the znode that records a group as at rest, and the state it was in."""
    return f"{GROUPS}/{group_name}/settled"


def paused(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/paused"
