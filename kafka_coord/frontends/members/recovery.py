"""After an election, finds the members without a ZooKeeper session that registered in an earlier term."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kafka_coord.channel.operations import Registration
from kafka_coord.coordinator.image import list_registered, read_registrations
from kafka_coord.coordinator.tolerant_reads import Answer
from kafka_coord.errors import MalformedValue
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions
from kafka_coord.frontends.members.registering import GATEWAY
from kafka_coord.model import Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Node, Store

FoundMember = tuple[Registration, RegistrationOptions]


def find_members(
    store: Store, groups: Iterable[str], protocols: Container[str | None]
) -> tuple[list[FoundMember], dict[str, str]]:
    """Returns the members of the given groups that use one of ``protocols`` (``None`` is the socket protocol), and the
    groups that could not be read completely, each with the reason. Raises :class:`StoreUnavailable`."""
    listings = list_registered(store, groups)  # without groups at rest: they have no members without a session
    consumers = [
        (group, name) for group, names in listings.items() if not isinstance(names, Unreadable) for name in names
    ]
    unread = {group: f"{bad.path}: {bad.reason}" for group, bad in listings.items() if isinstance(bad, Unreadable)}
    members = []
    found = read_registrations(store, consumers)
    for (group, consumer), (node, channel) in zip(consumers, found, strict=True):
        try:
            member = _member(group, consumer, protocols, node, channel)
        except MalformedValue as error:
            unread[group] = str(error)
        else:
            members += [member] if member is not None else []
    return members, unread


def _member(
    group: str, consumer: str, protocols: Container[str | None], node: Answer, channel: Answer
) -> FoundMember | None:
    """Returns the member, or ``None`` if it is gone, has its own ZooKeeper session or uses none of ``protocols``.
    Raises :class:`MalformedValue` if the member cannot be read."""
    for read in (node, channel):
        if isinstance(read, Unreadable):
            raise MalformedValue(read.path, read.reason)
    if not isinstance(node, Node) or not isinstance(channel, Node) or node.stat.ephemeral_owner != 0:
        return None
    path = layout.registration(group, consumer)
    value = fields.load(node.data, path)
    protocol = value.get("protocol")
    if GATEWAY not in value or protocol not in protocols:
        return None
    timeout_ms = fields.number(value, "session_timeout_ms", path, at_least=1)
    auto_commit, resume_key = value.get("auto_commit") is not False, fields.plain(value.get("resume_key", ""))
    registration = Registration(group, consumer, node.stat.czxid, channel.stat.version, 0)
    return registration, RegistrationOptions(timeout_ms / 1000, auto_commit, resume_key, protocol)
