"""For people who come from confluent-kafka or kafka-python: translates confluent-kafka's settings into this project's
arguments, and says what a name or a call of theirs is here."""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from kafka_coord.consumer.record import Record
from kafka_coord.errors import SettingsError
from kafka_coord.model import TopicPartition
from kafka_coord.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")

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
    return _did_you_mean(name, _FREQUENT, name.lower().replace("_", "."))


def _did_you_mean(name: str, known: Iterable[str], spelled: str = "") -> str:
    found = difflib.get_close_matches(spelled or name, known, n=1, cutoff=0.75)
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


_ARGUMENTS_OF_CALLS = {
    "timeout": "use timeout_s",
    "timeout_ms": "use timeout_s, in seconds",
    "num_messages": "use max_records",
    "max_records": "use consume(max_records, timeout_s)",
    "message": "commit() commits every record that you have received",
    "callback": "use commit(asynchronous=True), which returns a future",
    "autocommit": "close() commits unless auto_commit_interval_ms=None",
    "on_assign": "give it to the consumer's constructor",
    "on_revoke": "give it to the consumer's constructor",
    "on_lost": "give it to the consumer's constructor",
    "listener": "give on_assign and on_revoke to the consumer's constructor",
    "pattern": "use include",
    "timestamps": "use times",
}
_CALLS = {
    "__init__": "Consumer('zk1:2181', group='delays', topics=['flights'])",
    "from_config": "Consumer.from_config(config, zookeeper='zk1:2181', topics=['flights'])",
    "subscribe": "subscribe(['flights']), or subscribe(include='flights-.*')",
    "seek": "seek(('flights', 3), 17), or 'earliest', 'latest' or a datetime in place of 17",
    "position": "position(('flights', 3))",
    "offsets_for_times": "offsets_for_times({('flights', 3): time})",
    "commit": "commit(), or commit({('flights', 3): 17})",
    "lag": "lag()",
    "close": "close(timeout_s=10)",
    "consumer": "consumer(group='delays', topics=['flights'])",
    "async_consumer": "async_consumer(group='delays', topics=['flights'])",
}
"""How the calls are written whose arguments differ from those of other clients."""
_PARTITIONS = "{}([('flights', 3)])"
_NO_ASSIGNING = "the coordinator assigns partitions; to choose them yourself, keep your Kafka client"
_NO_LISTING = "a consumer lists no topics; use your Kafka client's AdminClient"
_NO_TRANSACTIONS = "for transactions, keep your Kafka client"
_METHODS = {
    **dict.fromkeys(("assign", "incremental_assign", "incremental_unassign", "unassign"), _NO_ASSIGNING),
    **dict.fromkeys(("list_topics", "topics", "partitions_for_topic"), _NO_LISTING),
    **dict.fromkeys(("consumer_group_metadata", "groupMetadata"), _NO_TRANSACTIONS),
    **dict.fromkeys(("commit_async", "commitAsync"), "use commit(asynchronous=True), which returns a future"),
    **dict.fromkeys(("commit_sync", "commitSync"), "use commit()"),
    **dict.fromkeys(("memberid", "member_id"), "use consumer_id"),
    **dict.fromkeys(("highwater", "last_stable_offset"), "use end_offsets([partition])"),
    "unsubscribe": "close the consumer instead",
    "store_offsets": "use commit({('flights', 3): offset + 1})",
    "get_watermark_offsets": "use beginning_offsets([partition]) and end_offsets([partition])",
    "seek_to_beginning": "use seek(partition, 'earliest')",
    "seek_to_end": "use seek(partition, 'latest')",
    "getone": "use poll(timeout_s)",
    "getmany": "use consume(max_records, timeout_s)",
    "metrics": "use stats",
    "paused": "remember what you pause; nothing else pauses a partition",
    "wakeup": "use stop()",
    "start": "the constructor joins the group; an AsyncConsumer joins in async with",
}
"""What to use in place of methods that consumers of other libraries have."""
_ARGUMENTS_ELSEWHERE = {
    "bootstrap_servers": "give zookeeper='…', the brokers' zookeeper.connect, or bootstrap='…', the instances' port",
    "enable_auto_commit": "auto_commit_interval_ms=None turns automatic commits off",
    "consumer_timeout_ms": "use poll(timeout_s), or stop()",
    "max_poll_records": "use consume(max_records, timeout_s)",
    "topic": "use topics=[…]",
    "pattern": "use include",
    "config": "use Consumer.from_config(config, …)",
}


def wrong_arguments(given: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns a sentence for each argument of a consumer that does not exist, which says what to use."""
    names = list(known)
    return [f"there is no argument {name!r}{_argument_meant(name, names)}" for name in given if name not in names]


def _argument_meant(name: str, known: list[str]) -> str:
    dotted = name.replace("_", ".")
    if meant := _ARGUMENTS_ELSEWHERE.get(name) or _UNSUPPORTED.get(dotted):
        return f": {meant}"
    if dotted in _ARGUMENTS:
        return f": use {_ARGUMENTS[dotted][0]}"
    if dotted in _FREQUENT:
        return f": use kafka={{{dotted!r}: …}}"
    return _did_you_mean(name, known)


def check_call(call: str, other: Mapping[str, object]) -> None:
    """Raises :class:`SettingsError` for arguments that the method does not have, and says what to use."""
    if other:
        wrong = (f"no argument {name!r}: {_ARGUMENTS_OF_CALLS.get(name, 'see help(Consumer)')}" for name in other)
        raise SettingsError(f"{call}() has {'; '.join(wrong)}")


def explained(method: Callable[P, R]) -> Callable[P, R]:
    """Decorates a method so that a call with arguments that it does not have raises a :class:`SettingsError`, which
    says how to call it."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:  # not of this call
                raise
            meant = _CALLS.get(method.__name__, _PARTITIONS.format(method.__name__))
            check_call(method.__name__, {name: None for name in kwargs if name in _ARGUMENTS_OF_CALLS})
            raise SettingsError(f"write {meant}: {str(error).rpartition('.')[2]}") from None

    return call


def lacking(consumer: object, name: str) -> AttributeError:
    """Returns the error for an attribute that a consumer does not have. It says what to use instead of a method that
    consumers of other libraries have."""
    meant = f": {_METHODS[name]}" if name in _METHODS else ""
    return AttributeError(f"a consumer has no {name!r}{meant}", name=name, obj=consumer)


def check_offsets(offsets: object) -> None:
    """Raises :class:`SettingsError` for what is not a mapping of partitions to offsets."""
    if isinstance(offsets, Mapping):
        return
    upto = offsets if isinstance(offsets, Record) else None
    example = f"{{({upto.topic!r}, {upto.partition}): {upto.offset + 1}}}" if upto else "{('flights', 3): 17}"
    raise SettingsError(
        f"commit() commits every record that you have received; to commit only some, give the offset of the next record"
        f" to read: commit({example}), not commit({type(offsets).__name__})"
    )


def partition_of(given: object) -> TopicPartition:
    """Returns the partition. Raises :class:`SettingsError` for what is not a pair of a topic and a number."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], int):
        return TopicPartition(*given)
    raise SettingsError(f"a partition is a topic and a number, such as ('flights', 3), not {given!r}")


def partitions_of(given: object) -> list[TopicPartition]:
    """Returns the partitions. Raises :class:`SettingsError` for what is not a list of partitions."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        raise SettingsError(f"give a list of partitions: [{tuple(given)!r}], not {tuple(given)!r}")
    if not isinstance(given, Iterable):
        raise SettingsError(f"give a list of partitions, such as [('flights', 3)], not {given!r}")
    return [partition_of(one) for one in given]


_CALLED = re.compile(r"\.(topic|partition|offset|key|value|headers)\(\)")
_NOT_CALLABLE = re.compile(r"'[\w.]+' object is not callable")


def remark_on(error: BaseException | None) -> str:
    """Returns what an application meant that calls a record's attributes as methods, as confluent-kafka's messages have
    them, and that has failed with ``error``, otherwise an empty string."""
    if isinstance(error, TypeError) and _NOT_CALLABLE.fullmatch(str(error)):
        line = traceback.extract_tb(error.__traceback__)[-1].line
        called = _CALLED.search(line or "")
        if called or (not line and "bytes" in str(error)):
            name = called[1] if called else "value"
            return f"a record's attributes are not methods: use record.{name}, not record.{name}()"
    return ""


def note_mistake() -> None:
    """Adds :func:`remark_on` to the exception that the caller is handling, if any."""
    error = sys.exception()
    remark = remark_on(error)
    if error is not None and remark and remark not in getattr(error, "__notes__", ()):
        error.add_note(remark)


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


def refused_properties(properties: Mapping[str, Any]) -> list[str]:
    """Returns why librdkafka does not accept each of the properties that it refuses."""
    from kafka_coord.kafka.librdkafka import why_refused

    refused = []
    for name, value in properties.items():
        try:
            if why := why_refused({name: value}):
                refused.append(f"{why}{suggestion(name) if why.startswith(_NOT_LIBRDKAFKAS) else ''}")
        except (TypeError, ValueError, AttributeError) as error:
            refused.append(f"{name!r}: {error}")
    return refused


def arguments_of(config: Mapping[str, Any], arguments: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Translates ``config`` into arguments for the consumer, and adds ``arguments``, which must be ``known``.

    Raises :class:`SettingsError`, which lists all settings that do not exist, that this project does not support or
    that have an invalid value, or names one that is given twice.
    """
    translated: dict[str, Any] = {}
    kafka: dict[str, Any] = {}
    wrong: list[str] = []
    commits = True
    for name, value in config.items():
        try:
            if name in _UNSUPPORTED:
                _check_harmless(name, value)
            elif name in _ARGUMENTS:
                argument, read = _ARGUMENTS[name]
                translated[argument] = read(name, value)
            elif name == "enable.auto.commit":
                commits = _boolean(name, value)
            else:
                kafka[name] = value
        except SettingsError as error:
            wrong.append(str(error))
    wrong += refused_properties(kafka) + wrong_arguments(arguments, known)
    if "group" not in translated and "group" not in arguments:
        wrong.insert(0, "'group.id' is missing")
    if wrong:
        raise SettingsError("; ".join(wrong))
    if "client.rack" in kafka:
        translated["rack"] = kafka["client.rack"]
    if "consumer_id" in translated:  # Kafka keeps the place of a static member for its session timeout
        translated["rejoin_grace_ms"] = translated.get("session_timeout_ms", _KAFKA_SESSION_TIMEOUT_MS)
    if not commits:
        translated["auto_commit_interval_ms"] = None
    if twice := sorted(translated.keys() & arguments.keys()):
        raise SettingsError(f"{twice[0]} is given both as an argument and in the configuration")
    return {**translated, **arguments, "kafka": {**kafka, **arguments.get("kafka", {})}}


def _check_harmless(name: str, value: Any) -> None:
    if name not in _HARMLESS or _HARMLESS[name] != _boolean(name, value):
        raise SettingsError(f"{name!r} is not supported here: {_UNSUPPORTED[name]}")


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
