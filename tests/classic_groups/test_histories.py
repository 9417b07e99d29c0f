"""Random histories of a group: the rules that clients rely on hold in any order of events."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import (
    ConnectionLost,
    Heartbeat,
    Held,
    Join,
    Joined,
    Leave,
    Released,
    Stored,
    StoreGroup,
    Sync,
    Synced,
)
from kafka_coord.classic_groups.machine import Group, GroupLimits
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, Protocol

CLIENTS = st.sampled_from(["a", "b", "c", "static"])


class Client:
    """One client, with its own view of its membership."""

    def __init__(self) -> None:
        self.member_id, self.generation, self.leads = "", -1, False
        self.members: tuple[str, ...] = ()


class Histories(RuleBasedStateMachine):
    """Clients join, sync, send heartbeats, leave, disappear and return. Writes succeed, fail, or are answered late."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(GroupMetadata("g"), GroupLimits(initial_rebalance_delay_s=0))
        self.now, self.numbers = 0.0, 0
        self.waiting: dict[object, tuple[Client, str, int]] = {}
        """The unanswered requests, by token: the client process, its member id and its generation."""
        self.clients: dict[str, Client] = {}
        self.stores: list[StoreGroup] = []
        self.newest = 0
        self.stored: dict[int, dict[str, bytes]] = {}
        self.held: dict[object, Held] = {}

    def _do(self, event: Any) -> None:
        self._take(self.group.handle(event, self.now))

    def _token(self, client: str) -> str:
        self.numbers += 1
        token = f"{client}-{self.numbers}"
        asking = self.clients.setdefault(client, Client())
        self.waiting[token] = asking, asking.member_id, asking.generation
        return token

    def _take(self, instructions: list[Any]) -> None:
        for one in instructions:
            if isinstance(one, StoreGroup):
                self.stores.append(one)
                continue
            if isinstance(one, Held):
                assert one.limit_s <= 10.0 / 3
                self.held[one.token] = one
                continue
            self.held.pop(one.token, None)
            client, member_id, generation = self.waiting.pop(one.token)  # fails if it is answered twice
            if isinstance(one, Joined) and one.error in {Error.NONE, Error.MEMBER_ID_REQUIRED}:
                client.member_id, client.generation = one.member_id, one.generation_id
                client.leads = one.leader_id == one.member_id
                client.members = tuple(member_id for member_id, _, _ in one.members)
                if one.error is Error.NONE:
                    assert one.generation_id >= self.newest, "a generation went back"
                    self.newest = one.generation_id
            elif isinstance(one, Joined) and one.error is Error.UNKNOWN_MEMBER_ID:
                client.member_id = ""
            elif isinstance(one, Synced) and one.error is Error.NONE:
                told = self.stored[generation].get(member_id, b"")
                assert one.assignment == told, "it received an assignment that is not stored"

    @rule(client=CLIENTS, protocols=st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range")]))
    def join(self, client: str, protocols: tuple[str, ...]) -> None:
        known = self.clients.setdefault(client, Client())
        instance = "i" if client == "static" else None
        self._do(
            Join(
                self._token(client), known.member_id, instance, client, "/h", 10.0, 30.0, "consumer",
                tuple(Protocol(name, b"") for name in protocols), f"{client}~{self.numbers}",
                must_know_id=client == "b",
            )
        )  # fmt: skip

    @rule(client=CLIENTS)
    def restart(self, client: str) -> None:
        """A new process under the same instance id: it knows nothing of the old one's state."""
        self.clients[client] = Client()

    @rule(client=CLIENTS)
    def sync(self, client: str) -> None:
        known = self.clients.setdefault(client, Client())
        given = {one: f"{known.generation}:{one}".encode() for one in known.members} if known.leads else {}
        instance = "i" if client == "static" else None
        self._do(Sync(self._token(client), known.member_id, instance, known.generation, assignments=given))

    @rule(client=CLIENTS, software=st.sampled_from(["", "librdkafka", "apache-kafka-java"]))
    def beat(self, client: str, software: str) -> None:
        known = self.clients.setdefault(client, Client())
        self._do(Heartbeat(self._token(client), known.member_id, None, known.generation, software))

    @rule(lost=st.booleans(), by_client=st.booleans())
    def end_holds(self, lost: bool, by_client: bool) -> None:
        """Ends all holds of heartbeats, because their time is over or because their connections are lost."""
        for token, one in list(self.held.items()):
            if lost:
                del self.held[token], self.waiting[token]
                self._do(ConnectionLost(frozenset({token})))
            else:
                self._do(Released(token, one.member_id, by_client))
                assert token not in self.held

    @rule(client=CLIENTS)
    def commit(self, client: str) -> None:
        known = self.clients.setdefault(client, Client())
        error = self.group.may_commit(known.member_id, None, known.generation, self.now, connection=1)
        current = self.group.metadata
        if known.member_id and error is Error.NONE:
            assert known.generation == current.generation_id or current.state is ClassicState.EMPTY
            assert known.member_id in current.members or current.state is ClassicState.EMPTY

    @rule(client=CLIENTS)
    def leave(self, client: str) -> None:
        known = self.clients.setdefault(client, Client())
        self._do(Leave(self._token(client), ((known.member_id, None),)))

    @rule(error=st.sampled_from([Error.NONE, Error.NONE, Error.NOT_COORDINATOR]), late=st.booleans())
    def store(self, error: Error, late: bool) -> None:
        if self.stores:
            one = self.stores.pop(-1 if late else 0)
            if error is Error.NONE:
                self.stored[one.generation_id] = dict(one.assignments)
            self._do(Stored(one, error))

    @rule(clients=st.lists(CLIENTS, min_size=1, max_size=3, unique=True), sync=st.booleans())
    def rebalance(self, clients: list[str], sync: bool) -> None:
        """Lets these clients join (twice if a member id is required), and with ``sync`` also sync and have their
        assignments stored. The result is mostly a stable group."""
        for client in clients * 2:
            self.join(client, ("range",))
        for client in clients if sync else ():
            self.sync(client)
            while self.stores:
                self.store(Error.NONE, late=False)

    @rule(clients=st.sampled_from([["static"], ["a", "static"], ["static", "a"]]))
    def static_return(self, clients: list[str]) -> None:
        """A static member comes back in a new process, mostly to a stable group; its return is not stored yet."""
        self.rebalance(clients, sync=True)
        self.restart("static")
        self.join("static", ("range",))

    @rule(seconds=st.sampled_from([0.1, 5.0, 11.0, 31.0, 301.0]))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        if seconds > 10.0 / 3:
            self.end_holds(lost=False, by_client=False)
        for _ in range(1_000):
            if self.group.due > end:
                break
            self.now = max(self.now, self.group.due)
            self._take(self.group.tick(self.now))
        else:
            raise AssertionError("the timers never end")
        self.now = end

    @invariant()
    def is_consistent(self) -> None:
        group = self.group.metadata
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        assert set(group.static_members.values()) <= set(group.members)
        assert group.unsynced <= set(group.members)
        held = [m.join_token for m in group.members.values()] + [m.sync_token for m in group.members.values()]
        assert {token for token in held if token is not None} <= set(self.waiting), "an answered request is held"
        if group.state is ClassicState.STABLE:
            returning = {one.because.join.token for one in self.stores if one.because is not None}
            held_joins = {member.join_token for member in group.members.values() if member.join_token is not None}
            assert held_joins <= returning, "a join is held that nothing will answer"
        if group.state is ClassicState.EMPTY:
            assert not group.members
        assert {m.beat_token for m in group.members.values()} - {None} == set(self.held)
        if self.held:
            assert group.state is ClassicState.STABLE
            assert not {one.member_id for one in self.held.values()} & group.unsynced

    @invariant()
    def every_waiting_request_will_be_answered(self) -> None:
        """For every waiting request, a timer or a store is pending."""
        if self.waiting:
            assert self.group.due < math.inf or self.stores


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=300, stateful_step_count=40)
