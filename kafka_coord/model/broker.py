"""Kafka's brokers: as their znodes describe them, and what they answer about themselves and their topics, as the mirror
of a cluster's metadata takes it (ADR 56)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields

_MAX_HOST_CHARS = 253
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(?:%[\w.-]+)?", re.ASCII)
_NOT_IN_A_HOST = re.compile(r"[\s,/@\[\]:\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener of a broker: its name, its security protocol, and its ``host:port``."""

    name: str
    protocol: str
    address: str

    @property
    def endpoint(self) -> str:
        """The listener in Kafka's form, ``NAME://host:port``."""
        return f"{self.name}://{self.address}"


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker. Its addresses are validated, so a resolver or librdkafka can use them as they are."""

    broker_id: int
    listeners: tuple[Listener, ...]
    rack: str | None = None

    @classmethod
    def from_znode(cls, data: bytes, broker_id: int, where: str) -> Broker:
        """Decodes every version that Kafka has written, from ``host`` and ``port`` (0.8) to named listeners (since
        0.10.2). Follows ``kafka.zk.BrokerIdZNode.decode``. Raises :class:`MalformedValue` if any host is unusable.
        """
        return cls.from_json(fields.load_object(data, where), broker_id, where)

    @classmethod
    def from_json(cls, value: fields.Json, broker_id: int, where: str) -> Broker:
        """Like :meth:`from_znode`, for an object that is already decoded."""
        rack = value.get("rack")
        return cls(broker_id, _listeners(value, where), rack if isinstance(rack, str) and rack else None)


def _listeners(value: fields.Json, where: str) -> tuple[Listener, ...]:
    endpoints = value.get("endpoints")
    if endpoints is None:
        return (Listener("PLAINTEXT", "PLAINTEXT", _host_port(value, where)),)
    if not isinstance(endpoints, list):
        raise MalformedValue(where, "field 'endpoints' is not a list")
    protocols = value.get("listener_security_protocol_map", {})
    if not isinstance(protocols, dict):
        raise MalformedValue(where, "field 'listener_security_protocol_map' is not an object")
    return tuple(_listener(endpoint, protocols, where) for endpoint in endpoints)


def _host_port(value: Mapping[str, Any], where: str) -> str:
    host, port = value.get("host"), value.get("port")
    is_port = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536
    if not isinstance(host, str) or not host or not is_port:
        raise MalformedValue(where, f"no usable address: host {fields.shown(host)}, port {fields.shown(port)}")
    return _address(host, int(port or 0), where)


def _listener(endpoint: object, protocols: Mapping[str, Any], where: str) -> Listener:
    name, separator, rest = endpoint.partition("://") if isinstance(endpoint, str) else ("", "", "")
    host, colon, port = rest.rpartition(":")
    if not separator or not colon or not name or not host or not fields.decimal(port, 65_535):
        raise MalformedValue(where, f"endpoint {fields.shown(endpoint, 80)} is not of the form NAME://host:port")
    protocol = fields.plain(protocols.get(name, name)).upper()
    return Listener(name, protocol, _address(host, int(port), where))


def _address(host: str, port: int, where: str) -> str:
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare:
        if not _IPV6.fullmatch(bare) or len(bare) > _MAX_HOST_CHARS:
            raise MalformedValue(where, f"host {fields.shown(host, 80)} is not an IPv6 address")
        return f"[{bare}]:{port}"
    if wrong := _no_host(bare):
        raise MalformedValue(where, f"host {fields.shown(host, 80)} {wrong}")
    return f"{bare}:{port}"


def _no_host(host: str) -> str:
    """Returns why a resolver would reject the host, or "" if it would not. Python's resolver encodes names with the
    codec used here, which rejects empty labels and labels of more than 63 characters. The codec takes quadratic time,
    so the length is checked first."""
    if len(host) > _MAX_HOST_CHARS:
        return f"is longer than {_MAX_HOST_CHARS} characters"
    if _NOT_IN_A_HOST.search(host):
        return "contains a character that is not allowed in a host name"
    try:
        host.encode("idna")
    except UnicodeError:
        return "is not a host name: one of its labels is empty, longer than 63 characters, or not valid text"
    return ""


UNKNOWN_TOPIC, UNKNOWN_ID, NOT_AUTHORIZED = 3, 100, 29
"""The codes of UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID and TOPIC_AUTHORIZATION_FAILED."""


@dataclass(frozen=True, slots=True)
class NamedBroker:
    """A broker that an answer names, with the address of the listener that was asked."""

    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class AnsweredTopic:
    """A topic in an answer. ``replicas`` maps each partition to its replicas; ``leaders`` to its leader and that
    leader's epoch. ``error`` is Kafka's code, or 0."""

    name: str
    topic_id: str = ""
    replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    leaders: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    error: int = 0


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """What one broker answered. ``teller`` is its id, or ``None`` if it does not name itself.

    ``is_whole`` says that all topics were asked for, so that one which the client may describe and which is not there
    is unknown to the broker. ``known`` and ``unknown`` are the ids that it was asked for *by id*. ``listener`` is the
    name of the listener that was asked, or an empty string if only its address is known.
    """

    teller: int | None
    brokers: Mapping[int, NamedBroker]
    topics: tuple[AnsweredTopic, ...] = ()
    is_whole: bool = False
    known: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    listener: str = ""
    cluster_id: str | None = None
    has_ids: bool = True
    """Whether the broker gives topics ids, as it does from Kafka 2.8 on."""
