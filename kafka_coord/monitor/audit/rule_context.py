"""Tracks the pauses, topics, requests and settings that the rules use but do not check."""

from __future__ import annotations

from kafka_coord.model import GroupSettings, Request, RequestType, TopicOfOffsets, is_identity, same_topic
from kafka_coord.model import json_fields as fields
from kafka_coord.model.retention import Retention
from kafka_coord.monitor.audit.paths import Kind, Znode
from kafka_coord.monitor.audit.state import StepContext
from kafka_coord.monitor.audit.tree import Change
from kafka_coord.zk import layout


def note_instance(context: StepContext, znode: Znode, change: Change) -> None:
    """Records the name of a running instance."""
    if change.new is not None and change.new.session_id:
        context.state.names.learn(change.new.session_id, f"instance {znode.name}")


def note_pause(context: StepContext, znode: Znode, change: Change) -> None:
    """Records a pause of one group or of all groups. An unreadable pause is still a pause."""
    if change.new is not None and change.old is not None:
        return
    since = context.instant if change.new is not None else None
    if znode.kind is Kind.ALL_PAUSED:
        context.state.all_paused_since = since
    else:
        context.state.group(znode.group).paused_since = since


def note_retention(context: StepContext, _znode: Znode, change: Change) -> None:
    """Records the brokers' retention. Raises :class:`MalformedValue`."""
    context.state.retention = None
    found = fields.load(change.new.data, change.path) if change.new is not None else None
    context.state.retention = Retention() if found is None else Retention.from_json(found, change.path)


def note_topic(context: StepContext, znode: Znode, change: Change) -> None:
    """Records a Kafka topic. Raises :class:`MalformedValue`."""
    if change.new is None:
        context.state.topics_since.pop(znode.name, None)
        context.state.deleted_topics.add(znode.name)
    elif change.old is None:
        context.state.topics_since[znode.name] = context.instant
    context.state.set_topic(znode.name, change.new)


def note_request(context: StepContext, znode: Znode, change: Change) -> None:
    """Records an operator's request. A withdrawn request stays recorded, because the coordinator may still execute it.
    Raises :class:`MalformedValue`."""
    if change.new is None:
        return
    request = Request.from_json(fields.load(change.new.data, change.path), change.path)
    if request.answered:
        context.state.answered.append(znode.name)
        return
    context.state.requests[znode.name] = request
    if request.type is RequestType.EVICT and request.group in context.state.groups:
        context.state.group(request.group).given_up.add(request.consumer)


def note_group(context: StepContext, znode: Znode, change: Change) -> None:
    """Records a group and its settings. Raises :class:`MalformedValue`."""
    if change.new is None:
        context.state.groups.pop(znode.group, None)
        return
    group = context.state.group(znode.group)
    group.settings = None
    where = layout.group(znode.group)
    value = change.new.data
    settings = GroupSettings.from_json(fields.load(value, where), where) if value else GroupSettings()
    group.settings = settings
    group.shortest_timeout_ms = min(group.shortest_timeout_ms, settings.rebalance_timeout_ms)


def note_offsets_of_topic(context: StepContext, znode: Znode, change: Change) -> None:
    """Records the identity in ``offsets/<topic>``, which shows which topic of that name the offsets belong to."""
    group, topic = context.state.group(znode.group), znode.name
    before = group.identities.pop(topic, "")
    if change.new is None:
        return
    after = group.identities[topic] = TopicOfOffsets.read(change.new.data).identity
    if is_identity(before) and is_identity(after) and not same_topic(before, after):
        group.earlier_offsets.update(tp for tp in group.offsets if tp.topic == topic)
