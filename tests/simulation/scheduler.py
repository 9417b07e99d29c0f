"""One seeded scheduler and one virtual clock. Actors are greenlets: they run until they pause, one at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import GreenletExit, greenlet

WALL_START_S = 1_700_000_000.0


class VirtualClock:
    """Implements :class:`kafka_coord.zk.store.Clock`. Only the scheduler moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return WALL_START_S + self.now


@dataclass(eq=False, slots=True)
class Actor:
    """``body`` runs for ever, and pauses in :meth:`Scheduler.pause` and :meth:`Scheduler.sleep`."""

    name: str
    process: str
    body: Callable[[], None]
    run: greenlet | None = None
    asleep_until: float = 0.0
    sleeping: bool = False
    waker: Callable[[], bool] | None = None
    turn: Callable[[], None] = lambda: None
    """Lets the actor run until it pauses. The scheduler sets this field."""
    done: bool = False
    story: list[str] = field(default_factory=list)


class Scheduler:
    """Decides who runs next. All randomness comes from ``rng``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self._hub = greenlet.getcurrent()

    def spawn(self, actor: Actor) -> Actor:
        self.actors.append(actor)
        return actor

    def kill(self, actor: Actor) -> None:
        """Ends the actor where it paused. Its cleanup must not reach the cluster (see SimStore)."""
        actor.done = True
        if actor in self.actors:
            self.actors.remove(actor)
        if actor.run is not None and not actor.run.dead and actor.run is not greenlet.getcurrent():
            actor.run.throw(GreenletExit)

    def pause(self) -> None:
        """Lets other actors run. The actor continues when it is chosen again."""
        if self.current is not None:
            self._hub.switch()

    def sleep(self, until: float, waker: Callable[[], bool] | None = None) -> None:
        """Like :meth:`pause`, but the actor is not chosen before ``until`` unless ``waker`` wakes it."""
        actor = self.current
        if actor is None:
            return
        actor.asleep_until, actor.waker, actor.sleeping = until, waker, True
        self.pause()
        actor.sleeping = False

    def step(self, actor: Actor) -> None:
        """Runs the actor until it pauses. Raises its exception."""
        if actor.run is None:
            actor.run = greenlet(actor.body, self._hub)
        self.current = actor
        try:
            actor.run.switch()
        finally:
            self.current = None
        if actor.run.dead:
            actor.done = True
            self.actors.remove(actor)
