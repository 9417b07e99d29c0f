"""Which consumers of a group live, which are gone, and which cannot be told."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.model import Channel, Ledger, Member, Observation, Unreadable
from kafka_coord.zk import layout

NO_CHANNEL = Channel()


@dataclass(frozen=True, slots=True)
class Standing:
    """Every consumer seen in an observation, by what may be done with it. All by consumer name.

    ``live`` have a readable registration; ``kept`` are gone and their place is kept; ``gone`` have left a ledger,
    commands or (``retired``) a channel behind, and nothing of theirs is alive.

    Two kinds cannot be told. ``muted`` have a registration nobody can read: no members, but alive, so what their
    ledger says stays held. ``opaque`` live and have a ledger nobody can read: they may hold anything that no other
    ledger names, so while there is one, a partition is started only if another ledger held it at this look.
    """

    live: dict[str, Member]
    kept: dict[str, Member]
    gone: tuple[str, ...]
    muted: tuple[str, ...]
    opaque: tuple[str, ...]
    unreadable_members: frozenset[str]
    """Everybody with a registration nobody can read, ``muted`` or without anything else."""
    illegible: frozenset[str]
    """Everybody with a ledger nobody can read, alive or not."""

    @property
    def effective(self) -> dict[str, Member]:
        """The members a target is made for, sorted by name."""
        both = self.live | self.kept
        return {consumer: both[consumer] for consumer in sorted(both)}


def standing_of(observation: Observation) -> Standing:
    """Sorts the consumers of a group; the only place that decides who is dead."""
    group = observation.group
    unread_ids = _unreadable_below(observation, layout.ids(group))
    unread_ledgers = _unreadable_below(observation, layout.owners(group))
    live = {consumer: member for consumer, member in observation.members.items() if consumer not in unread_ids}
    muted = set()
    for consumer, incarnation in unread_ids.items():
        ledger = observation.ledgers.get(consumer)
        came_back = ledger is not None and incarnation and ledger.incarnation != incarnation
        if consumer in unread_ledgers or (ledger is not None and not came_back):
            muted.add(consumer)
    kept = {}
    for consumer in sorted(observation.in_grace):
        ledger = observation.ledgers.get(consumer)
        if ledger is not None and ledger.place is not None and consumer not in live and consumer not in unread_ids:
            kept[consumer] = ledger.place
    left_something = {
        *observation.ledgers,
        *unread_ledgers,
        *observation.retired,
        *(consumer for consumer, channel in observation.channels.items() if channel.commands),
    }
    gone = left_something - live.keys() - kept.keys() - muted
    # without a ledger, what is in the channel of an unreadable registration may be left alone
    gone -= {consumer for consumer in unread_ids if consumer not in observation.ledgers}
    opaque = {consumer for consumer in unread_ledgers if consumer in live or consumer in unread_ids}
    return Standing(
        live=live,
        kept=kept,
        gone=tuple(sorted(gone)),
        muted=tuple(sorted(muted)),
        opaque=tuple(sorted(opaque)),
        unreadable_members=frozenset(unread_ids),
        illegible=frozenset(unread_ledgers),
    )


def outstanding(observation: Observation, consumer: str) -> Channel:
    return observation.channels.get(consumer, NO_CHANNEL)


def is_dead(ledger: Ledger, member: Member) -> bool:
    """Whether the ledger is of an earlier incarnation than the one that is registered."""
    return ledger.incarnation != member.incarnation


def target_is_unreadable(observation: Observation) -> bool:
    path = layout.assignment(observation.group)
    return any(found.path == path for found in observation.unreadable)


def unreadable_offsets(observation: Observation) -> list[Unreadable]:
    """What keeps partitions from being started; see :func:`kafka_coord.coordinator.decide.decide`."""
    below = layout.offsets(observation.group) + "/"
    return [found for found in observation.unreadable if found.path.startswith(below)]


def _unreadable_below(observation: Observation, parent: str) -> dict[str, int]:
    """consumer → incarnation (0: not known)."""
    prefix = parent + "/"
    return {
        found.path.removeprefix(prefix): found.incarnation
        for found in observation.unreadable
        if found.path.startswith(prefix)
    }
