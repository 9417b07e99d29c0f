"""The scenario with every kind of consumer in one group. One consumer of each kind and the coordinator are killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kafka_coord.dev.demo.options import Kind
from kafka_coord.dev.demo.scenario import Scenario
from kafka_coord.dev.demo.watching import Watcher, named_by_client_id
from kafka_coord.monitor.groups import EndOffsets, GroupDescription


class MixedWatcher(Watcher):
    """A :class:`~kafka_coord.dev.demo.watching.Watcher` that names stock clients by their ``client.id``."""

    def _read(self, ends: EndOffsets | None) -> GroupDescription:
        return named_by_client_id(super()._read(ends))


class MixedScenario(Scenario):
    """See :class:`~kafka_coord.dev.demo.scenario.Scenario`."""

    def _acts(self) -> Sequence[tuple[float, Callable[[], None]]]:
        return (
            (0.08, self._join),
            (0.20, partial(self._kill, Kind.CONSUMER, Kind.CLASSIC)),
            (0.40, self._kill_coordinator),
            (0.60, partial(self._kill, Kind.OWN, Kind.SPARK)),
            (0.76, self._grow),
            (0.88, self._leave),
        )
