"""Faults of single members: an operator removes one, or a static one returns before its last commit has arrived.

They are drawn on their own, so that they take nothing from the other kinds.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.groups.clients import GROUP
from tests.simulation.groups.line import Line

if TYPE_CHECKING:
    from tests.simulation.groups.history import GroupHistory

OF_MEMBERS = frozenset({"evict", "return"})


class MemberFaults:
    """``few`` is true if all of the kinds happen. Otherwise, each history has some of them."""

    def __init__(self, history: GroupHistory, kinds: frozenset[str], *, few: bool) -> None:
        self._history, self._rng = history, random.Random(f"members {history.seed}")
        self._kinds = [kind for kind in sorted(kinds & OF_MEMBERS) if self._rng.random() < 0.4 or few]

    def start(self) -> None:
        if self._kinds:
            self._history.world.after(self._rng.uniform(1.0, 4.0), self._fault)

    def _fault(self) -> None:
        if self._history.calm:
            return
        self._history.world.after(self._rng.uniform(0.3, 3.0), self._fault)
        kind = self._rng.choice(self._kinds)
        self._history.say(kind)
        getattr(self, f"_{kind}")()

    def _evict(self) -> None:
        """An operator removes a member, on a connection of the operator's own."""
        history = self._history
        group = history.instances[history.log.leader].manager.group(GROUP)
        members = [] if group is None else sorted(group.metadata.members)
        if group is not None and members:
            member = group.metadata.members[self._rng.choice(members)]
            self._deliver(history.clients[0].leave_frame(member.member_id, member.instance_id))

    def _return(self) -> None:
        """A static client dies with a commit on its way, which arrives after its next process has joined."""
        history = self._history
        client = next((one for one in history.clients if one.instance_id is not None), None)
        if client is None or not client.member_id or client.process.killed or client.process.frozen:
            return
        late = client.commit_frame(client.committing(0))
        client.process.killed = True
        history.lose_connections(client)
        client.start()
        history.world.after(self._rng.uniform(0.02, 1.0), lambda: self._deliver(late))

    def _deliver(self, frame: bytes) -> None:
        """Delivers a request whose answer nobody awaits."""
        instance = self._history.instances[self._history.log.leader]

        async def handle() -> None:
            await instance.coordinator.answer(frame, Line(""))

        instance.process.start(handle)
