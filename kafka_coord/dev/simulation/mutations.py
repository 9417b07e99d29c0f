"""Deliberate defects, each of which the simulator has to find: proof that its judge can say no."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.connector import Connector
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.dev.simulation.applications import SimulatedFetchers
from kafka_coord.model import Ledger
from kafka_coord.zk.layout import COORDINATOR_EPOCH
from kafka_coord.zk.store import Check

Patch = tuple[Any, str, Any]


def _no_epoch_check() -> Patch:
    def write(self: Any, units: Any) -> Any:
        return [self._store.multi([Check(COORDINATOR_EPOCH), *unit]) for unit in units]

    return Executor, "write", write


def _no_token_check() -> Patch:
    return Registration, "fence", lambda _self: (Check("/"), Check("/"))


def _held_is_only_what_is_owned() -> Patch:
    return Ledger, "held", property(lambda self: self.owned)


def _acknowledge_without_offsets() -> Patch:
    original = ConsumerChannel.acknowledge
    return ConsumerChannel, "acknowledge", lambda self, who, command, _offsets: original(self, who, command, {})


def _stop_offsets_written_again() -> Patch:
    original = ConsumerChannel.acknowledge

    def acknowledge(self: Any, who: Any, command: Any, offsets: Any) -> Any:
        found = original(self, who, command, offsets)
        self.commit(who, offsets)
        return found

    return ConsumerChannel, "acknowledge", acknowledge


def _acknowledge_without_stopping() -> Patch:
    return SimulatedFetchers, "release", lambda self, partitions: self.uncommitted(partitions)


def _hand_out_without_proof() -> Patch:
    return Connector, "may_hand_out", lambda self: self.registration is not None


def _events_are_dropped() -> Patch:
    return RebalanceRequestQueue, "request", lambda _self, _group: None


MUTATIONS: dict[str, Callable[[], Patch]] = {
    "no epoch check": _no_epoch_check,
    "no token check": _no_token_check,
    "held is only what is owned": _held_is_only_what_is_owned,
    "acknowledge before commit": _acknowledge_without_offsets,
    "a stop's offsets written again": _stop_offsets_written_again,
    "acknowledge without stopping": _acknowledge_without_stopping,
    "hand out without proof": _hand_out_without_proof,
    "events are dropped": _events_are_dropped,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The named defect, for as long as the block lasts."""
    owner, attribute, replacement = MUTATIONS[name]()
    original = owner.__dict__[attribute]
    setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        setattr(owner, attribute, original)
