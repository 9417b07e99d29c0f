"""Checks a consumer's arguments before it connects to anything."""

from __future__ import annotations

import inspect
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, Unpack

from msgspec import structs

from kafka_coord import __version__
from kafka_coord.channel.operations import SessionHandle
from kafka_coord.consumer.record import K, V
from kafka_coord.errors import SettingsError
from kafka_coord.model import Member, Mode, Subscription, TopicPartition
from kafka_coord.model.member import MAX_GRACE_MS
from kafka_coord.model.names import generated, legal
from kafka_coord.model.partitions import MAX_STREAMS

if TYPE_CHECKING:
    import ssl

    from kafka_coord.consumer.troubles import TroubleCallback
    from kafka_coord.zk.options import ZkOptions
    from kafka_coord.zk.store import Store

PartitionCallback = Callable[[frozenset[TopicPartition]], Any]
ApplicationCallback = PartitionCallback | Callable[[Any, frozenset[TopicPartition]], Any]


class ConsumerOptions(TypedDict, Generic[K, V], total=False):
    """The arguments of a consumer, except ``zookeeper``. :class:`~kafka_coord.Consumer` describes them."""

    group: Required[str]
    topics: Iterable[str] | Mapping[str, int] | None
    include: str | None
    exclude: str | None
    consumer_id: str | None
    streams: int
    rejoin_grace_ms: int
    capacity: int
    rack: str | None
    assignor: str | None
    mode: str
    auto_commit_interval_ms: int | None
    auto_offset_reset: str
    auto_offset_reset_new_partitions: str
    kafka: Mapping[str, Any] | None
    listener: str | None
    stop_on_signals: bool
    key_deserializer: Callable[[bytes], K] | None
    value_deserializer: Callable[[bytes], V] | None
    on_assign: ApplicationCallback | None
    on_start: ApplicationCallback | None
    on_revoke: ApplicationCallback | None
    on_stop: ApplicationCallback | None
    on_lost: ApplicationCallback | None
    on_unresolved: TroubleCallback | None
    bootstrap: str | None
    tls: ssl.SSLContext | None
    secret: str | None
    store: Store | None
    zk_options: ZkOptions | None
    session_timeout_ms: int | None


class OffsetReset(StrEnum):
    EARLIEST = "earliest"
    """The oldest record in the log."""
    LATEST = "latest"
    """The end of the log, so that only records produced from now on are read."""
    ERROR = "error"
    """Nowhere: the application receives :class:`~kafka_coord.errors.NoOffset` (Kafka's ``none``)."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The group that a consumer joins, and the settings that it registers there."""

    group: str
    member: Member

    def registration_value(self, store: SessionHandle) -> bytes:
        """Returns the value of ``ids/<consumer>``. The session timeout and the time come from the store."""
        member = structs.replace(
            self.member,
            session_timeout_ms=store.session.timeout_ms,
            host=socket.gethostname(),
            client=f"kafka-coord-python/{__version__} pid={os.getpid()}",
            timestamp=str(int(store.clock.time() * 1000)),
            follows_root=True,
        )
        return member.to_bytes()


def generated_id(group: str) -> str:
    """Generates a name as in Kafka 0.8, ``<group>_<host>-<epoch ms>-<8 hex>``, but replaces illegal characters and
    shortens a name that is too long."""
    host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())
    tail = f"-{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}"
    return generated(f"{group}_{host}", tail)


def member_settings(**options: Unpack[ConsumerOptions[Any, Any]]) -> MemberSettings:
    """Checks the options of the membership and returns the settings.

    Raises :class:`SettingsError`, which names the option at fault.
    """
    group = legal("group", options["group"])
    streams = between("streams", options.get("streams", 1), 1, MAX_STREAMS)
    consumer_id = options.get("consumer_id")
    patterns = {"include": options.get("include"), "exclude": options.get("exclude")}
    member = Member(
        consumer=legal("consumer", consumer_id) if consumer_id is not None else generated_id(group),
        incarnation=0,
        subscription=subscription(options.get("topics"), patterns, streams),
        assignor=options.get("assignor"),
        capacity=between("capacity", options.get("capacity", 1), 1, 1_000_000),
        rack=options.get("rack"),
        mode=one_of("mode", options.get("mode", "incremental"), Mode),
        rejoin_grace_ms=between("rejoin_grace_ms", options.get("rejoin_grace_ms", 0), 0, MAX_GRACE_MS),
        process=secrets.token_hex(8),
    )
    return MemberSettings(group, member)


def subscription(
    topics: Iterable[str] | Mapping[str, int] | None, patterns: Mapping[str, str | None], streams: int
) -> Subscription:
    """Checks the topics or the pattern and returns the subscription. Raises :class:`SettingsError`."""
    given = [name for name, value in {"topics": topics, **patterns}.items() if value is not None]
    if len(given) != 1:
        raise SettingsError(f"give one of topics, include and exclude, not {' and '.join(given) or 'none'}")
    pattern = patterns.get(given[0])
    if pattern is not None:
        return Subscription.matching(pattern, exclude=given[0] == "exclude", streams=streams)
    if isinstance(topics, str):
        raise SettingsError(f"topics={topics!r} is one string; give a list, topics=[{topics!r}]")
    if pattern := next((name for name in topics or () if str(name).startswith("^")), None):
        raise SettingsError(f"{pattern!r} is a pattern, not a topic: use include={pattern[1:]!r} instead of topics")
    selected = Subscription.to(topics or (), streams)
    if not selected.topics:
        raise SettingsError("topics is empty; name at least one, or give include=PATTERN")
    for topic, count in selected.topics.items():
        between(f"topics[{topic!r}]", count, 1, MAX_STREAMS)
    return selected


def stream_count(subscription: Subscription) -> int:
    """Returns the number of streams that the consumer runs, which is the maximum over its topics."""
    return subscription.streams if subscription.is_wildcard else max(subscription.topics.values())


def between(name: str, value: object, low: int, high: int) -> int:
    """Returns ``value`` if it is an integer from ``low`` to ``high``. Otherwise, raises :class:`SettingsError`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingsError(f"{name} must be an integer from {low} to {high}, not {value!r}")
    return value


def one_of(name: str, value: str, choices: type[StrEnum]) -> Any:
    """Returns the member of ``choices`` whose value is ``value``. Raises :class:`SettingsError` if there is no such
    member."""
    try:
        return choices(value)
    except ValueError:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, not {value!r}") from None


@dataclass(frozen=True, slots=True)
class ReadingSettings:
    """How a consumer reads and commits. ``new_partitions`` says where a partition begins that came into being after the
    group's subscription first covered its topic. ``auto_commit_interval_s=None`` turns automatic commits off. ``kafka``
    holds all of librdkafka's settings."""

    reset: OffsetReset
    new_partitions: OffsetReset
    auto_commit_interval_s: float | None
    kafka: Mapping[str, Any]
    listener: str | None

    @property
    def security_protocol(self) -> str:
        """The security protocol of the connections to the brokers."""
        return str(self.kafka.get("security.protocol", "plaintext"))


def reading(properties: Mapping[str, Any], options: ConsumerOptions[Any, Any]) -> ReadingSettings:
    """Checks the options for reading and committing and returns them, with librdkafka's settings ``properties``. Raises
    :class:`SettingsError`, which names the option at fault."""
    interval_ms = options.get("auto_commit_interval_ms", 1_000) or 0
    between("auto_commit_interval_ms", interval_ms, 0, 24 * 3600 * 1000)
    reset = offset_reset(options.get("auto_offset_reset", "latest"))
    later = options.get("auto_offset_reset_new_partitions", "earliest")
    later = offset_reset(later, "auto_offset_reset_new_partitions")
    later = OffsetReset.ERROR if reset is OffsetReset.ERROR else later
    return ReadingSettings(reset, later, interval_ms / 1000 or None, properties, options.get("listener"))


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The application's callbacks for its partitions."""

    on_assign: PartitionCallback | None = None
    on_revoke: PartitionCallback | None = None
    on_lost: PartitionCallback | None = None

    @classmethod
    def of(cls, consumer: object, options: ConsumerOptions[Any, Any]) -> Callbacks:
        """Returns the callbacks among the options, under either of their names. Raises :class:`SettingsError` if one
        is given under both."""
        return cls(
            bound(_one_of(on_assign=options.get("on_assign"), on_start=options.get("on_start")), consumer),
            bound(_one_of(on_revoke=options.get("on_revoke"), on_stop=options.get("on_stop")), consumer),
            bound(options.get("on_lost"), consumer),
        )


def _one_of(**named: ApplicationCallback | None) -> ApplicationCallback | None:
    given = [name for name, callback in named.items() if callback is not None]
    if len(given) > 1:
        raise SettingsError(f"give {' or '.join(given)}, not both; they name the same callback")
    return named[given[0]] if given else None


def bound(callback: Any, consumer: object) -> PartitionCallback | None:
    """Binds the consumer as the first argument of a callback with two parameters. Returns any other callback, including
    ``None``, unchanged."""
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):  # None, or a C function without a signature
        return callback  # type: ignore[no-any-return]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in positional and one.default is one.empty]
    return partial(callback, consumer) if len(required) == 2 else callback


def offset_reset(value: str, name: str = "auto_offset_reset") -> OffsetReset:
    """Parses the option ``name``. Also accepts Kafka's ``none``, and 0.8's ``smallest`` and ``largest``."""
    spelled = {"smallest": "earliest", "largest": "latest", "none": "error"}.get(str(value), value)
    reset: OffsetReset = one_of(name, spelled, OffsetReset)
    return reset
