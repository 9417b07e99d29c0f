"""Sorts a group's consumers into alive, gone and unknown."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.model import Channel, Ledger, Member, Observation, Unreadable
from kafka_coord.zk import layout

NO_CHANNEL = Channel()


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """A group's consumers, classified by what may be done with them. Mappings are keyed by consumer name.

    Consumers in ``live`` have a readable registration. Those in ``in_grace`` are gone, but their place is kept. Those
    in ``gone`` have left behind a ledger, commands or (if retired) a channel, and the incarnation that left them is no
    longer alive.

    The state of the remaining consumers is only partly known. Those in ``registration_unreadable`` are alive but are
    not members, so the partitions in their ledgers stay held. Those in ``ledger_unreadable`` are alive and may hold any
    partition that no other ledger names. As long as there is such a consumer, the plan only starts partitions that some
    readable ledger in the snapshot holds.
    """

    live: dict[str, Member]
    in_grace: dict[str, Member]
    gone: tuple[str, ...]
    registration_unreadable: tuple[str, ...]
    ledger_unreadable: tuple[str, ...]
    any_registration_unreadable: frozenset[str]
    """All consumers with an unreadable registration, including those that do not hold any partitions yet."""
    any_ledger_unreadable: frozenset[str]
    """The consumers in ``ledger_unreadable``, plus any departed consumers with an unreadable ledger."""

    def held_by_unreadable(self, observation: Observation) -> list[Ledger]:
        """Returns the ledgers of consumers whose registration is unreadable."""
        return [observation.ledgers[c] for c in self.registration_unreadable if c in observation.ledgers]

    @property
    def effective(self) -> dict[str, Member]:
        """The members that a target covers, sorted by name."""
        both = self.live | self.in_grace
        return {consumer: both[consumer] for consumer in sorted(both)}


def membership_of(observation: Observation) -> GroupMembership:
    """Classifies a group's consumers. No other code decides which consumers are dead."""
    group = observation.group
    unread_ids = _unreadable_below(observation, layout.ids(group))
    unread_ledgers = _unreadable_below(observation, layout.owners(group))
    live = {consumer: member for consumer, member in observation.members.items() if consumer not in unread_ids}
    registration_unreadable = set()
    for consumer, incarnation in unread_ids.items():
        ledger = observation.ledgers.get(consumer)
        came_back = ledger is not None and incarnation and ledger.incarnation != incarnation
        if consumer in unread_ledgers or (ledger is not None and not came_back):
            registration_unreadable.add(consumer)
    in_grace = {}
    for consumer in sorted(observation.in_grace):
        ledger = observation.ledgers.get(consumer)
        if ledger is not None and ledger.place is not None and consumer not in live and consumer not in unread_ids:
            in_grace[consumer] = ledger.place
    left_something = {
        *observation.ledgers,
        *unread_ledgers,
        *observation.retired,
        *observation.refusals,
        *(consumer for consumer, channel in observation.channels.items() if channel.commands),
    }
    gone = left_something - live.keys() - in_grace.keys() - registration_unreadable
    # Without a ledger, a consumer with an unreadable registration has not left anything to release. The commands in its
    # channel can stay: its first update drops them once the registration is readable (see member_update_of).
    gone -= {consumer for consumer in unread_ids if consumer not in observation.ledgers}
    ledger_unreadable = {consumer for consumer in unread_ledgers if consumer in live or consumer in unread_ids}
    return GroupMembership(
        live=live,
        in_grace=in_grace,
        gone=tuple(sorted(gone)),
        registration_unreadable=tuple(sorted(registration_unreadable)),
        ledger_unreadable=tuple(sorted(ledger_unreadable)),
        any_registration_unreadable=frozenset(unread_ids),
        any_ledger_unreadable=frozenset(unread_ledgers),
    )


def held_before(observation: Observation) -> tuple[Ledger, ...]:
    """Returns what members held before the tree was restored and may still be reading, as ledgers of incarnations that
    are nobody's."""
    if observation.holds is None or observation.holds_over:
        return ()
    left = observation.holds.remaining(observation.members)
    return tuple(Ledger(consumer, 0, owned=hold.partitions, process=hold.process) for consumer, hold in left.items())


def holds_are_unreadable(observation: Observation) -> bool:
    path = layout.held(observation.group)
    return any(found.path == path for found in observation.unreadable)


def outstanding(observation: Observation, consumer: str) -> Channel:
    return observation.channels.get(consumer, NO_CHANNEL)


def is_dead(ledger: Ledger, member: Member) -> bool:
    """Returns whether the ledger belongs to an incarnation other than the registered one."""
    return ledger.incarnation != member.incarnation


def target_is_unreadable(observation: Observation) -> bool:
    path = layout.assignment(observation.group)
    return any(found.path == path for found in observation.unreadable)


def unreadable_offsets(observation: Observation) -> list[Unreadable]:
    """Returns the offset znodes that keep partitions from being started; see
    :func:`kafka_coord.coordinator.decision_writer.decide`."""
    below = layout.offsets(observation.group) + "/"
    return [found for found in observation.unreadable if found.path.startswith(below)]


def unreadable_commands(observation: Observation) -> dict[str, str]:
    """Maps each consumer with an unreadable command in its channel to the name of that command. Such a consumer carries
    out no further commands."""
    below = layout.channels(observation.group) + "/"
    paths = [found.path.removeprefix(below) for found in observation.unreadable if found.path.startswith(below)]
    return {consumer: name for consumer, _, name in (path.partition("/") for path in paths) if name}


def _unreadable_below(observation: Observation, parent: str) -> dict[str, int]:
    """Maps each consumer whose znode below ``parent`` is unreadable to its incarnation (0 if unknown)."""
    prefix = parent + "/"
    return {
        found.path.removeprefix(prefix): found.incarnation
        for found in observation.unreadable
        if found.path.startswith(prefix)
    }
