"""Plays events on the state machine of a group."""

from __future__ import annotations

import itertools
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import Answered, Heartbeat, Join, Stored, StoreGroup, Sync
from kafka_coord.classic_groups.machine import Group, GroupLimits
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, Protocol

SESSION_S, REBALANCE_S = 10.0, 60.0


class Played:
    """A group, its clock, and the answers by token."""

    def __init__(self, **limits: Any) -> None:
        self.group = Group(GroupMetadata("g"), GroupLimits(**{"initial_rebalance_delay_s": 0.0, **limits}))
        self.now = 1000.0
        self.answers: dict[object, Any] = {}
        self.stores: list[StoreGroup] = []
        self.store_error = Error.NONE
        self.holds_stores = False
        self.limits_s: list[float] = []
        """The longest hold of heartbeats."""
        self._numbers = itertools.count(1)

    def do(self, event: Any) -> Any:
        self._take(self.group.handle(event, self.now))
        return self.answers.get(getattr(event, "token", None))

    def may_commit(self, member_id: str, generation: int) -> Error:
        return self.group.may_commit(member_id, None, generation, self.now, connection=1)

    def _take(self, instructions: list[Any]) -> None:
        for one in instructions:
            if isinstance(one, StoreGroup):
                self.stores.append(one)
                if not self.holds_stores:
                    self.do(Stored(one, self.store_error))
            else:
                assert one.token not in self.answers, "answered twice"
                self.answers[one.token] = one

    def pass_time(self, seconds: float) -> None:
        """Moves time, and handles everything that is due in order."""
        end = self.now + seconds
        while self.group.due <= end:
            self.now = max(self.now, self.group.due)
            self._take(self.group.tick(self.now))
        self.now = end

    def join(self, member_id: str = "", *, fresh: str = "", protocols: str = "range", **fields: Any) -> int:
        """The token of a join."""
        token = next(self._numbers)
        given = {
            "instance_id": None, "client_id": "c", "client_host": "/h", "session_timeout_s": SESSION_S,
            "rebalance_timeout_s": REBALANCE_S, "protocol_type": "consumer",
            "protocols": tuple(Protocol(name, fresh.encode()) for name in protocols.split()),
        }  # fmt: skip
        self.do(Join(token, member_id, fresh_id=fresh, **{**given, **fields}))
        return token

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, generation: int | None = None) -> int:
        token = next(self._numbers)
        generation = self.group.metadata.generation_id if generation is None else generation
        self.do(Sync(token, member_id, None, generation, assignments=assignments or {}))
        return token

    def beat(self, member_id: str) -> Error:
        found = self.do(Heartbeat(next(self._numbers), member_id, None, self.group.metadata.generation_id))
        assert isinstance(found, Answered)
        return found.error

    @property
    def state(self) -> ClassicState:
        return self.group.metadata.state

    def stable(self, *names: str) -> Played:
        """A stable group of these members; the first leads."""
        self.join(fresh=names[0])
        for name in names[1:]:
            self.join(fresh=name)
            for other in self.group.metadata.members.copy():
                if self.group.metadata.members[other].join_token is None:
                    self.join(other, fresh=other)
        for name in reversed(names):
            self.sync(name, {one: f"for {one}".encode() for one in names})
        assert self.state is ClassicState.STABLE
        return self
