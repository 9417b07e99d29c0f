"""Faults of single members: an operator removes one, a static one returns before its last commit has arrived, a
newcomer vanishes that has been handed an id, or the last one leaves while the brokers refuse all batches.

They are drawn on their own, so that they take nothing from the other kinds.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.grouplog.manager import partition_of
from tests.simulation.groups.clients import GROUP, Client
from tests.simulation.groups.line import Line

if TYPE_CHECKING:
    from tests.simulation.groups.history import GroupHistory

OF_MEMBERS = frozenset({"emptied", "evict", "newcomer", "return"})
_FIRST_JOIN_S, _LOOKS_S = 1.0, 0.01
"""How long the first join of an empty group takes at most, in seconds, while its instance serves it."""
_REFUSES_S = 0.1
"""How long the brokers refuse all batches when a group's last member leaves, in seconds."""


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
            assert isinstance(found, bytes)
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

    def _emptied(self) -> None:
        """The only member of another group leaves while the brokers refuse all batches. As soon as they take batches
        again, an operator deletes the group."""
        history, group = self._history, next(self._empty_groups)
        client, instance = history.clients[0], history.instances[history.log.leader]

        async def asks(name: str, frame: bytes) -> Any:
            found = await instance.coordinator.answer(frame, Line(""))
            assert isinstance(found, bytes)
            return Client.read(name, found)

        async def handle() -> None:
            handed = await asks("JoinGroup", client.join_frame(group, ""))
            joined = await asks("JoinGroup", client.join_frame(group, handed.member_id))
            who = group, joined.member_id
            synced = await asks("SyncGroup", client.sync_frame(*who, joined.generation_id))
            if synced.error_code != Error.NONE or history.calm:
                return
            before, history.log.most_records = history.log.most_records, 0
            history.world.after(_REFUSES_S, lambda: history.refuse_more_than(before))
            await asks("LeaveGroup", client.leave_frame(who[1], None, group))
            await asyncio.sleep(_REFUSES_S + _LOOKS_S)
            await instance.coordinator._deleted(history.of_a_tool(), group)

        instance.process.start(handle)

    def _deliver(self, frame: bytes) -> None:
        """Delivers a request whose answer nobody awaits."""
        instance = self._history.instances[self._history.log.leader]

        async def handle() -> None:
            await instance.coordinator.answer(frame, Line(""))

        instance.process.start(handle)
