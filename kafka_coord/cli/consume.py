"""``kafka-coord consume``: runs a console consumer as a member of a group."""

from __future__ import annotations

import json
import ssl
import string
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from kafka_coord.cli.connection import connection_options, current_settings
from kafka_coord.cli.failures import Stopping, stopping_at_signals
from kafka_coord.cli.options import CONSUMER, GROUP, TOPIC
from kafka_coord.cli.output import note, warnings_shown
from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.groups.group import iso_time
from kafka_coord.model import TopicPartition
from kafka_coord.zk import zookeeper_options

if TYPE_CHECKING:
    from kafka_coord.consumer.consumer import Consumer
    from kafka_coord.consumer.record import Record
    from kafka_coord.settings import Settings, SocketSettings

Formatter = Callable[["Record"], str]

_FIELDS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
_PRESETS = {
    "value": "{value}",
    "key-value": "{key}\\t{value}",
    "full": "{timestamp}\\t{topic}-{partition}@{offset}\\t{key}\\t{value}",
}
_BATCH = 500
_WAIT_S = 0.2
_RATE_EVERY_S = 1.0
_NOTE_EVERY_S = 5.0


@click.command()
@click.option("--group", type=GROUP, required=True, help="The group to join.")
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="A topic to subscribe to; repeatable.")
@click.option("--include", metavar="REGEX", help="Subscribe to every topic whose full name matches (RE2).")
@click.option("--exclude", metavar="REGEX", help="Subscribe to every topic whose full name does not match (RE2).")
@click.option(
    "--consumer-id", type=CONSUMER, default=None, help="The consumer's name in the group. [default: generated]"
)
@click.option(
    "--from-beginning", is_flag=True, help="Start at the first record of each partition without a committed offset."
)
@click.option("--max-messages", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@click.option(
    "--idle-exit",
    "idle_s",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Stop after SECONDS without records. Only time as a member counts.",
)
@click.option(
    "--formatter",
    default="value",
    show_default=True,
    metavar="FORMAT",
    help="How to print a record: value, key-value, full, json, or a template with {topic} {partition} {offset} {key} "
    "{value} {timestamp}.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print the number of records once a second instead of the records.")
@click.option(
    "--rejoin-grace-ms",
    type=click.IntRange(0),
    default=0,
    metavar="MS",
    help="How long the coordinator reserves the consumer's partitions after it disappears.",
)
@click.option(
    "--capacity",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="The consumer's weight for the assignor 'weighted'.",
)
@click.option(
    "--bootstrap",
    metavar="HOST:PORT,…",
    help="Join over a socket instead of ZooKeeper, through the instances that serve consumers at these addresses "
    "(serve --listen-channel).",
)
@connection_options
def consume(
    group: str,
    topics: tuple[str, ...],
    include: str | None,
    exclude: str | None,
    consumer_id: str | None,
    from_beginning: bool,
    max_messages: int | None,
    idle_s: float | None,
    formatter: str,
    quiet: bool,
    rejoin_grace_ms: int,
    capacity: int,
    bootstrap: str | None,
) -> int:
    """Consume as a member of a group and print the records, until Ctrl-C. Needs an elected coordinator.

    The command commits exactly the records that it printed, so the next run continues after the last one.

    \b
    kafka-coord consume --group delays --topic flights --from-beginning
    kafka-coord consume --group delays --include 'fl.*' --formatter '{partition}@{offset} {key}'
    kafka-coord consume --group delays --topic flights --quiet --idle-exit 10
    kafka-coord consume --group delays --topic flights --bootstrap broker1:7171,broker2:7171
    """
    subscription: dict[str, Any] = {"topics": list(topics) or None, "include": include, "exclude": exclude}
    if sum(value is not None for value in subscription.values()) != 1:
        raise SettingsError("give one of --topic, --include, --exclude (--topic may be repeated)")
    printing = _Printing(group, make_formatter(formatter), quiet=quiet, max_messages=max_messages, idle_s=idle_s)
    settings = current_settings(socket__bootstrap=bootstrap)
    with stopping_at_signals() as stopping, warnings_shown():
        consumer = _open(
            settings,
            group=group,
            consumer_id=consumer_id,
            auto_offset_reset="earliest" if from_beginning else "latest",
            rejoin_grace_ms=rejoin_grace_ms,
            capacity=capacity,
            **subscription,
        )
        try:
            printing.run(consumer, stopping)
        finally:
            try:
                printing.commit(consumer)
            finally:
                consumer.close()
    printing.report()
    return stopping.exit_code


def _open(settings: Settings, **arguments: Any) -> Consumer:
    from kafka_coord.consumer.consumer import Consumer

    arguments["kafka"] = dict(settings.kafka.properties)
    over, zookeeper = settings.socket, settings.zookeeper
    if over.bootstrap is not None:
        return Consumer(
            bootstrap=over.bootstrap,
            session_timeout_ms=over.session_timeout_ms,
            tls=_tls(over),
            secret=over.secret.reveal() if over.secret is not None else None,
            **arguments,
        )
    return Consumer(
        zookeeper.hosts,
        session_timeout_ms=zookeeper.session_timeout_ms,
        zk_options=zookeeper_options(zookeeper),
        **arguments,
    )


def _tls(over: SocketSettings) -> ssl.SSLContext | None:
    if not over.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=over.tls_ca_file)
        if over.tls_cert_file is not None:
            context.load_cert_chain(over.tls_cert_file, over.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cannot load the TLS files in socket.tls_…: {error}") from None
    return context


@dataclass(slots=True)
class _Printing:
    """Prints and counts records. ``printed`` maps each partition of the current batch to the offset after its last
    printed record. It is empty once these records count as consumed."""

    group: str
    formatter: Formatter
    quiet: bool
    max_messages: int | None
    idle_s: float | None
    count: int = 0
    has_owned: bool = False
    """Whether the consumer has ever owned a partition."""
    began: float = field(default_factory=time.monotonic)
    printed: dict[TopicPartition, int] = field(default_factory=dict)

    def run(self, consumer: Consumer, stopping: Stopping) -> None:
        last_record = last_rate = last_note = time.monotonic()
        counted = 0
        while not stopping.requested() and (self.max_messages is None or self.count < self.max_messages):
            left = _BATCH if self.max_messages is None else min(_BATCH, self.max_messages - self.count)
            batch = consumer.consume(left, _WAIT_S)
            self.printed.clear()  # consume() has marked these records as consumed
            now = time.monotonic()
            self.has_owned = self.has_owned or bool(consumer.assignment())
            if self.has_owned or not consumer.registered:
                last_note = now
            elif not self.quiet and now - last_note >= _NOTE_EVERY_S:
                note(f"no partitions yet{self._reason}")
                last_note = now
            if batch or not consumer.registered:  # a consumer that is joining or has lost ZooKeeper is not idle
                last_record = now
            elif self.idle_s is not None and now - last_record >= self.idle_s:
                return
            for record in batch:
                if stopping.requested():
                    return
                if not self.quiet:
                    sys.stdout.write(self.formatter(record) + "\n")
                self.count += 1
                self.printed[TopicPartition(record.topic, record.partition)] = record.offset + 1
            sys.stdout.flush()
            if self.quiet and now - last_rate >= _RATE_EVERY_S:
                note(f"{self.count:,} records, {(self.count - counted) / (now - last_rate):,.0f}/s, {_held(consumer)}")
                last_rate, counted = now, self.count

    def commit(self, consumer: Consumer) -> None:
        """Commits the printed records of the last batch, except in partitions that have since moved away."""
        held = consumer.assignment() if self.printed else frozenset()
        offsets: dict[TopicPartition | tuple[str, int], int] = {tp: o for tp, o in self.printed.items() if tp in held}
        if offsets:
            consumer.commit(offsets)

    def report(self) -> None:
        seconds = time.monotonic() - self.began
        note(f"{self.count:,} records in {seconds:.1f} s{'' if self.has_owned else self._reason}")

    @property
    def _reason(self) -> str:
        return f"; to see why, run: kafka-coord groups describe {self.group}"


def _held(consumer: Consumer) -> str:
    partitions = len(consumer.assignment())
    return f"{partitions} partitions" if partitions else "no partitions yet"


def make_formatter(written: str) -> Formatter:
    """Parses the name of a preset, or a template with fields in braces. Raises :class:`SettingsError`."""
    if written == "json":
        return _as_json
    template = _PRESETS.get(written, written)
    if template is written and "{" not in written:
        known = ", ".join([*_PRESETS, "json"])
        raise SettingsError(
            f"--formatter {written!r} is neither one of {known} nor a template with fields such as {{value}}"
        )
    parts: list[tuple[str, str | None]] = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(template):
            if name is not None and (name not in _FIELDS or spec or conversion):
                if name in _FIELDS:
                    raise SettingsError(f"--formatter: {{{name}}} must not have a format specification or a conversion")
                raise SettingsError(
                    f"--formatter: {{{name}}} is not one of {', '.join(f'{{{one}}}' for one in _FIELDS)}"
                )
            parts.append((literal.replace("\\t", "\t").replace("\\n", "\n"), name))
    except ValueError as error:
        raise SettingsError(f"--formatter {written!r}: {error}") from None

    def fill(record: Record) -> str:
        return "".join(literal + (_shown(record, name) if name else "") for literal, name in parts)

    return fill


def _shown(record: Record, name: str) -> str:
    if name == "timestamp":
        return iso_time(record.timestamp_ms) or "-"
    if name == "headers":
        headers = _headers(record)
        return "unreadable" if headers is None else ",".join(f"{key}:{_text(value)}" for key, value in headers)
    value = getattr(record, name)
    return _text(value) if value is None or isinstance(value, bytes) else str(value)


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode("utf-8", errors="replace")


def _headers(record: Record) -> tuple[tuple[str, bytes | None], ...] | None:
    """Returns ``None``, and says why, if the headers cannot be read."""
    try:
        return record.headers
    except MalformedValue as error:
        note(str(error))
        return None


def _as_json(record: Record) -> str:
    headers = _headers(record)
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": None if record.key is None else _text(record.key),
            "value": None if record.value is None else _text(record.value),
            "headers": None
            if headers is None
            else [[key, None if value is None else _text(value)] for key, value in headers],
        },
        ensure_ascii=False,
    )
