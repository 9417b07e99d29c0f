"""Plays events on the state machine of a group, from a test or from a story."""

from __future__ import annotations

import itertools
from typing import Any

from kafka_coord.classic_groups import events
from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import Group, GroupLimits
from kafka_coord.classic_groups.metadata import GroupMetadata, Protocol
from tests.stories import Stage

SESSION_S, REBALANCE_S = 10.0, 60.0


class Played(Stage):
    """A group, its clock, its clients and its log. The methods below are the commands of stories. A client is named by
    its member id, which it is given when it first joins."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(GroupMetadata("g"), GroupLimits(initial_rebalance_delay_s=0.0))
        self.now = 1000.0
        self.stores: list[events.StoreGroup] = []
        self.log_says: Error | None = Error.NONE
        """How the log answers. It does not answer while this is ``None``."""
        self._asking: dict[object, str] = {}
        """The unanswered requests: the name of each one's client."""
        self._beat: dict[str, int] = {}
        """The last heartbeat of each client."""
        self._numbers = itertools.count(1)
        self._shown = self.shown()

    def shown(self) -> str:
        """The group's state and generation, and its members: ``*`` is the leader, ``?`` has not synced."""
        group = self.group.metadata
        leads, late = {group.leader_id: "*"}, dict.fromkeys(group.unsynced, "?")
        members = (f"{name}{leads.get(name, '')}{late.get(name, '')}" for name in group.members)
        return " ".join([group.state, str(group.generation_id), *members])

    def do(self, event: events.Event) -> None:
        self._take(self.group.handle(event, self.now))

    def _ask(self, who: str, event: Any) -> None:
        self._asking[event.token] = who
        self.do(event)

    def _take(self, instructions: list[events.Instruction]) -> None:
        for one in instructions:
            if isinstance(one, events.StoreGroup):
                self.stores.append(one)
                self.said.append(f"#{len(self.stores)} is written{_written(one)}")
                if self.log_says is not None:
                    self.do(events.Stored(one, self.log_says))
            elif isinstance(one, events.Held):
                self.said.append(f"{self._asking[one.token]}'s heartbeat is held {one.limit_s:.2f} s")
            else:
                self.said.append(_answer(self._asking.pop(one.token), one))  # fails if it is answered twice

    # --- commands ----------------------------------------------------------------------------------------------------

    def joins(self, who: str, *how: str, offers: str = "range", metadata: str = "", **fields: Any) -> None:
        """``who`` joins, with its id if it is a member or has been handed one (or with ``id=``)."""
        is_known = {*self.group.metadata.members, *self.group.metadata.pending}
        join = events.Join(
            next(self._numbers),
            fields.get("id", who if who in is_known else ""),
            fields.get("instance"),
            fields.get("client", "c"),
            fields.get("host", "/h"),
            float(fields.get("session", SESSION_S)),
            float(fields.get("rebalance", REBALANCE_S)),
            fields.get("type", "consumer"),
            tuple(Protocol(name, (metadata or who).encode()) for name in offers.split(",")),
            who,
            must_know_id="must-know-id" in how,
            can_skip_assignment="can-skip" in how,
        )
        self._ask(who, join)

    def syncs(self, who: str, *, instance: str | None = None, generation: str = "", **assignments: str) -> None:
        number = int(generation or self.group.metadata.generation_id)
        given = {name: share.encode() for name, share in assignments.items()}
        self._ask(who, events.Sync(next(self._numbers), who, instance, number, assignments=given))

    def beats(self, who: str, software: str = "", *, instance: str | None = None, generation: str = "") -> None:
        software = "apache-kafka-java" if software == "java" else software
        number, self._beat[who] = int(generation or self.group.metadata.generation_id), next(self._numbers)
        self._ask(who, events.Heartbeat(self._beat[who], who, instance, number, software))

    def commits(self, who: str, *, generation: str = "", on: str = "1") -> None:
        number = int(generation or self.group.metadata.generation_id)
        error = self.group.may_commit(who, None, number, self.now, connection=int(on))
        self.said.append(f"{who or 'nobody'} commits: {_ok(error)}")

    def knew(self, who: str, generation: str) -> None:
        """The client of ``who`` knows another generation, because the group was of another kind."""
        self.group.metadata.members[who].former_generation = int(generation)

    def leave(self, *who: str, client: str = "", by: str = "") -> None:
        """The members (``m1``, ``s1/i1`` or ``/i1``) leave, at the request of ``client``, which ``by`` describes."""
        leaving = tuple((one.partition("/")[0], one.partition("/")[2] or None) for one in who)
        self._ask("", events.Leave(next(self._numbers), leaving, (client, "/h"), by))

    def released(self, who: str, *how: str) -> None:
        """The hold of the last heartbeat of ``who`` ends."""
        self.do(events.Released(self._beat[who], who, by_client="by-client" in how))

    def disconnects(self, who: str, *how: str) -> None:
        """The connection with all unanswered requests of ``who`` is lost."""
        tokens = frozenset(token for token, one in self._asking.items() if one == who)
        self.do(events.ConnectionLost(tokens, by_client="by-client" in how))

    def log(self, says: str) -> None:
        """``log waits``, or how it answers from now on: ``log ok``, ``log NOT_COORDINATOR``."""
        self.log_says = None if says == "waits" else _error(says)

    def stored(self, number: str, error: str = "ok") -> None:
        self.do(events.Stored(self.stores[int(number) - 1], _error(error)))

    def wait(self, seconds: str, *beating: str) -> None:
        """Moves time, and handles everything that is due in order. Meanwhile, some members send heartbeats."""
        end, step = self.now + float(seconds), SESSION_S / 2 if beating else float(seconds)
        while self.now < end:
            until = min(end, self.now + step)
            while self.group.due <= until:
                self.now = max(self.now, self.group.due)
                self._take(self.group.tick(self.now))
            self.now = until
            for who in beating:
                if who in self.group.metadata.members:
                    self.beats(who)

    def ends(self, error: str) -> None:
        self._take(self.group.end(Error[error]))

    def replaced(self, what: str) -> None:
        assert what == "topics"
        self.do(events.TopicsReplaced())

    def limit(self, **limits: str) -> None:
        for name, value in limits.items():
            setattr(self.group._limits, name, float(value))

    def departed(self) -> None:
        self.said += [f"{name} {how}" for name, how in self.group.metadata.departed.items()] or ["nobody"]

    def stable(self, *names: str) -> None:
        """A stable group of these members; the first leads. Nothing is said about it."""
        for number in range(len(names)):
            for name in (names[number], *names[:number]):
                self.joins(name)
        for name in reversed(names):
            self.syncs(name, **{one: f"for-{one}" for one in names})
        self.said.clear()

    def returning(self) -> None:
        """A stable group of the leader ``m1`` and the static member ``s1``, which has returned as ``s2``. The log has
        not answered yet. Nothing is said about it."""
        self.joins("m1")
        self.joins("s1", instance="i1")
        self.joins("m1")
        self.syncs("m1", m1="one", s1="mine")
        self.syncs("s1", instance="i1")
        self.log("waits")
        self.joins("s2", instance="i1")
        self.said.clear()


def _error(name: str) -> Error:
    return Error.NONE if name == "ok" else Error[name]


def _ok(error: Error) -> str:
    return "ok" if error is Error.NONE else error.name


def _written(store: events.StoreGroup) -> str:
    back = f" {store.because.old_id} is {store.because.new_id}" if store.because else ""
    shares = "".join(f" {name}={share.decode()}" for name, share in store.assignments.items())
    return f"{' by the leader' if store.by_leader else ''}:{back}{shares or ' empty'}"


def _protocol(answer: events.Joined | events.Synced) -> str:
    of_others = "" if answer.protocol_type == "consumer" else f"{answer.protocol_type}/"
    return f"{of_others}{answer.protocol_name}"


def _member(shown: tuple[str, str | None, bytes]) -> str:
    member, instance, metadata = shown
    name = f"{member}/{instance}" if instance else member
    return name if metadata.decode() == member else f"{name} ({metadata.decode()})"


def _answer(who: str, answer: Any) -> str:
    match answer:
        case events.Joined():
            name = f"{who} joins" if answer.member_id == who else f"{who} joins as {answer.member_id or 'nobody'}"
            if answer.error is not Error.NONE:
                return f"{name}: {answer.error.name}"
            leads = f"leads {' '.join(map(_member, answer.members))}" if answer.members else f"under {answer.leader_id}"
            skips = ", has its assignment" if answer.skip_assignment else ""
            return f"{name}: {answer.generation_id} {_protocol(answer)}, {leads}{skips}"
        case events.Synced(error=Error.NONE):
            return f"{who} syncs: {_protocol(answer)}, {answer.assignment.decode() or 'nothing'}"
        case events.Synced():
            return f"{who} syncs: {answer.error.name}{answer.assignment.decode()}"
        case events.Answered():
            return f"{who} beats: {_ok(answer.error)}"
        case _:
            each = ", ".join(f"{member or instance} {_ok(error)}" for member, instance, error in answer.members)
            return f"leave: {each}" if answer.error is Error.NONE else f"leave: {answer.error.name}"
