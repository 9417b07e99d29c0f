"""The scenario with stock clients: the group's coordinator is killed and restarted, and then another takes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.leadership import move_leadership
from kafka_coord.dev.demo.journal import now_ms
from kafka_coord.dev.demo.options import DemoOptions
from kafka_coord.dev.demo.scenario import Scenario
from kafka_coord.dev.demo.stock.watching import StockWatcher
from kafka_coord.dev.demo.timeline import EventKind
from kafka_coord.dev.demo.view import PlainView
from kafka_coord.dev.demo.workforce import Workforce
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import TOPIC

_BACK_WITHIN_S = 90.0


class StockScenario(Scenario):
    """A :class:`~kafka_coord.dev.demo.scenario.Scenario` for stock clients."""

    def __init__(
        self,
        options: DemoOptions,
        cluster: DevCluster,
        watcher: StockWatcher,
        workforce: Workforce,
        view: PlainView,
    ) -> None:
        super().__init__(options, cluster, watcher, workforce, view, workforce.check)
        self._stock_watcher = watcher

    def _acts(self) -> Sequence[tuple[float, Callable[[], None]]]:
        return (
            (0.10, self._join),
            (0.22, self._kill),
            (0.42, self._kill_coordinator),
            (0.58, self._move_leadership),
            (0.70, self._grow),
            (0.86, self._leave),
        )

    def _kill_coordinator(self) -> None:
        before = self._wait_for(lambda view: view.coordinator is not None, "a coordinator", _BACK_WITHIN_S).coordinator
        assert before is not None  # noqa: S101 - waited for
        victim = self._cluster.coordinator(before.broker_id)
        victim.kill()
        at_ms = now_ms()
        self._stock_watcher.ended()
        self.coordinator_killed[before.epoch] = at_ms
        told = f"the group's coordinator, the instance beside broker {before.broker_id}, is killed (kill -9)"
        self._note(EventKind.COORDINATOR_KILLED, told, at_ms)
        victim.launch()
        back_ms = self._await_epoch(before.epoch + 1)
        took_s = (back_ms - at_ms) / 1000
        told = f"it has restarted and read the group and its offsets from the log, {took_s:.1f} s later"
        self._note(EventKind.COORDINATOR_ELECTED, told, back_ms)
        self._wait_until_settled(lambda found: bool(found.owners), "the group to be stable under its coordinator")

    def _move_leadership(self) -> None:
        at_ms = now_ms()
        epoch = self._stock_watcher.view.coordinator
        partition = partition_of(self._options.group)
        was, leads = move_leadership(self._cluster.bootstrap_servers, TOPIC, partition)
        moved = f"the leadership of partition {partition} of the groups log moves from broker {was} to broker {leads}"
        self._note(EventKind.LEADERSHIP_MOVED, f"{moved}; the group moves with it, to the instance there", at_ms)
        self._wait_until_settled(
            lambda found: found.coordinator == leads and bool(found.owners),
            f"the group to be stable beside broker {leads}",
        )
        if epoch is not None:
            self._await_epoch(epoch.epoch + 1)

    def _await_epoch(self, epoch: int) -> int:
        """Waits for the next coordinator, and returns when it first answered for the group (ms since 1970)."""
        self._wait_for(
            lambda view: view.coordinator is not None and view.coordinator.epoch >= epoch,
            "the group's next coordinator",
            _BACK_WITHIN_S,
        )
        return self._stock_watcher.elected_ms(epoch) or now_ms()
