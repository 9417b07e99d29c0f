"""Before each decision, repairs a running group whose znodes someone has deleted by hand."""

from __future__ import annotations

import logging

from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.observe import Snapshot
from kafka_coord.coordinator.steps import Plan, WriteLedgerAndCommands
from kafka_coord.model import Observation
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, Op

log = logging.getLogger(__name__)


def repairs(memory: GroupMemory, snapshot: Snapshot) -> list[list[Op]]:
    """Returns the writes that must precede a decision. Usually, there are none.

    If the ledger of a live incarnation was deleted, it is restored; otherwise, its partitions would look free while the
    consumer still reads them. If a live member has a ledger but no channel, its registration is deleted, so that the
    member registers again: without a channel, it cannot acknowledge commands, yet its unacknowledged commands would
    look acknowledged.
    """
    observation = snapshot.observation
    group = observation.group
    unreadable = {found.path for found in observation.unreadable}
    units: list[list[Op]] = []
    for consumer, ledger in memory.ledgers.items():
        member, path = observation.members.get(consumer), layout.ledger(group, consumer)
        if member is None or member.incarnation != ledger.incarnation or not ledger.held:
            continue
        if consumer not in observation.ledgers and path not in unreadable:
            log.warning(
                "restored a deleted ledger, because its consumer is alive path=%s holds=%s; to release the "
                "partitions, evict the consumer (kafka-coord groups evict %s %s)",
                path,
                str(ledger.held)[:200],
                group,
                consumer,
                extra={"event": "ledger_restored", "group": group, "consumer": consumer},
            )
            units.append([Create(path, fields.dump(ledger.to_json()))])
    if units and layout.owners(group) in snapshot.missing:
        units.insert(0, [Create(layout.owners(group))])
    for consumer, member in observation.members.items():
        current = observation.ledgers.get(consumer)
        if current is not None and current.incarnation == member.incarnation and consumer not in observation.channels:
            log.warning(
                "evicted consumer=%s group=%s: someone deleted its channel %s, so it cannot acknowledge; "
                "it must register again",
                consumer,
                group,
                layout.channel(group, consumer),
                extra={"event": "channel_deleted"},
            )
            units.append([Delete(layout.registration(group, consumer))])
    return units


def remember_ledgers(memory: GroupMemory, observation: Observation, written: Plan) -> None:
    """Remembers the observed ledgers, updated with what the plan wrote."""
    ledgers = dict(observation.ledgers)
    for step in written.steps:
        if isinstance(step, WriteLedgerAndCommands):
            ledgers[step.ledger.consumer] = step.ledger
    memory.ledgers = ledgers
