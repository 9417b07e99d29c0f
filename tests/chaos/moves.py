"""Takes a group over from the brokers and gives it back, again and again, while its members read and instances are
killed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kafka_coord.errors import KafkaCoordError, RequestRefused
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.requests import ask
from kafka_coord.model import GroupKind, Request, RequestType
from kafka_coord.model.names import LOG_PARTITIONS
from tests.chaos.clients.following import LogFollower
from tests.chaos.faults import Faults
from tests.chaos.journal import EventWriter, Kind, Phase
from tests.chaos.kraft import KraftTestbed
from tests.chaos.links import Unlinked
from tests.chaos.logins import OPERATOR, login
from tests.chaos.parts import CONSUMER_PROTOCOL, PREFIX, Part
from tests.chaos.run import ChaosRun
from tests.chaos.testbed import Actor, ChaosTestbed
from tests.chaos.watching import Watch

GROUP, TOPIC = "moved", f"{PREFIX}m"
_SESSION_MS = 45_000
"""The default of clients. A group is frozen for a third of it at most."""
_ANSWERED_S = 60.0
_CALM_S = 1.0
_LEAVES_EVERY = 10
_TRIES, _AGAIN_S = 60, 1.0
_KILLED_WITHIN_S = 0.6
"""Within this time after the request, an instance is killed: a move without a kill takes about as long."""


@dataclass(frozen=True, slots=True)
class MovesOptions:
    """The group is taken over and given back ``times`` times. Before each fifth take-over, a member leaves and comes
    back. In one of ``one_in`` moves, an instance is killed, and started again ``away_s`` later, as by a supervisor. The
    brokers run Kafka 4.3 with ``kraft``."""

    times: int = 100
    members: int = 10
    partitions: int = 900
    one_in: int = 5
    away_s: float = 1.0
    kraft: bool = False
    strategy: str = "range"
    protocol: str = "classic"


class MovesRun(ChaosRun):
    """A run with the moves of one group, and no other faults than their kills."""

    def __init__(self, *arguments: Any, moves: MovesOptions) -> None:
        self._moves = moves
        super().__init__(*arguments)
        self._random = random.Random(self._options.seed)
        self._kills = 0

    @property
    def _ours(self) -> GroupKind:
        """What the group is once it was taken over."""
        return GroupKind.MANAGED if self._moves.protocol == CONSUMER_PROTOCOL else GroupKind.CLIENT_ASSIGNED

    def _cast(self) -> tuple[Part, ...]:
        how: dict[str, Any] = {
            "strategy": self._moves.strategy,
            "session_timeout_ms": _SESSION_MS,
            "properties": {"heartbeat.interval.ms": "3000"},
        }
        if self._moves.protocol == CONSUMER_PROTOCOL:
            how = {"protocol": CONSUMER_PROTOCOL, "strategy": "uniform"}
        names = [f"{GROUP}-{number}" for number in range(1, self._moves.members + 1)]
        static = {name for at, name in enumerate(names) if at % 3 == 2}
        return tuple(
            Part(name, GROUP, (TOPIC,), kind="confluent-kafka", commit_every=50, static=name in static, **how)
            for name in names
        )

    def _testbed(self) -> ChaosTestbed:
        options, testbed = self._options, KraftTestbed if self._moves.kraft else ChaosTestbed
        made = testbed(options.directory, options.per_s, clients="kafka", topics={TOPIC: self._moves.partitions})
        properties = dict(made.settings.properties)
        properties.pop("connections.max.idle.ms", None)  # 900 partitions take longer to create
        properties["offsets.topic.num.partitions"] = str(LOG_PARTITIONS)  # Kafka's default
        made.settings = replace(made.settings, heap_mb=512, properties=properties)
        made.network, made.linger_ms, made.new_groups = Unlinked(), 50, GroupKind.NATIVE
        return made

    def _follow(self, testbed: ChaosTestbed) -> LogFollower:
        return LogFollower(testbed.bootstrap, self._options.directory, of_brokers=True)

    def _course(self, testbed: ChaosTestbed, faults: Faults, watch: Watch, events: EventWriter) -> None:
        for number in range(2 * self._moves.times):
            to = GroupKind.NATIVE if number % 2 else self._ours
            if number % _LEAVES_EVERY == 0:
                self._restart_member(testbed, faults, watch)
            killed = None
            if self._moves.one_in and number % self._moves.one_in == self._moves.one_in - 1:
                killed = self._victim(testbed)
            detail: dict[str, Any] = {"to": to, "killed": killed.target if killed is not None else ""}
            events.write(Kind.MOVED, f"group:{GROUP}", Phase.BEGIN, **detail)
            kill = self._kill(killed, faults)
            told = self._move(testbed, to)
            kill()
            self._require_settled(watch, f"after move {number + 1}")
            time.sleep(_CALM_S)
            events.write(Kind.MOVED, f"group:{GROUP}", Phase.END, **detail, **told, load=os.getloadavg()[0])
            self._tell(f"move {number + 1} of {2 * self._moves.times}, to {to} {detail['killed']}: {told['message']}")

    def _restart_member(self, testbed: ChaosTestbed, faults: Faults, watch: Watch) -> None:
        """Lets a member leave and come back, so that partitions have other owners."""
        actor = self._random.choice([one for one in testbed.of("consumer") if not one.membership.static])
        actor.busy = True
        faults.stop(actor)
        faults.start(actor)
        actor.busy = False
        self._require_settled(watch, "after a member came back")

    def _move(self, testbed: ChaosTestbed, to: GroupKind) -> dict[str, Any]:
        """Asks for the move until it is done, as an operator does."""
        refused: list[str] = []
        began = time.monotonic()
        asked = Request(RequestType.CONVERT_GROUP, group=GROUP, to=to, reason="a test of moves", by="chaos")
        result, message = "", "not answered"
        while len(refused) < _TRIES and result != "done":
            try:
                answered = ask(testbed.store, asked, _ANSWERED_S, lambda _: None)
                result, message = answered.result or "", answered.message or ""
            except RequestRefused as error:
                refused.append(str(error))
                time.sleep(_AGAIN_S)
            except KafkaCoordError as error:
                refused.append(f"failed: {error}")
        took_s = round(time.monotonic() - began, 3)
        return {"result": result, "message": message, "refused": refused, "took_s": took_s}

    def _victim(self, testbed: ChaosTestbed) -> Actor:
        """Chooses the instance that moves the group, or another one, in turn."""
        self._kills += 1
        mover, _ = AskedInstances(testbed.store, login(testbed.user(OPERATOR))).directory().coordinator_of(GROUP)
        serving = testbed.of("serve")
        others = [one for one in serving if one.name != str(mover)]
        return testbed.actor(f"serve:{mover}") if self._kills % 2 else self._random.choice(others)

    def _kill(self, actor: Actor | None, faults: Faults) -> Callable[[], None]:
        """Begins to kill an instance soon, and to start it again. Returns what waits for the end of that."""
        if actor is None:
            return lambda: None
        failures: list[Exception] = []
        after_s = self._random.uniform(0, _KILLED_WITHIN_S)

        def kill() -> None:
            try:
                time.sleep(after_s)
                actor.busy = True
                faults.kill(actor, self._moves.away_s)
                actor.busy = False
            except Exception as error:  # noqa: BLE001  raised on the run's thread
                failures.append(error)

        thread = threading.Thread(target=kill, name="kill")
        thread.start()

        def wait() -> None:
            thread.join()
            if failures:
                raise failures[0]

        return wait
