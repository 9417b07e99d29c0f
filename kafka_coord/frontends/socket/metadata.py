"""What any instance tells about the cluster: Kafka's brokers, the instances, and who coordinates."""

from __future__ import annotations

import json
import logging
from typing import Any

from kafka_coord.channel.messages import ClusterMetadata, Coordinator
from kafka_coord.errors import MalformedValue
from kafka_coord.model import CoordinatorInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, ReadResult, Store

log = logging.getLogger(__name__)


class MetadataDirectory:
    """Reads it at most once in ``age_s`` seconds, however many ask. One thread."""

    def __init__(self, store: Store, instance: int, age_s: float) -> None:
        self._store = store
        self._instance = instance
        self._age_s = age_s
        self._read_at = float("-inf")
        self._metadata: ClusterMetadata | None = None

    def forget(self) -> None:
        """Makes the next :meth:`look` read again."""
        self._read_at = float("-inf")

    def known_coordinator(self) -> Coordinator | None:
        """Who coordinated at the last look; asks nothing."""
        return self._metadata.coordinator if self._metadata is not None else None

    def look(self) -> ClusterMetadata:
        """Raises :class:`StoreUnavailable`."""
        now = self._store.clock.monotonic()
        if self._metadata is None or now - self._read_at >= self._age_s:
            self._metadata = self._read()
            self._read_at = now
        return self._metadata

    def _read(self) -> ClusterMetadata:
        brokers, instances, coordinator = self._store.read_many(
            [GetChildren(layout.BROKER_IDS), GetChildren(layout.COORDINATORS), GetData(layout.COORDINATOR)]
        )
        broker_ids, instance_ids = _numbers(brokers), _numbers(instances)
        nodes = self._store.read_many(
            [GetData(layout.broker(number)) for number in broker_ids]
            + [GetData(layout.instance(number)) for number in instance_ids]
        )
        values = {
            number: value
            for number, node in zip(broker_ids, nodes, strict=False)
            if (value := _broker(node)) is not None
        }
        return ClusterMetadata(
            instance=self._instance,
            brokers={number: _broker_endpoints(value) for number, value in values.items()},
            protocols={name: speaks for value in values.values() for name, speaks in _protocols(value).items()},
            instances=[
                endpoint
                for node in nodes[len(broker_ids) :]
                if (endpoint := _endpoints(node, layout.COORDINATORS).get("channel")) is not None
            ],
            coordinator=_coordinator(coordinator),
        )


def _numbers(listing: ReadResult) -> list[int]:
    names = listing if isinstance(listing, tuple) else ()
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10)


def _broker(node: ReadResult) -> dict[str, Any] | None:
    if not isinstance(node, Node):
        return None
    try:
        value = json.loads(node.data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _broker_endpoints(value: dict[str, Any]) -> tuple[str, ...]:
    """As in Kafka's registration, whatever its version; those of 0.8 name a host and a port only."""
    endpoints = value.get("endpoints")
    if isinstance(endpoints, list):
        return tuple(endpoint for endpoint in endpoints if isinstance(endpoint, str))
    host, port = value.get("host"), value.get("port")
    return (f"PLAINTEXT://{host}:{port}",) if isinstance(host, str) and isinstance(port, int) else ()


def _protocols(value: dict[str, Any]) -> dict[str, str]:
    found = value.get("listener_security_protocol_map")
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def _endpoints(node: ReadResult, where: str) -> dict[str, str]:
    if not isinstance(node, Node):
        return {}
    try:
        found = fields.mapping(fields.load(node.data, where), "endpoints", where, {})
    except MalformedValue:
        return {}
    return {name: endpoint for name, endpoint in found.items() if isinstance(endpoint, str)}


def _coordinator(node: ReadResult) -> Coordinator | None:
    if not isinstance(node, Node):
        return None
    try:
        info = CoordinatorInfo.from_json(fields.load(node.data, layout.COORDINATOR), layout.COORDINATOR)
    except MalformedValue as error:
        log.warning("cannot tell who coordinates: %s", error)
        return None
    return Coordinator(info.broker_id, info.epoch, info.endpoints.get("channel"))
