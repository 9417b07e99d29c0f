"""Rebalances a managed group, and evicts members of any group. The CLI and the dashboard share this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafka_coord.coordinator.plan.membership import membership_of
from kafka_coord.errors import NotFound, Timeout
from kafka_coord.model import GroupKind, Pause, Request, RequestType
from kafka_coord.monitor.client_groups.asking import AskedInstances
from kafka_coord.monitor.client_groups.changes import evict_members, require_members
from kafka_coord.monitor.documents import AnswerDocument
from kafka_coord.monitor.groups import snapshot_of
from kafka_coord.monitor.operate import pause_of, record
from kafka_coord.monitor.requests import Acting, ask, submit
from kafka_coord.monitor.snapshot import GroupSnapshot
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def rebalance(store: Store, group: str, acting: Acting, paused_by: Callable[[Pause], str]) -> AnswerDocument:
    """Asks the coordinator for a new target and returns the response as a document. Raises :class:`NotFound`,
    :class:`RequestRefused` and :class:`Timeout`. If the group is paused, leaves the request in the queue and raises
    :class:`Timeout` immediately.
    """
    if store.exists(layout.group(group)) is None:
        raise NotFound(f"no managed group {group!r}")
    request = Request(RequestType.REBALANCE, group=group, reason=acting.reason, by=acting.by)
    paused = pause_of(store, group)
    if paused is not None:
        name = submit(store, request)
        raise Timeout(
            f"{name} is pending, because group {group!r} is paused {paused_by(paused)}"
            f". To withdraw the request: kafka-coord coordinator withdraw {name}"
        )
    return AnswerDocument.of(ask(store, request, acting.timeout_s, acting.on_progress))


def evict(
    instances: AskedInstances, group: str, kind: GroupKind, consumers: Sequence[str], acting: Acting
) -> list[AnswerDocument]:
    """Evicts the consumers from the group and returns one document for each. If any of the consumers is not a member,
    raises :class:`NotFound` without evicting anyone. Also raises :class:`RequestRefused`, :class:`Timeout` and
    :class:`BrokerError`.
    """
    store = instances.store
    if kind is GroupKind.MANAGED:
        _require_members(snapshot_of(store, group)[1], consumers)
        requests = [Request(RequestType.EVICT, group, consumer, acting.reason, acting.by) for consumer in consumers]
        return [AnswerDocument.of(ask(store, one, acting.timeout_s, acting.on_progress)) for one in requests]
    messages = evict_members(instances, group, consumers, acting.timeout_s)
    record(store, f"evict {', '.join(consumers)}", group, by=acting.by, reason=acting.reason)
    return [AnswerDocument.done("evict", group, message) for message in messages]


def _require_members(snapshot: GroupSnapshot, consumers: Sequence[str]) -> None:
    membership = membership_of(snapshot.observation)
    known = {
        *membership.live,
        *membership.in_grace,
        *membership.gone,
        *membership.any_registration_unreadable,
        *membership.any_ledger_unreadable,
    }
    require_members(snapshot.group, consumers, known)
