"""The topic that all clients read: it is deleted and made anew, or hidden for a while, and instances learn it late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from kafka_coord.grouplog.topics import LogTopics
from kafka_coord.model import TopicInfo
from tests.simulation.groups.loop import Process, World

_LATE_S = 0.03
"""The longest delay of a read, and of the news of a change."""


class SimulatedTopic:
    """The one topic. ``identity`` is empty while the topic is not seen. ``changed_at`` is the time of the last
    change. While the topic ``is_still``, reads take no time, so histories are the same as without topics."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng = world, random.Random(f"topics {seed}")
        self._count, self.is_still = 0, True
        self.identity, self.changed_at = "", 0.0
        self.listeners: list[Callable[[], None]] = []
        self.make_anew()

    def make_anew(self) -> None:
        self._count += 1
        self._become(self._id())

    def hide(self) -> None:
        """Hides the topic until :meth:`show` or :meth:`make_anew`."""
        self._become("")

    def show(self) -> None:
        if not self.identity:
            self._become(self._id())

    @property
    def newest(self) -> str:
        """The identity of the newest topic, also while it is hidden."""
        return self._id()

    def _id(self) -> str:
        """The identity in the form in which the groups log returns it: the base64 form of 16 bytes ends with "w"."""
        return f"id-{self._count}".ljust(21, "-") + "w"

    def _become(self, identity: str) -> None:
        self.identity, self.changed_at = identity, self.world.now
        for listener in self.listeners:
            self.world.after(self.rng.uniform(0.0, _LATE_S), listener)


class SimulatedTopics(LogTopics):
    """What one instance knows of the topic."""

    def __init__(self, topic: SimulatedTopic, process: Process) -> None:
        super().__init__()
        self._topic, self._process = topic, process

    async def learn(self, topics: Iterable[str], *, follow: bool = False) -> None:
        for name in topics:
            if not self._topic.is_still:
                await asyncio.sleep(self._topic.rng.uniform(0.0, _LATE_S))
            self._see(name)
            if follow and not self.is_followed(name):
                self.followed.add(name)
                self._topic.listeners.append(lambda name=name: self._process.call_soon(self._see, name))  # type: ignore[misc]

    def _see(self, name: str) -> None:
        identity = self._topic.identity
        seen = TopicInfo(name, frozenset(), identity) if identity else None
        self.note(name, seen)
