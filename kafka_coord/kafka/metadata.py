"""Asks brokers for the metadata that the mirror takes: all of it, some topics, or topics by id (ADR 56)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kafka_coord.errors import BrokerError, SettingsError
from kafka_coord.kafka.authentication import MECHANISMS, broker_security, knows_all
from kafka_coord.kafka.cluster import Address, ClusterClient
from kafka_coord.kafka.connection import BrokerConnection, RightMissing, failure, only
from kafka_coord.model import Broker, topic_id_from_bytes, topic_id_to_bytes
from kafka_coord.model.broker import UNKNOWN_ID, UNKNOWN_TOPIC, AnsweredTopic, BrokerAnswer, NamedBroker
from kafka_coord.settings import host_and_port
from kafka_coord.wire.frames import answer_start
from kafka_coord.wire.messages import Decode, message

_METADATA = 1, 12
_NO_TOPIC_IDS, _BY_ID, _CREATES, _UNTHROTTLED = 9, 12, 3, 2
"""The last version of Metadata without topic ids (before Kafka 2.8), the first in which brokers look topics up by id
(Kafka 3.1), the last in which a request that names a topic may create it, and the last without a throttle time."""
ANSWER_S, TURN_S = 5.0, 1.0
"""How long to wait for an answer, and for that of the broker whose turn it is, in seconds."""
_DESCRIBE_CONFIGS, _OF_BROKER = (0, 1), 4
_LISTENERS = "advertised.listeners", "listeners"
_PROTOCOLS, _CONTROLLERS = "listener.security.protocol.map", "controller.listener.names"
"""The settings that tell what a broker advertises; the second where the first is not set, but for the controllers'."""
_NO_ID = bytes(16)
_ERROR_BYTES = 2


def bootstraps(written: str) -> dict[str, list[Address]]:
    """Parses ``--bootstrap``: addresses, each perhaps after the name of its listener and ``=``. Addresses without one
    belong to the name before them, or to none. Raises :class:`SettingsError`."""
    found: dict[str, list[Address]] = {}
    listener = ""
    for part in written.split(","):
        name, equals, address = part.strip().rpartition("=")
        listener = name if equals else listener
        try:
            found.setdefault(listener, []).append(host_and_port(address))
        except ValueError as error:
            raise SettingsError(f"serve.bootstrap: {error}; expected [LISTENER=]HOST:PORT[,HOST:PORT…]") from None
    return found


class MetadataAsker:
    """Asks the brokers of one cluster. Not thread-safe. ``properties`` are librdkafka's; raises :class:`SettingsError`
    for those that only librdkafka knows."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        if not knows_all(properties):
            raise SettingsError(
                "serve.metadata: brokers are asked for metadata with security.protocol PLAINTEXT, SSL, SASL_PLAINTEXT"
                f" or SASL_SSL, and with sasl.mechanism {', '.join(MECHANISMS)}; the kafka section has other settings"
            )
        self.protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        self._security = broker_security(properties)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._clients: dict[str, ClusterClient] = {}
        self._addresses: dict[str, tuple[Address, ...]] = {}
        self._turn = 0
        self._last: dict[BrokerConnection, tuple[bytes, BrokerAnswer]] = {}
        """The last listing of each broker."""
        self._topics = _KnownTopics()
        self.unheard: Mapping[int, str] = {}
        """Which of the brokers that were last asked for their settings did not answer, and why."""

    def close(self) -> None:
        async def end() -> None:
            for client in self._clients.values():
                client.close()
            await asyncio.sleep(0)

        self._runner.run(end())
        self._runner.close()

    def listing(self, listener: str, addresses: Sequence[Address], names: Iterable[str] | None) -> BrokerAnswer:
        """Returns what the first broker that answers at ``addresses`` tells of the topics, or of all of them. Raises
        :class:`BrokerError`."""
        wanted = None if names is None else tuple(names)
        return self._runner.run(self._listing(listener, tuple(addresses), wanted))

    async def _listing(
        self, listener: str, addresses: tuple[Address, ...], names: tuple[str, ...] | None
    ) -> BrokerAnswer:
        client = self._clients.get(listener)
        if client is None or self._addresses[listener] != addresses:
            if client is not None:
                client.close()
                self._last.clear()
            client = self._clients[listener] = ClusterClient(addresses, self._security)
            self._addresses[listener] = addresses
        await asyncio.sleep(0)  # the loop stood still: it may hear only now that a broker has hung up
        if names is None:  # each broker in turn, because one that is cut off from the others tells what once was
            self._turn += 1
            with suppress(BrokerError):
                return await self._ask(client.to(addresses[self._turn % len(addresses)]), listener, names, TURN_S)

        async def ask(broker: BrokerConnection) -> BrokerAnswer:
            return await self._ask(broker, listener, names, ANSWER_S)

        return await client.with_any(ask)

    async def _ask(
        self,
        broker: BrokerConnection,
        listener: str,
        names: tuple[str, ...] | None,
        timeout_s: float,
        ids: Mapping[str, str] | None = None,
    ) -> BrokerAnswer:
        """Asks for the topics, or for all of them. With ``ids``, which maps them to names, asks for these instead, by
        id if the broker can."""
        version = await broker.newest_version("Metadata", _METADATA, timeout_s)
        form = message("MetadataRequest")
        topic = form.struct("MetadataRequestTopic")
        topics = None if names is None or version <= _CREATES else tuple(topic(name=name) for name in names)
        is_by_id = ids is not None and version >= _BY_ID
        if ids is not None and is_by_id:
            topics = tuple(topic(topic_id=topic_id_to_bytes(one), name=None) for one in ids)
        request = form(topics=topics, **({} if version <= _CREATES else {"allow_auto_topic_creation": False}))
        is_listing = names is None
        decode = (
            partial(self._unless_known, broker, listener) if is_listing else partial(self._decode, broker, listener)
        )
        found: BrokerAnswer = await broker.ask("Metadata", version, request, timeout_s, decode=decode)
        return found if ids is None else _about_ids(found, ids, is_by_id=is_by_id)

    def _unless_known(self, broker: BrokerConnection, listener: str, frame: bytes, version: int) -> BrokerAnswer:
        """Decodes a listing, unless it is the same as the broker's last one, whose value it returns."""
        throttle_bytes = 4 if version > _UNTHROTTLED else 0
        start = answer_start(message("MetadataResponse"), version) + throttle_bytes
        digest = hashlib.blake2b(memoryview(frame)[start:], digest_size=16).digest()
        known = self._last.get(broker)
        if known is None or known[0] != digest:
            known = self._last[broker] = digest, self._decode(broker, listener, frame, version, is_whole=True)
        return known[1]

    def _decode(
        self, broker: BrokerConnection, listener: str, frame: bytes, version: int, *, is_whole: bool = False
    ) -> BrokerAnswer:
        answer = self._topics.decode(frame, version, is_whole=is_whole)
        brokers = {one.node_id: NamedBroker(one.host, one.port, one.rack) for one in answer.brokers}
        tellers = [one for one, named in brokers.items() if (named.host, named.port) == (broker.host, broker.port)]
        return BrokerAnswer(
            tellers[0] if tellers else None,
            brokers,
            answer.topics,
            is_whole,
            listener=listener,
            cluster_id=getattr(answer, "cluster_id", None),
            has_ids=version > _NO_TOPIC_IDS,
        )

    def by_id(
        self, wanted: Mapping[str, str], witnesses: Mapping[str, str], answer: BrokerAnswer
    ) -> list[BrokerAnswer]:
        """Asks every broker that ``answer`` names for the topics in ``wanted`` and for ``witnesses``, by id, or by name
        before Kafka 3.1. Both map ids to names. Leaves out the brokers that do not answer."""
        return self._runner.run(self._by_id(wanted, witnesses, answer))

    async def _by_id(
        self, wanted: Mapping[str, str], witnesses: Mapping[str, str], answer: BrokerAnswer
    ) -> list[BrokerAnswer]:
        ids = {**witnesses, **wanted}
        names = tuple(dict.fromkeys(ids.values()))
        named_brokers = self._named_in(answer).values()
        asked = [self._ask(broker, answer.listener, names, ANSWER_S, ids) for broker in named_brokers]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [one for one in found if isinstance(one, BrokerAnswer)]

    def _named_in(self, answer: BrokerAnswer) -> dict[int, BrokerConnection]:
        client = self._clients[answer.listener if answer.listener in self._clients else ""]
        return {number: client.to((broker.host, broker.port)) for number, broker in answer.brokers.items()}

    def described(self, answer: BrokerAnswer) -> list[Broker]:
        """Asks every broker that ``answer`` names for the addresses that it advertises, on all of its listeners. Leaves
        out the brokers that do not answer, that refuse (it needs DESCRIBE_CONFIGS on the cluster), or whose settings
        cannot be read."""
        return self._runner.run(self._described(answer))

    async def _described(self, answer: BrokerAnswer) -> list[Broker]:
        named = self._named_in(answer)
        asked = [_settings_of(broker, number, answer.brokers[number].host) for number, broker in named.items()]
        found = await asyncio.gather(*asked, return_exceptions=True)
        self.unheard = {
            number: str(one)
            for number, one in zip(named, found, strict=True)
            if isinstance(one, BrokerError) and not isinstance(one, RightMissing)
        }
        return [one for one in found if isinstance(one, Broker)]


async def _settings_of(broker: BrokerConnection, number: int, host: str) -> Broker:
    """Returns the broker as its settings describe it. ``host`` is what it advertises where no setting says."""
    form = message("DescribeConfigsRequest")
    resource = form.struct("DescribeConfigsResource")(
        resource_type=_OF_BROKER, resource_name=str(number), configuration_keys=(*_LISTENERS, _PROTOCOLS, _CONTROLLERS)
    )
    answer = await broker.ask("DescribeConfigs", _DESCRIBE_CONFIGS, form(resources=(resource,)), TURN_S)
    result = only(answer.results, "results")
    if result.error_code:
        raise failure(f"broker {number} does not tell its settings", result.error_code)
    told = {one.name: one.value or "" for one in result.configs}
    advertised = next((told[one] for one in _LISTENERS if told.get(one)), "")
    of_controllers = {one.strip() for one in told.get(_CONTROLLERS, "").split(",")}
    endpoints = [one.strip().replace("://:", f"://{host}:") for one in advertised.split(",")]
    protocols = dict(one.strip().split(":", 1) for one in told.get(_PROTOCOLS, "").split(",") if ":" in one)
    value = {
        "endpoints": [one for one in endpoints if one.partition("://")[0] not in of_controllers],
        "listener_security_protocol_map": protocols,
    }
    return Broker.from_json(value, number, f"the settings of broker {number}")


def _about_ids(answer: BrokerAnswer, ids: Mapping[str, str], *, is_by_id: bool) -> BrokerAnswer:
    """Returns the answer with which of the ids it knows. One that was asked by name does not know an id if it has
    another topic of that name."""
    told = {one.topic_id for one in answer.topics if not one.error}
    if is_by_id:
        unknown = {one.topic_id for one in answer.topics if one.error in {UNKNOWN_ID, UNKNOWN_TOPIC}} & ids.keys()
    else:
        has = {one.name: one.topic_id for one in answer.topics if not one.error}
        missing = {one.name for one in answer.topics if one.error == UNKNOWN_TOPIC}
        unknown = {one for one, name in ids.items() if name in missing or has.get(name, one) != one}
    return replace(answer, known=frozenset(told & ids.keys()), unknown=frozenset(unknown))


class _KnownTopics:
    """Decodes responses to Metadata, with :class:`AnsweredTopic` as topics. In a listing, a topic whose bytes have not
    changed is not decoded again: 10,000 topics would take half a second."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, AnsweredTopic]] = {}
        self._seen: dict[bytes, tuple[bytes, AnsweredTopic]] = {}
        self._decoders: dict[int, Decode] = {}

    def decode(self, frame: bytes, version: int, *, is_whole: bool) -> Any:
        """Returns the response to a request for all topics, if it ``is_whole``, or for some."""
        form = message("MetadataResponse")
        decode = self._decoders.get(version)
        if decode is None:
            wrap = partial(self._remembering, has_ids=version > _NO_TOPIC_IDS)
            decode = self._decoders[version] = form.decoder(version, {"MetadataResponseTopic": wrap})
        self._seen = {}
        answer, _ = decode(frame, answer_start(form, version))
        if is_whole:
            self._known = self._seen
        return answer

    def _remembering(self, read: Decode, *, has_ids: bool) -> Decode:
        def decode(data: bytes, at: int) -> tuple[AnsweredTopic, int]:
            length = at + _ERROR_BYTES  # of the name, which is the key
            key = data[length : length + 1 + data[length]]
            known = self._known.get(key)
            if known is None or not data.startswith(known[0], at):
                topic, end = read(data, at)
                known = data[at:end], _answered(topic, has_ids=has_ids)
            self._seen[key] = known
            return known[1], at + len(known[0])

        return decode


def _answered(topic: Any, *, has_ids: bool) -> AnsweredTopic:
    return AnsweredTopic(
        topic.name or "",
        topic_id_from_bytes(topic.topic_id) if has_ids and topic.topic_id != _NO_ID else "",
        {part.partition_index: tuple(part.replica_nodes) for part in topic.partitions},
        {part.partition_index: (part.leader_id, part.leader_epoch) for part in topic.partitions},
        topic.error_code,
    )
