"""Reads many groups at a time, in the form that the coordinator's planner uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafka_coord.coordinator.image import Image, Wanted, read_images
from kafka_coord.groups.cluster import Cluster
from kafka_coord.model import CommandId, Observation, Pause, TopicPartition
from kafka_coord.zk.store import Stat, Store


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The planner's observation of one group, and facts that only operators need. ``registrations`` are the stats of
    the ``ids`` znodes, decodable or not. ``pause`` is the group's own pause, and ``paused_everywhere`` is the pause of
    all groups. If both exist, the observation contains the pause of all groups. ``decided_ms`` is when the target or
    one of the ledgers was last written (ms since 1970). ``awaited`` contains the partitions that start at an end which
    nobody has listed yet, each with the reason ("" if none is known).
    """

    observation: Observation
    registrations: Mapping[str, Stat] = field(default_factory=dict)
    pause: Pause | None = None
    paused_everywhere: Pause | None = None
    decided_ms: int = 0
    awaited: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.observation.group

    @property
    def missing_topics(self) -> list[str]:
        """The topics that members subscribe to by name, but that do not exist."""
        seen = self.observation
        named = {t for m in seen.members.values() if not m.subscription.is_wildcard for t in m.subscription.topics}
        return sorted(named - seen.topics.keys())

    @property
    def pending(self) -> Mapping[str, tuple[CommandId, ...]]:
        """The outstanding commands by consumer, in order of execution. Leaves out consumers without commands."""
        return {c: channel.commands for c, channel in self.observation.channels.items() if channel.commands}


def read_groups(store: Store, groups: Iterable[str], cluster: Cluster) -> dict[str, GroupSnapshot]:
    """Reads the groups in two round trips, however many there are. Skips missing groups and tolerates malformed
    znodes."""
    images = read_images(store, [Wanted(group, reasons=True) for group in groups])
    return {group: _snapshot(image, cluster) for group, image in images.items()}


def _snapshot(image: Image, cluster: Cluster) -> GroupSnapshot:
    places = {consumer for consumer, ledger in image.ledgers.items() if ledger.place is not None}
    observation = replace(
        image.observation(cluster.coordinator.epoch if cluster.coordinator else 0, cluster.topics),
        pause=cluster.pause or image.pause,
        # Treat every absent consumer with a reserved place as within its grace period. Only the coordinator knows when
        # the period ends, and it then acts immediately.
        in_grace=frozenset(places - image.registered),
    )
    return GroupSnapshot(observation, image.registrations, image.pause, cluster.pause, image.decided_ms, image.awaited)
