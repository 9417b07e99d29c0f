"""Translates confluent-kafka's settings into the arguments of this project's consumers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from kafka_coord.errors import SettingsError
from kafka_coord.settings import Settings

_KAFKA_SESSION_TIMEOUT_MS = 45_000

_UNSUPPORTED = {
    "enable.auto.offset.store": "use commit({partition: offset}) with 'enable.auto.commit': False",
    "enable.partition.eof": "the end of a partition is not a record; use lag() or end_offsets()",
    "max.poll.interval.ms": "processing a record may take up to the group's rebalance timeout, which an operator sets",
    "heartbeat.interval.ms": "session.timeout.ms is enough",
    "group.protocol": "the coordinator assigns the partitions of every group",
    "group.remote.assignor": "use partition.assignment.strategy",
    "error_cb": "calls raise errors that the application must see; others go to the logger kafka_coord.librdkafka",
    "on_commit": "use commit(asynchronous=True), which returns a future",
    "logger": "librdkafka's log goes to the logger kafka_coord.librdkafka",
    "default.topic.config": "put its settings directly into the configuration",
}
_HARMLESS = {"enable.auto.offset.store": True, "enable.partition.eof": False}
"""Values that are accepted because they describe what this project does anyway."""

_FREQUENT = (
    *("bootstrap.servers", "client.id", "client.rack", "group.id", "group.instance.id", "session.timeout.ms"),
    *("auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "partition.assignment.strategy"),
    *("isolation.level", "check.crcs", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username"),
    *("sasl.password", "sasl.kerberos.service.name", "sasl.oauthbearer.config", "ssl.ca.location", "ssl.key.location"),
    *("ssl.certificate.location", "ssl.key.password", "ssl.endpoint.identification.algorithm", "fetch.min.bytes"),
    *("fetch.max.bytes", "fetch.wait.max.ms", "fetch.message.max.bytes", "max.partition.fetch.bytes"),
    *("queued.min.messages", "queued.max.messages.kbytes", "receive.message.max.bytes", "metadata.max.age.ms"),
    *("socket.timeout.ms", "socket.keepalive.enable", "broker.address.family", "reconnect.backoff.ms", "debug"),
    *("reconnect.backoff.max.ms", "statistics.interval.ms", "stats_cb", "log_level", "allow.auto.create.topics"),
    *("key.deserializer", "value.deserializer", *_UNSUPPORTED),
)
"""Names to suggest when the user misspells one."""


def suggestion(name: str) -> str:
    """Returns `` (did you mean …?)`` if the name is close to an existing name, otherwise an empty string."""
    found = difflib.get_close_matches(name.lower().replace("_", "."), _FREQUENT, n=1, cutoff=0.75)
    return f" (did you mean {found[0]!r}?)" if found and found[0] != name else ""


def check_properties(settings: Settings) -> Settings:
    """Returns the settings. Raises :class:`SettingsError` if their ``kafka`` section has a property that librdkafka
    does not know, which names the property and its source. Otherwise, a misspelt property would be ignored by whatever
    reads only some of them, such as an instance's own connections to its broker."""
    for name in settings.kafka.properties:
        why = _unknown_to_librdkafka(name, settings.kafka.properties[name])
        if why:
            raise SettingsError(f"kafka.{name} from {settings.origin[f'kafka.{name}']} is invalid: {why}")
    return settings


_NOT_LIBRDKAFKAS = ("No such configuration property", "Java ", "Internal property", "Property ")
"""How librdkafka's messages about names begin, in contrast to those about values."""


def _unknown_to_librdkafka(name: str, value: str) -> str:
    """Returns why librdkafka does not accept a property of this name, or ""."""
    from kafka_coord.kafka.librdkafka import why_refused  # imported here, because few commands set a property

    try:
        why = why_refused({name: value})
    except (TypeError, ValueError, AttributeError):
        return "it takes a function, so it cannot be set here"
    return f"{why}{suggestion(name)}" if why.startswith(_NOT_LIBRDKAFKAS) else ""


def arguments_of(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Translates ``config`` into arguments for the consumer, and adds ``arguments``.

    Raises :class:`SettingsError` for a setting that this project does not support, or that is given twice. librdkafka
    rejects unknown names later, when the consumer is created.
    """
    translated: dict[str, Any] = {}
    kafka: dict[str, Any] = {}
    refused = [
        f"{name!r} is not supported here: {_UNSUPPORTED[name]}"
        for name, value in config.items()
        if name in _UNSUPPORTED and (name not in _HARMLESS or _HARMLESS[name] != _boolean(name, value))
    ]
    if refused:
        raise SettingsError("; ".join(refused))
    for name, value in config.items():
        if name in _ARGUMENTS:
            argument, read = _ARGUMENTS[name]
            translated[argument] = read(name, value)
        elif name != "enable.auto.commit" and name not in _UNSUPPORTED:
            kafka[name] = value
    if "client.rack" in kafka:
        translated["rack"] = kafka["client.rack"]
    if "consumer_id" in translated:  # Kafka keeps the place of a static member for its session timeout
        translated["rejoin_grace_ms"] = translated.get("session_timeout_ms", _KAFKA_SESSION_TIMEOUT_MS)
    if not _boolean("enable.auto.commit", config.get("enable.auto.commit", True)):
        translated["auto_commit_interval_ms"] = None
    if "group" not in translated and "group" not in arguments:
        near = difflib.get_close_matches("group.id", config, n=1)
        raise SettingsError(f"'group.id' is missing{f'; is {near[0]!r} a misspelling of it?' if near else ''}")
    if twice := sorted(translated.keys() & arguments.keys()):
        raise SettingsError(f"{twice[0]} is given both as an argument and in the configuration")
    return {**translated, **arguments, "kafka": {**kafka, **arguments.get("kafka", {})}}


def _as_given(_name: str, value: Any) -> Any:
    return value


def _boolean(name: str, value: Any) -> bool:
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise SettingsError(f"{name!r} must be True or False, not {value!r}")
    return found


def _number(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{name!r} must be an integer, not {value!r}") from None


def _reset(_name: str, value: Any) -> Any:
    return {"beginning": "earliest", "end": "latest"}.get(value, value)


def _assignor(name: str, value: Any) -> str:
    assignors = {"range": "range", "roundrobin": "roundrobin", "cooperative-sticky": "sticky"}
    first = str(value).split(",")[0].strip()
    if first not in assignors:
        raise SettingsError(
            f"{name!r} begins with {first!r}: use one of {', '.join(assignors)}, or leave it out and choose"
            " one of the coordinator's assignors with assignor=…"
        )
    return assignors[first]


_ARGUMENTS: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    "group.id": ("group", _as_given),
    "group.instance.id": ("consumer_id", _as_given),
    "session.timeout.ms": ("session_timeout_ms", _number),
    "auto.offset.reset": ("auto_offset_reset", _reset),
    "auto.commit.interval.ms": ("auto_commit_interval_ms", _number),
    "partition.assignment.strategy": ("assignor", _assignor),
    "key.deserializer": ("key_deserializer", _as_given),
    "value.deserializer": ("value_deserializer", _as_given),
}
