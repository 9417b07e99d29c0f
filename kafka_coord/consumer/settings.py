"""Checks a consumer's arguments before it connects to anything."""

from __future__ import annotations

import inspect
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from kafka_coord.channel.interface import SessionHandle
from kafka_coord.errors import SettingsError
from kafka_coord.model import Member, Mode, Subscription, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.member import MAX_GRACE_MS
from kafka_coord.model.names import generated, legal
from kafka_coord.model.streams import MAX_STREAMS
from kafka_coord.version import __version__


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
        member = replace(
            self.member,
            session_timeout_ms=store.session.timeout_ms,
            host=socket.gethostname(),
            client=f"kafka-coord-python/{__version__} pid={os.getpid()}",
            timestamp=str(int(store.clock.time() * 1000)),
        )
        return fields.dump(member.to_json())


def generated_id(group: str) -> str:
    """Generates a name as in Kafka 0.8, ``<group>_<host>-<epoch ms>-<8 hex>``, but replaces illegal characters and
    shortens a name that is too long."""
    host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())
    tail = f"-{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}"
    return generated(f"{group}_{host}", tail)


def member_settings(
    *,
    group: str,
    topics: Iterable[str] | Mapping[str, int] | None = None,
    include: str | None = None,
    exclude: str | None = None,
    consumer_id: str | None = None,
    streams: int = 1,
    assignor: str | None = None,
    capacity: int = 1,
    rack: str | None = None,
    mode: str = "incremental",
    rejoin_grace_ms: int = 0,
) -> MemberSettings:
    """Checks the arguments and returns the settings.

    Raises :class:`SettingsError`, which names the argument at fault.
    """
    legal("group", group)
    between("streams", streams, 1, MAX_STREAMS)
    between("capacity", capacity, 1, 1_000_000)
    between("rejoin_grace_ms", rejoin_grace_ms, 0, MAX_GRACE_MS)
    patterns = {"include": include, "exclude": exclude}
    member = Member(
        consumer=legal("consumer", consumer_id) if consumer_id is not None else generated_id(group),
        incarnation=0,
        subscription=subscription(topics, patterns, streams),
        assignor=assignor,
        capacity=capacity,
        rack=rack,
        mode=one_of("mode", mode, Mode),
        rejoin_grace_ms=rejoin_grace_ms,
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


def reading(
    kafka: Mapping[str, Any],
    *,
    auto_offset_reset: str,
    auto_offset_reset_new_partitions: str,
    auto_commit_interval_ms: int | None,
    listener: str | None,
) -> ReadingSettings:
    """Checks the arguments for reading and committing and returns them as a :class:`ReadingSettings`. Raises
    :class:`SettingsError`, which names the argument at fault."""
    interval_ms = between("auto_commit_interval_ms", auto_commit_interval_ms or 0, 0, 24 * 3600 * 1000)
    reset = offset_reset(auto_offset_reset)
    later = offset_reset(auto_offset_reset_new_partitions, "auto_offset_reset_new_partitions")
    later = OffsetReset.ERROR if reset is OffsetReset.ERROR else later
    return ReadingSettings(reset, later, interval_ms / 1000 or None, kafka, listener)


PartitionCallback = Callable[[frozenset[TopicPartition]], Any]
ApplicationCallback = PartitionCallback | Callable[[Any, frozenset[TopicPartition]], Any]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The application's callbacks for its partitions."""

    on_assign: PartitionCallback | None = None
    on_revoke: PartitionCallback | None = None
    on_lost: PartitionCallback | None = None


def one_given(**named: ApplicationCallback | None) -> ApplicationCallback | None:
    """Returns the callback, whichever of its names it is given under. Raises :class:`SettingsError` if it is given
    under several."""
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
