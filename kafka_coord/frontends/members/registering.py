"""Registers members without a ZooKeeper session, by creating the znodes that other consumers create for themselves.

A registration is persistent and names the instance that serves the member. It outlives that instance, so that the next
one can give the member a full session timeout (docs/design.md, section 8).
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from msgspec import structs

from kafka_coord.channel.messages import Code, Register
from kafka_coord.channel.operations import MAX_REQUEST_BYTES, Registration, register_ops
from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.coordinator.image import read_registrations
from kafka_coord.errors import (
    BadVersion,
    KafkaCoordError,
    MalformedValue,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    StoreError,
)
from kafka_coord.frontends.members.fenced_store import FencedStore, isolated
from kafka_coord.frontends.members.machine.stimuli import RegistrationWanted
from kafka_coord.model import Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import generated
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import packed, unit_at_fault
from kafka_coord.zk.store import Delete, Node, Op, OpResult, SetData, Stat

log = logging.getLogger(__name__)

GATEWAY = "gateway"
"""The field that marks the registration of a member without a ZooKeeper session. Its value is the broker id of the
instance that wrote the registration."""

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for refusing a registration, as reported in the response."""

    code: Code
    message: str
    more: tuple[tuple[str, Any], ...] = ()


@dataclass(slots=True, eq=False)
class Registering:
    """One requested registration. Its value is unique, so the outcome can be read back if ZooKeeper's response is lost.
    ``then`` is called once, with the registration or the refusal."""

    wanted: RegistrationWanted
    then: Callable[[Registering, Registration | Refusal], None]
    ops: tuple[Op, ...] = ()
    finished: bool = False

    @property
    def group(self) -> str:
        return self.wanted.group

    @property
    def consumer(self) -> str:
        return self.wanted.consumer

    def finish(self, outcome: Registration | Refusal) -> None:
        self.finished = True
        self.then(self, outcome)


def too_large(value: bytes) -> Refusal | None:
    """Refuses a registration that is too large for the coordinator to read, because it would block decisions about its
    group. Returns ``None`` for any other registration."""
    if len(value) <= fields.MAX_VALUE_BYTES:
        return None
    message = f"the registration is {len(value)} bytes long; at most {fields.MAX_VALUE_BYTES} are allowed"
    return Refusal(Code.BAD_SUBSCRIPTION, message, (("field", "subscription"),))


def registration_value(register: Register, gateway: int, address: str, now_ms: int, nonce: str) -> bytes:
    """Returns the value of ``ids/<consumer>`` for a member without a ZooKeeper session."""
    member = structs.replace(register.member, timestamp=str(now_ms), gateway=gateway, address=address)
    own = {"auto_commit": register.auto_commit, "resume_key": register.resume_key, "nonce": nonce}
    return fields.dump(member.to_json() | own)


def made_id(group: str, address: str, now_ms: int) -> str:
    """Generates ``<group>_<host>-<epoch ms>-<8 hex>``, the format of the names that consumers generate."""
    host = re.sub(r"[^a-zA-Z0-9._-]", "-", address.rpartition(":")[0])
    tail = f"-{now_ms}-{secrets.token_hex(4)}"
    return generated(f"{group}_{host}", tail)


def register_all(store: FencedStore, requests: Sequence[Registering]) -> None:
    """Writes and finishes the given registrations. If ZooKeeper refuses one of them, the others are not affected.

    Raises :class:`Fenced` and :class:`StoreUnavailable`. After an error, call this function again for the unfinished
    registrations. It recognizes those that have already been written.
    """
    isolated(requests, partial(_register, store), _refused)


def _refused(request: Registering, error: StoreError) -> None:
    if isinstance(error, NoAuth):
        reason = f"ZooKeeper does not allow the coordinator to register the consumer: {error}"
        request.finish(Refusal(Code.NOT_AUTHORISED, reason))
    else:
        request.finish(Refusal(Code.UNAVAILABLE, str(error)))


def _register(store: FencedStore, requests: Sequence[Registering]) -> None:
    left = [one for one in requests if not one.finished]
    for attempt in range(_ATTEMPTS):
        if attempt > 0:  # most groups exist already
            for group in sorted({one.group for one in left}):
                ensure_group(store, group)
        left = _write(store, _examine(store, left))
        if not left:
            return
    for request in left:
        request.finish(Refusal(Code.UNAVAILABLE, "the consumer's znodes changed on every attempt; retry"))


def _examine(store: FencedStore, requests: Sequence[Registering]) -> list[Registering]:
    """Returns the registrations that can be written now and finishes all others. Finishes none before it has proven
    that no other instance has taken over: to the next one, a name may belong to a member that this one does not know,
    and clients take some refusals as final."""
    found = read_registrations(store, [(one.group, one.consumer) for one in requests])
    possible, names = [], set()
    finished: list[tuple[Registering, Registration | Refusal]] = []
    for request, (node, channel) in zip(requests, found, strict=True):
        for read in (node, channel):
            if isinstance(read, Unreadable):
                raise NoAuth(f"{read.path}: {read.reason}", read.path)
        registered = node if isinstance(node, Node) else None
        stat = channel.stat if isinstance(channel, Node) else None
        if (request.group, request.consumer) in names:
            taken = _taken(request.consumer, "another connection is registering under it", 0)
            finished.append((request, taken))
            continue
        names.add((request.group, request.consumer))
        outcome = _decide(request, registered, stat)
        if outcome is None:
            possible.append(request)
        else:
            finished.append((request, outcome))
    if finished:
        store.multi(())
    for request, outcome in finished:
        request.finish(outcome)
    return possible


def _decide(request: Registering, node: Node | None, channel: Stat | None) -> Registration | Refusal | None:
    """Returns the outcome if it is already known. Otherwise, sets ``request.ops`` to the operations that write the
    registration and returns ``None``."""
    group, consumer, value = request.group, request.consumer, request.wanted.value
    if node is None:
        request.ops = register_ops(group, consumer, value, has_channel=channel is not None, ephemeral=False)
        return None
    if node.data == value and channel is not None and channel.mzxid == node.stat.czxid:
        return Registration(group, consumer, node.stat.czxid, channel.version, 0)  # ZooKeeper's response was lost
    if channel is None or not _is_its_own(request.wanted, node):
        return _taken(consumer, _who(node), node.stat.czxid)
    # the consumer is returning; if another one registers first, the channel's version changes and this write fails
    set_channel, create = register_ops(group, consumer, value, ephemeral=False)
    token = SetData(set_channel.path, b"", channel.version)
    request.ops = (token, Delete(layout.registration(group, consumer)), create)
    return None


def _is_its_own(wanted: RegistrationWanted, node: Node) -> bool:
    """Returns whether the same client created the registration in ``node``, over the same protocol."""
    resume_key = wanted.options.resume_key
    if not resume_key or node.stat.ephemeral_owner != 0:
        return False
    try:
        value, protocol = fields.load(node.data, "registration"), fields.load(wanted.value, "").get("protocol")
    except MalformedValue:
        return False
    return GATEWAY in value and value.get("resume_key") == resume_key and value.get("protocol") == protocol


def _taken(consumer: str, by: str, incarnation: int) -> Refusal:
    return Refusal(
        Code.DUPLICATE_CONSUMER,
        f"consumer id {consumer!r} is taken: {by}",
        (("incarnation", incarnation),) if incarnation else (),
    )


def _who(node: Node) -> str:
    try:
        value = fields.load(node.data, "registration")
    except MalformedValue:
        return "an unreadable registration is using it"
    where = fields.plain(value.get("address") or value.get("host") or "an unknown host")[:100]
    return f"a consumer at {where} ({fields.plain(value.get('client', 'unknown'))[:100]}) is using it"


def _write(store: FencedStore, requests: Sequence[Registering]) -> list[Registering]:
    """Writes and finishes the registrations. Returns those that failed and must be examined again."""
    again: list[Registering] = []
    left = iter(requests)
    for units in packed([one.ops for one in requests], store.acl_bytes, MAX_REQUEST_BYTES):
        again += _write_batch(store, [*islice(left, len(units))])
    return again


def _write_batch(store: FencedStore, requests: list[Registering]) -> list[Registering]:
    again: list[Registering] = []
    left = requests
    while left:
        try:
            results = iter(store.multi([op for one in left for op in one.ops]))
        except MultiFailed as error:
            at_fault = left[unit_at_fault([one.ops for one in left], error.index)]
            gone = [at_fault]
            if isinstance(error.cause, NoNode):  # most likely because the group has no znodes yet
                gone = [one for one in left if one.group == at_fault.group]
                again += gone
            elif isinstance(error.cause, (NodeExists, BadVersion)):
                again.append(at_fault)
            else:
                _refused(at_fault, error.cause)
            left = [one for one in left if one not in gone]
        else:
            for request in left:
                request.finish(_registration(request, [*islice(results, len(request.ops))]))
            left = []
    return again


def _registration(request: Registering, results: Sequence[OpResult]) -> Registration:
    """Returns the registration that was just written. All operations in a multi share one zxid, so the registration's
    czxid is the zxid of the write to the channel."""
    channel = next((result for result in results if isinstance(result, Stat)), None)
    if channel is None:
        raise KafkaCoordError("ZooKeeper returned no result for the channel that was written")
    return Registration(request.group, request.consumer, channel.mzxid, channel.version, 0)
