"""Faults that try the members' sessions, at most one in a history: an outage that is longer than a session, and terms
that alternate between two instances while a member is dead.

They are drawn on their own, so that they take nothing from the other kinds, and judged only in histories without other
kinds, which end sessions for reasons of their own.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kafka_coord.classic_groups.metadata import ClassicState
from tests.simulation.groups.clients import GROUP, SESSION_MS

if TYPE_CHECKING:
    from tests.simulation.groups.history import GroupHistory

OF_SESSIONS = frozenset({"outage", "alternate"})
_SESSION_S = SESSION_MS / 1000
_BEGINS_S = 3.0
_JUST_AFTER_S = 0.05
_TERM_S = 4.6
"""How long each of the alternating terms lasts: shorter than a session, and long enough for a rebalance after a term
has waited for a member as long as it must at least."""
_TERMS = 8


class SessionFaults:
    """``few`` is true if all of the kinds happen. Otherwise, few histories have one."""

    def __init__(self, history: GroupHistory, kinds: frozenset[str], *, few: bool) -> None:
        self._history, self._rng = history, random.Random(f"sessions {history.seed}")
        is_drawn = self._rng.random() < 0.15 or few
        self._kind = self._rng.choice(sorted(kinds & OF_SESSIONS)) if kinds & OF_SESSIONS and is_drawn else ""
        self._is_judged = kinds <= OF_SESSIONS
        self.takes_s = _BEGINS_S + _TERMS * _TERM_S + 1.0 if self._kind == "alternate" else 0.0

    def start(self) -> None:
        if self._kind:
            self._history.world.after(_BEGINS_S, getattr(self, f"_{self._kind}"))

    def _members(self) -> set[str]:
        """Returns the members in the memory of the leader's instance, if the group is stable there."""
        group = self._history.instances[self._history.log.leader].manager.group(GROUP)
        is_stable = group is not None and group.metadata.state is ClassicState.STABLE
        return set(group.metadata.members) if group is not None and is_stable else set()

    def _outage(self) -> None:
        """The brokers refuse every write, and ZooKeeper does not answer: a term goes on that cannot be proven."""
        history = self._history
        before, left = self._members(), set(history.left)
        history.say("outage")
        history.log.denies = history.net.without_zookeeper = True

        def over() -> None:
            if not history.calm:
                history.say("the outage is over")
                history.log.denies = history.net.without_zookeeper = False
                history.world.after(_JUST_AFTER_S, lambda: self._are_there(before - (history.left - left)))

        history.world.after(_SESSION_S + 2.0, over)

    def _are_there(self, members: set[str]) -> None:
        group = self._history.instances[self._history.log.leader].manager.group(GROUP)
        gone = members - set(group.metadata.members) if group is not None else set()
        if self._is_judged and gone:
            self._history.judge.breaks(f"an outage has expired living members: {', '.join(sorted(gone))}")

    def _alternate(self) -> None:
        """A client dies for the rest of the turmoil, while two brokers lead in turn."""
        history = self._history
        client = history.clients[0]
        dead = client.member_id
        history.say(f"{client.name} dies as {dead}")
        client.process.killed = True
        history.lose_connections(client)
        self._take_turns(_TERMS, dead)

    def _take_turns(self, terms: int, dead: str) -> None:
        history = self._history
        if terms:
            history.log.move(history.log.leader % 2 + 1)
            history.say(f"broker {history.log.leader} leads")
            history.world.after(_TERM_S, lambda: self._take_turns(terms - 1, dead))
        elif self._is_judged and dead in self._members():
            history.judge.breaks(f"terms that alternate have kept the dead member {dead}")
