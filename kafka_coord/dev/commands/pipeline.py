"""``pipeline run flights`` and ``pipeline report``: run the sample job on the demo's flights, and show its result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafka_coord.cli.connection import connection_options, current_settings, given_config
from kafka_coord.cli.failures import stopping_at_signals
from kafka_coord.cli.options import CONSUMER, GROUP
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.cli.pipeline import format_option, job_session, output_directory, spark_options

if TYPE_CHECKING:
    from kafka_coord.dev.jobs.delays import DelayReport
    from kafka_coord.settings import Settings


@click.command()
@click.option("--group", type=GROUP, required=True, help="The group to join.")
@click.option("--topics", metavar="TOPIC,…", help="The topics to subscribe to.")
@click.option("--pattern", metavar="REGEX", help="Instead of --topics: every topic whose name matches.")
@output_directory
@click.option("--consumer-id", type=CONSUMER, help="This application's name in the group. [default: generated]")
@click.option(
    "--checkpoint", metavar="DIR", help="Spark's checkpoint, which no other application may use. [default: in DIR]"
)
@click.option(
    "--trigger", default="1 second", show_default=True, metavar="TIME", help="How often a micro-batch begins."
)
@click.option("--once", is_flag=True, help="Write the records that exist now, then stop.")
@click.option(
    "--max-offsets",
    type=click.IntRange(1),
    metavar="N",
    help="The maximum number of records in a micro-batch. [default: 1,000,000]",
)
@click.option(
    "--starting-offsets",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to start if the group has no offset yet.",
)
@spark_options
@connection_options
def flights(
    group: str,
    topics: str | None,
    pattern: str | None,
    directory: str,
    consumer_id: str | None,
    checkpoint: str | None,
    trigger: str,
    once: bool,
    max_offsets: int | None,
    starting_offsets: str,
    master: str | None,
    conf: tuple[str, ...],
    log: Path | None,
) -> int:
    """Write a group's flights (JSON from 'load --flights') to a table that contains each flight once.

    The application runs until Ctrl-C or SIGTERM, then finishes its micro-batch and leaves the group. Several
    applications, on any machines that have DIR, can share the group's partitions and the table. With a --consumer-id, a
    restarted application continues where it stopped.

    \b
    kafka-coord pipeline run flights --group delays --topics flights --output /data/delays
    kafka-coord pipeline run flights --group delays --topics flights --output /data/delays --once
    kafka-coord pipeline run flights --group delays --topics flights --output /mnt/d --master spark://host:7077
    """
    from kafka_coord.spark.session import require_versions

    require_versions()
    from kafka_coord.dev.jobs.flights import decoded
    from kafka_coord.dev.jobs.streaming import StreamOptions, run_stream

    settings = current_settings()
    source = _source_options(settings) | {"group": group, "startingOffsets": starting_offsets}
    chosen = {
        "topics": topics,
        "subscribePattern": pattern,
        "consumerId": consumer_id,
        "maxOffsetsPerTrigger": str(max_offsets) if max_offsets else None,
    }
    source |= {name: value for name, value in chosen.items() if value is not None}
    options = StreamOptions(source, directory, None if once else trigger, checkpoint)
    name = options.checked.consumer_id
    log = log or options.root / "logs" / f"{name}.log"
    with (
        job_session(f"kafka-coord flights {name}", master, conf, log) as spark,
        stopping_at_signals() as stopping,  # after Spark, which sets its own handler when it starts
    ):
        note(f"{name} joins the group {group}; press Ctrl-C to leave")
        ended = run_stream(spark, options, decoded, stopping.event, _SeldomNotes())
    plural = "" if ended.micro_batches == 1 else "es"
    note(f"{ended.records:,} records in {ended.micro_batches} micro-batch{plural} written to {options.table}")
    if not ended.clean:
        note(
            "the last micro-batch took too long and was interrupted; its records are read again, but written only once"
        )
    return stopping.exit_code


@click.command()
@output_directory
@click.option(
    "--window", default="1 day", show_default=True, metavar="TIME", help="The size of the event-time windows, in UTC."
)
@click.option(
    "--watermark",
    default="1 day",
    show_default=True,
    metavar="TIME",
    help="How far a flight may be behind the latest event time in its partition before it counts as late.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="The number of top routes to report.",
)
@format_option
@spark_options
def report(
    directory: str,
    window: str,
    watermark: str,
    top: int,
    output: Format,
    master: str | None,
    conf: tuple[str, ...],
    log: Path | None,
) -> None:
    """Summarise the output of 'run flights': delays by airline, airport and hour in windows of event time, top routes.

    The report can be run at any time, even while applications are writing. DIR/reports/… contains the report for each
    window as parquet, and the tables show the totals. Arrival delays are in minutes.

    \b
    kafka-coord pipeline report --output /data/delays
    kafka-coord pipeline report --output /data/delays --window '6 hours' --format json
    """
    from kafka_coord.spark.session import require_versions

    require_versions()
    from kafka_coord.dev.jobs.delays import Windows, write_report
    from kafka_coord.spark.sinks.files import local_directory

    windows = Windows(window, watermark, top)
    with job_session(
        "kafka-coord report", master, conf, log or local_directory(directory) / "logs" / "report.log"
    ) as spark:
        found = write_report(spark, directory, windows)
    show_report(output, found)


def show_report(output: Format, report: DelayReport) -> None:
    """Prints the totals that a report's files contain."""
    from kafka_coord.dev.jobs.delays import KEYS, ROUTES

    summary = report.summary
    totals = {
        part: [
            {
                key: name,
                "flights": one.flights,
                "arrived": one.arrived,
                "delay_minutes": one.arrival_delay,
                "mean_delay": None if one.mean_arrival_delay is None else round(one.mean_arrival_delay, 2),
            }
            for name, one in report.totals(part).items()
        ]
        for part, key in KEYS.items()
    }
    routes = [
        {name: row[name] for name in ("rank", "origin", "dest", "flights")} for row in report.read(ROUTES).to_pylist()
    ]
    sums = "#flights #arrived #delay_minutes #mean_delay"
    sections = [Section(part, columns(f"{key} {sums}"), totals[part], "no flights") for part, key in KEYS.items()]
    sections.append(Section(ROUTES, columns("#rank origin dest #flights"), routes, "no flights"))
    document = {"directory": str(report.directory), "summary": summary.to_json(), **totals, ROUTES: routes}
    told = [
        f"{summary.records:,} records from {summary.partitions} partitions: {summary.flights:,} flights, "
        f"{summary.undecodable:,} undecodable; {summary.late:,} late",
        f"windows of {summary.windows.window} in {report.directory}; "
        + (f"final up to {summary.watermark}" if summary.watermark else "none final yet"),
    ]
    show(output, document, sections, summary=told)


def _source_options(settings: Settings) -> dict[str, str]:
    """Returns the connection settings as options of the source. Omits secrets from the settings file and the
    environment: Spark would store them, and the source reads the file and the environment itself."""
    zookeeper, config = settings.zookeeper, given_config()
    kafka = {
        f"kafka.{name}": str(value)
        for name, value in settings.kafka.properties.items()
        if settings.origin[f"kafka.{name}"].startswith("flag")
    }
    file = {"config": str(config.absolute())} if config else {}
    return {"zookeeper": zookeeper.hosts, "sessionTimeoutMs": str(zookeeper.session_timeout_ms), **file, **kafka}


class _SeldomNotes:
    """Reports progress every few seconds at most, because there may be many micro-batches."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s = every_s
        self._told = -every_s

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._told + self._every_s:
            self._told = now
            note(text)
