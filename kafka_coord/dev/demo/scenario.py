"""Triggers the scenario's events, in order, while the group is running."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.flights import read_flights
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.demo.journal import Killing, now_ms
from kafka_coord.dev.demo.options import Clients, DemoOptions, Kind
from kafka_coord.dev.demo.timeline import Event, EventKind
from kafka_coord.dev.demo.view import PlainView
from kafka_coord.dev.demo.watching import GroupNow, GroupView, Watcher
from kafka_coord.dev.demo.workforce import Workforce
from kafka_coord.errors import DevClusterError, Timeout
from kafka_coord.kafka.librdkafka import produce
from kafka_coord.model import TopicPartition

_JITTER = 0.03

_SETTLE_S = 150.0
_ALWAYS_WITHIN_S = 120.0
_POLL_S = 0.05
_LAST_COMMIT_S = 0.3
"""Longer than a coordinator buffers offsets before it writes them."""


class Scenario:
    """Plays the scenario once. Afterwards, ``events`` and ``killings`` contain what happened, and
    ``coordinator_killed`` maps the epoch of the killed coordinator to the time when it was killed (ms since 1970)."""

    def __init__(
        self,
        options: DemoOptions,
        cluster: DevCluster,
        watcher: Watcher,
        workforce: Workforce,
        view: PlainView,
        check: Callable[[], None],
    ) -> None:
        """While the scenario waits, it calls ``check``, which raises any error that has occurred elsewhere."""
        self._options = options
        self._cluster = cluster
        self._watcher = watcher
        self._workforce = workforce
        self._view = view
        self._check = check
        self._random = random.Random(options.seed)  # noqa: S311 - a scenario, not a secret
        self.events: list[Event] = []
        self.killings: list[Killing] = []
        self.coordinator_killed: dict[int, int] = {}

    def play(self) -> None:
        """Plays the whole scenario, until everything is committed. Raises :class:`~kafka_coord.errors.Timeout` if an
        expected event does not happen, and :class:`~kafka_coord.errors.ConsumerError` if a consumer ends unexpectedly.
        """
        self._begin()
        for share, act in self._acts():
            self._when_committed(share)
            act()
        self._finish()

    def _acts(self) -> Sequence[tuple[float, Callable[[], None]]]:
        """Returns the acts. Each begins once its share of the first load is committed; the seed varies the shares a
        little. If every kind of consumer is in the group, one consumer of each kind is killed."""
        if self._options.clients is Clients.MIXED:
            return (
                (0.08, self._join),
                (0.20, partial(self._kill, Kind.CONSUMER, Kind.CLASSIC)),
                (0.40, self._kill_coordinator),
                (0.60, partial(self._kill, Kind.OWN, Kind.SPARK)),
                (0.76, self._grow),
                (0.88, self._leave),
            )
        return (
            (0.13, self._join),
            (0.28, self._kill),
            (0.46, self._kill_coordinator),
            (0.66, self._grow),
            (0.84, self._leave),
        )

    # --- the acts ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        at_ms = now_ms()
        names = [self._workforce.hire() for _ in range(self._options.consumers)]
        info = self._wait_for(lambda view: view.coordinator is not None, "a coordinator", 30.0).coordinator
        where = f"; the coordinator runs beside broker {info.broker_id}, epoch {info.epoch}" if info else ""
        self._note(EventKind.STARTED, f"{', '.join(names)} join the new group{where}", at_ms)
        self._wait_until_settled(
            lambda found: len(_owners(found)) == len(names), f"{len(names)} members to own partitions"
        )

    def _join(self) -> None:
        at_ms = now_ms()
        name = self._workforce.hire()
        self._note(EventKind.JOINED, f"{name} joins and takes its share", at_ms)
        self._wait_until_settled(lambda found: name in _owners(found), f"{name} to own partitions")

    def _kill(self, *kinds: Kind) -> None:
        """Kills a random consumer or, if kinds are given, one consumer of each kind at the same time."""
        # so that all consumers have recorded their partitions
        self._wait_until_settled(lambda _found: True, "the group to be stable")
        working = list(self._workforce.working)
        candidates = [[name for name in working if self._workforce.kind(name) is kind] for kind in kinds] or [working]
        victims = [self._random.choice(names) for names in candidates]
        for victim in victims:
            self._workforce.kill(victim)
            at_ms = now_ms()
            held = self._left_behind(victim)
            self.killings.append(Killing(victim, at_ms, held))
            told = f"{victim} is killed (kill -9) while it owns {len(held)} partitions"
            self._note(EventKind.KILLED, told, at_ms)
        self._wait_until_settled(
            lambda found: not _owners(found) & set(victims), f"others to own the partitions of {', '.join(victims)}"
        )

    def _kill_coordinator(self) -> None:
        before = self._wait_for(lambda view: view.coordinator is not None, "a coordinator", 30.0).coordinator
        if before is None:
            raise DevClusterError("there is no coordinator to kill")
        victim = self._cluster.coordinator(before.broker_id)
        victim.kill()
        at_ms = now_ms()
        self.coordinator_killed[before.epoch] = at_ms
        told = f"the coordinator beside broker {before.broker_id} is killed (kill -9)"
        self._note(EventKind.COORDINATOR_KILLED, told, at_ms)

        def succeeded(view: GroupView) -> bool:
            return view.coordinator is not None and view.coordinator.epoch > before.epoch

        after = self._wait_for(succeeded, "another coordinator", _ALWAYS_WITHIN_S).coordinator
        if after is not None:
            elected_ms = self._watcher.elected_ms(after.epoch) or now_ms()
            took_s = (elected_ms - at_ms) / 1000
            told = f"the instance beside broker {after.broker_id} is elected, epoch {after.epoch}, {took_s:.1f} s later"
            self._note(EventKind.COORDINATOR_ELECTED, told, elected_ms)
        victim.launch()
        self._wait_until_settled(
            lambda found: found.coordinator != before.broker_id, "the group to be stable under the new coordinator"
        )

    def _grow(self) -> None:
        options = self._options
        at_ms = now_ms()
        TopicAdmin(self._cluster.bootstrap_servers).add_partitions(options.topic, options.grown_partitions)
        grown = f"{options.topic} grows from {options.partitions} to {options.grown_partitions} partitions"
        self._note(
            EventKind.PARTITIONS_ADDED, f"{grown}, and {options.again:,} records are written to the new ones", at_ms
        )
        produce(
            self._cluster.bootstrap_servers,
            options.topic,
            islice(read_flights(), options.again),
            partitions=range(options.partitions, options.grown_partitions),
        )
        owned = options.grown_partitions
        self._wait_until_settled(lambda found: len(found.owners) == owned, f"all {owned} partitions to be owned")

    def _leave(self) -> None:
        leaver = self._random.choice(self._workforce.working)
        at_ms = now_ms()
        self._note(EventKind.LEFT, f"{leaver} leaves the group cleanly", at_ms)
        self._workforce.dismiss(leaver)
        self._wait_until_settled(
            lambda found: leaver not in _owners(found), f"others to own the partitions of {leaver}"
        )

    def _finish(self) -> None:
        wanted = self._options.total

        def done(view: GroupView) -> bool:
            sample = view.sample
            return sample is not None and view.committed >= wanted and sample.total_lag == 0

        self._wait_for(done, f"{wanted:,} records to be committed", self._patience_s())
        self._wait_until_settled(lambda found: found.pending == 0, "the group to be stable")
        self._note(EventKind.FINISHED, f"all {wanted:,} records are consumed and committed")

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _when_committed(self, share: float) -> None:
        wanted = (share + self._random.uniform(-_JITTER, _JITTER)) * self._options.records

        self._wait_for(
            lambda view: view.committed >= wanted, f"{wanted:,.0f} records to be committed", self._patience_s()
        )

    def _wait_for(self, condition: Callable[[GroupView], bool], what: str, timeout_s: float) -> GroupView:
        def fulfilled(view: GroupView) -> bool:
            self._check()
            return condition(view)

        return self._watcher.wait_for(fulfilled, what, timeout_s)

    def _patience_s(self) -> float:
        return _ALWAYS_WITHIN_S + 5 * self._options.seconds

    def _wait_until_settled(self, condition: Callable[[GroupNow], bool], what: str) -> None:
        """Waits until the group is stable and meets the condition. Reads the group directly, because the last sample
        may be stale.
        """
        deadline = time.monotonic() + _SETTLE_S
        while True:
            self._check()
            found = self._watcher.now()
            if found.stable and condition(found):
                return
            if time.monotonic() >= deadline:
                raise Timeout(f"timed out after {_SETTLE_S:.0f} s waiting for {what}; the group is {found.words}")
            time.sleep(_POLL_S)

    def _left_behind(self, victim: str) -> dict[TopicPartition, int]:
        """Returns the partitions that a killed consumer held, with their committed offsets. Polls until the offsets
        stop changing, because ZooKeeper or a coordinator may still be applying the consumer's last commit.
        """
        before: dict[TopicPartition, int] | None = None
        since = time.monotonic()
        while True:
            found = self._watcher.now()
            if victim not in found.members:
                raise Timeout(f"the session of {victim} ended before its committed offsets could be read")
            held = {tp: found.committed.get(tp, 0) for tp, owner in found.owners.items() if owner == victim}
            if held != before:
                before, since = held, time.monotonic()
            elif time.monotonic() - since >= _LAST_COMMIT_S:
                return held
            time.sleep(_POLL_S)

    def _note(self, kind: EventKind, text: str, at_ms: int | None = None) -> None:
        event = Event(at_ms or now_ms(), kind, text)
        self.events.append(event)
        self._view.event(event)


def _owners(found: GroupNow) -> set[str]:
    return set(found.owners.values())
