"""Faults of single members: an operator removes one, a static one returns before its last commit has arrived, or a
newcomer vanishes that has been handed an id.

They are drawn on their own, so that they take nothing from the other kinds.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING

from kafka_coord.classic_groups.errors import Error
from kafka_coord.grouplog.manager import partition_of
from tests.simulation.groups.clients import GROUP, Client
from tests.simulation.groups.line import Line

if TYPE_CHECKING:
    from tests.simulation.groups.history import GroupHistory

OF_MEMBERS = frozenset({"evict", "return", "newcomer"})
_FIRST_JOIN_S, _LOOKS_S = 1.0, 0.01
"""How long the first join of an empty group takes at most, in seconds, while its instance serves it."""


class MemberFaults:
    """``few`` is true if all of the kinds happen. Otherwise, each history has some of them."""

    def __init__(self, history: GroupHistory, kinds: frozenset[str], *, few: bool) -> None:
        self._history, self._rng = history, random.Random(f"members {history.seed}")
        self._kinds = [kind for kind in sorted(kinds & OF_MEMBERS) if self._rng.random() < 0.4 or few]
        names = map("new-{}".format, itertools.count())
        self._empty_groups = (name for name in names if partition_of(name) == partition_of(GROUP))

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

    def _newcomer(self) -> None:
        """A client is handed an id in an empty group, and vanishes. Another client joins that group."""
        history, group = self._history, next(self._empty_groups)
        client, instance = history.clients[0], history.instances[history.log.leader]

        async def asks(member_id: str) -> tuple[Error, str]:
            found = await instance.coordinator.answer(client.join_frame(group, member_id), Line(""))
            answer = Client.read("JoinGroup", found)
            return Error(answer.error_code), answer.member_id

        async def handle() -> None:
            term = instance.manager.terms.get(history.log.partition)
            await asks("")
            error, member_id = await asks("")
            if error is not Error.MEMBER_ID_REQUIRED:
                return
            joining = asyncio.ensure_future(asks(member_id))
            turns = round(_FIRST_JOIN_S / _LOOKS_S)  # not a time: the process may be frozen meanwhile
            while not joining.done() and turns:
                turns -= 1
                await asyncio.sleep(_LOOKS_S)
            serves = term is not None and not term.ended and instance.manager.terms.get(history.log.partition) is term
            if not joining.done() and serves and not instance.known.is_stopping:
                history.judge.breaks(f"a newcomer that has vanished holds up the first join of group {group}")
            await joining

        instance.process.start(handle)

    def _deliver(self, frame: bytes) -> None:
        """Delivers a request whose answer nobody awaits."""
        instance = self._history.instances[self._history.log.leader]

        async def handle() -> None:
            await instance.coordinator.answer(frame, Line(""))

        instance.process.start(handle)
