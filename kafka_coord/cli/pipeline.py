"""``kafka-coord pipeline``: Spark jobs as members of a group, and what they found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafka_coord.cli.connection import connection_options, current_settings, given_config, open_store
from kafka_coord.cli.options import CONSUMER, GROUP, output_option
from kafka_coord.cli.output import Column, Format, Section, note, number, show
from kafka_coord.cli.stopping import stopping_at_signals
from kafka_coord.errors import DevClusterError, SettingsError
from kafka_coord.monitor.history import read_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_coord.settings import Settings
    from kafka_coord.spark.jobs.delays import DelayReport
    from kafka_coord.spark.jobs.history import HistoryReport

F = TypeVar("F", bound=Callable[..., Any])

_JOBS = (
    {
        "job": "flights",
        "kind": "query, member of a group",
        "reads": "JSON flights from topics",
        "gives": "records/ with each record once; 'pipeline report': delays by airline, airport, hour; top routes",
    },
    {
        "job": "history",
        "kind": "batch",
        "reads": "ZooKeeper's logs, chaos runs, or what 'groups history' prints",
        "gives": "history/: rebalances by reason, time without owner, who lagged when",
    },
)

_COST = (
    number("times"),
    number("p50_ms"),
    number("p99_ms"),
    number("max_ms"),
    number("total_ms"),
    number("not_taken_up"),
)
_HISTORY = {
    "rebalances": (
        Column("source"),
        Column("group"),
        Column("reason"),
        number("decisions"),
        number("moved"),
        number("settled_p50_ms"),
        number("settled_p95_ms"),
        number("settled_max_ms"),
    ),
    "without_owner": (Column("source"), Column("group"), Column("ending"), *_COST),
    "laggards": (Column("source"), Column("group"), Column("consumer"), number("most"), Column("at"), number("mean")),
    "judged": (Column("source"), Column("cause"), number("n"), number("p50_s"), number("p99_s"), number("max_s")),
}
_JOB_COLUMNS = (Column("job"), Column("kind"), Column("reads"), Column("gives"))


@click.group()
def pipeline() -> None:
    """Spark jobs: queries that are members of a group like any consumer, and what they found.

    Needs Java 17 and the extra: pip install 'kafka-coord[spark]'. Several applications, and plain consumers beside
    them, share a group's partitions; each record is in the output once, whoever is killed.

    \b
    kafka-coord load --flights --topic flights --partitions 12
    kafka-coord pipeline run flights --group delays --topics flights --output /data/delays
    kafka-coord pipeline report --output /data/delays
    """


@pipeline.command("list")
@output_option
def list_jobs(output: Format) -> None:
    """The jobs there are.

    \b
    kafka-coord pipeline list
    """
    show(output, list(_JOBS), [Section("jobs", _JOB_COLUMNS, _JOBS)])


@pipeline.group()
def run() -> None:
    """Run a job, on this machine's cores or on a cluster.

    \b
    kafka-coord pipeline run flights --help
    """


def spark_options(command: F) -> F:
    """Where Spark runs, and how."""
    for option in (
        click.option(
            "--log",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Where all that Spark prints goes. [default: in the output directory]",
        ),
        click.option(
            "--conf",
            "conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of Spark, such as spark.executor.memory=1g; repeatable.",
        ),
        click.option(
            "--master",
            metavar="URL",
            help="local[N]: N cores of this machine; spark://host:7077, yarn or k8s://…: a cluster. "
            "[default: local[*], or spark-submit's]",
        ),
    ):
        command = option(command)
    return command


def output_directory(command: F) -> F:
    return click.option(
        "--output",
        "directory",
        required=True,
        metavar="DIR",
        help="The job's directory. On a cluster, all machines must have it mounted.",
    )(command)


def format_option(command: F) -> F:
    """How the result is printed: not ``--output``, which is a directory here."""
    return click.option(
        "--format",
        "output",
        type=click.Choice([str(one) for one in Format]),
        callback=lambda _ctx, _parameter, value: Format(value),
        default="table",
        show_default=True,
        help="How to print the result.",
    )(command)


@run.command()
@click.option("--group", type=GROUP, required=True, help="The group to be a member of.")
@click.option("--topics", metavar="TOPIC,…", help="The topics to subscribe to.")
@click.option("--pattern", metavar="REGEX", help="Instead: every topic whose name matches.")
@output_directory
@click.option("--consumer-id", type=CONSUMER, help="This application's name in the group. [default: one is made up]")
@click.option("--checkpoint", metavar="DIR", help="Spark's checkpoint, for this application alone. [default: in DIR]")
@click.option(
    "--trigger", default="1 second", show_default=True, metavar="TIME", help="How often a micro-batch begins."
)
@click.option("--once", is_flag=True, help="Write what is there now, and end.")
@click.option(
    "--max-offsets", type=click.IntRange(1), metavar="N", help="Records in a micro-batch at most. [default: 1,000,000]"
)
@click.option(
    "--starting-offsets",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where the group has no offset yet.",
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
    """Write a group's flights (JSON, as 'load --flights' makes them) into a table that holds each once.

    Runs until Ctrl-C or SIGTERM; it then ends the micro-batch at work and leaves the group. Run it as often as you
    like, on as many machines as have DIR: the applications share the group's partitions and the table. Give each a
    --consumer-id and it goes on where it was.

    \b
    kafka-coord pipeline run flights --group delays --topics flights --output /data/delays
    kafka-coord pipeline run flights --group delays --topics flights --output /data/delays --once
    kafka-coord pipeline run flights --group delays --topics flights --output /mnt/d --master spark://host:7077
    """
    from kafka_coord.spark.checking import require_versions

    require_versions()
    from kafka_coord.spark.jobs.flights import decoded
    from kafka_coord.spark.jobs.streaming import StreamOptions, run_stream

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
        _session(f"kafka-coord flights {name}", master, conf, log) as spark,
        stopping_at_signals() as stopping,  # after Spark, which sets a handler of its own when it starts
    ):
        note(f"{name} joins the group {group}; Ctrl-C lets it leave")
        ended = run_stream(spark, options, decoded, stopping.event, _Rarely())
    note(f"{ended.records:,} records in {ended.micro_batches} micro-batches written to {options.table}")
    if not ended.clean:
        note("the micro-batch at work took too long and was interrupted: its records are read again, and written once")
    return stopping.exit_code


@run.command()
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path(path_type=Path))
@output_directory
@click.option("--chroot", default="", metavar="PATH", help="The chroot in the connect string, such as /kafka.")
@click.option(
    "--group", "groups", type=GROUP, multiple=True, help="Also what ZooKeeper keeps of this group; repeatable."
)
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="How often lag is looked at.",
)
@format_option
@spark_options
@connection_options
def history(
    paths: tuple[Path, ...],
    directory: str,
    chroot: str,
    groups: tuple[str, ...],
    every_s: int,
    output: Format,
    master: str | None,
    conf: tuple[str, ...],
    log: Path | None,
) -> None:
    """Look into what coordinators decided: rebalances by reason, time without an owner, who lagged when.

    PATH is a ZooKeeper's data directory (or several of one ensemble), the directory of a chaos run, or a file with
    what 'groups history GROUP -o json' printed, named after the group. Lag is known of chaos runs only.

    \b
    kafka-coord pipeline run history /var/lib/zookeeper --output /tmp/looked-into
    kafka-coord pipeline run history --group delays --group fares --output /tmp/looked-into
    """
    from kafka_coord.spark.checking import require_versions

    require_versions()
    from kafka_coord.spark.jobs.evidence import read_evidence
    from kafka_coord.spark.jobs.history import write_history
    from kafka_coord.spark.sinks.files import local_directory

    if not paths and not groups:
        raise SettingsError("name a PATH or a --group: there is nothing to look into")
    root = local_directory(directory)
    evidence = read_evidence(paths, chroot=chroot)
    if groups:
        with open_store() as store:
            for group in groups:
                evidence.add_decisions("zookeeper", group, read_history(store, group))
    with _session("kafka-coord history", master, conf, log or root / "logs" / "history.log") as spark:
        found = write_history(spark, evidence, directory, every_s=every_s)
    show_history(output, found)


def show_history(output: Format, report: HistoryReport) -> None:
    """What was found, read back from its files."""
    parts = {part: report.read(part).to_pylist() for part in _HISTORY}
    for row in parts["laggards"]:
        row["at"] = f"{row['at']:%Y-%m-%dT%H:%M:%SZ}"
    sections = [Section(part, columns, parts[part]) for part, columns in _HISTORY.items()]
    counts = {name: getattr(report, name) for name in ("decisions", "holds", "positions", "unreadable")}
    told = [", ".join(f"{count:,} {name}" for name, count in counts.items()) + f"; all of it in {report.directory}"]
    show(output, {"directory": str(report.directory), **counts, **parts}, sections, summary=told)


@pipeline.command()
@output_directory
@click.option("--window", default="1 day", show_default=True, metavar="TIME", help="How event time is cut, in UTC.")
@click.option(
    "--watermark",
    default="1 day",
    show_default=True,
    metavar="TIME",
    help="How much later than others of its partition a flight may come before its window counts as final.",
)
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="How many routes.")
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
    """Add up what 'run flights' has written: delays by airline, airport and hour in windows of event time, top routes.

    Any time, also while applications write. DIR/reports/… has it as parquet, window by window; the tables show the
    totals. Arrival delays in minutes.

    \b
    kafka-coord pipeline report --output /data/delays
    kafka-coord pipeline report --output /data/delays --window '6 hours' --format json
    """
    from kafka_coord.spark.checking import require_versions

    require_versions()
    from kafka_coord.spark.jobs.delays import Windows, write_report
    from kafka_coord.spark.sinks.files import local_directory

    windows = Windows(window, watermark, top)
    with _session(
        "kafka-coord report", master, conf, log or local_directory(directory) / "logs" / "report.log"
    ) as spark:
        found = write_report(spark, directory, windows)
    show_report(output, found)


@pipeline.command()
@click.option(
    "--output",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where to put it. [default: here]",
)
@click.option("--environment", is_flag=True, help="A whole Python environment, for machines that have nothing of it.")
def package(directory: Path, environment: bool) -> None:
    """Pack this package for the machines of a cluster, and say how Spark takes it (docs/spark-cluster.md).

    A zip of the package alone is enough where the machines have what it needs; --environment makes an archive of all
    of it but PySpark (pip downloads it, some minutes).

    \b
    kafka-coord pipeline package --output dist
    kafka-coord pipeline package --output dist --environment
    """
    from kafka_coord.spark.packaging import write_environment, write_zip

    if environment:
        made = write_environment(directory, note)
        note("ship it:   --conf spark.archives=FILE#environment, with PYSPARK_PYTHON=./environment/bin/python")
        note("           and, where the driver runs, the same unpacked into ./environment")
    else:
        made = write_zip(directory)
        note("ship it:   --conf spark.submit.pyFiles=FILE; the driver's Python must have kafka-coord[spark] itself")
    click.echo(made)


def show_report(output: Format, report: DelayReport) -> None:
    """The totals of a report, read back from its files."""
    from kafka_coord.spark.jobs.delays import KEYS, ROUTES

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
    sums = (number("flights"), number("arrived"), number("delay_minutes"), number("mean_delay"))
    sections = [Section(part, (Column(key), *sums), totals[part], "no flights") for part, key in KEYS.items()]
    ranked = (number("rank"), Column("origin"), Column("dest"), number("flights"))
    sections.append(Section(ROUTES, ranked, routes, "no flights"))
    document = {"directory": str(report.directory), "summary": summary.to_json(), **totals, ROUTES: routes}
    told = [
        f"{summary.records:,} records of {summary.partitions} partitions: {summary.flights:,} flights, "
        f"{summary.undecodable:,} that are none; {summary.late:,} late",
        f"windows of {summary.windows.window} in {report.directory}; final up to {summary.watermark or 'nowhere yet'}",
    ]
    show(output, document, sections, summary=told)


def _source_options(settings: Settings) -> dict[str, str]:
    """The connection as the source takes it. It reads the file of settings and the environment itself, so that no
    secret in them becomes an option that Spark keeps."""
    zookeeper, config = settings.zookeeper, given_config()
    kafka = {
        f"kafka.{name}": str(value)
        for name, value in settings.kafka.properties.items()
        if settings.origin[f"kafka.{name}"].startswith("flag")
    }
    file = {"config": str(config.absolute())} if config else {}
    return {"zookeeper": zookeeper.hosts, "sessionTimeoutMs": str(zookeeper.session_timeout_ms), **file, **kafka}


@contextmanager
def _session(name: str, master: str | None, conf: tuple[str, ...], log: Path) -> Iterator[SparkSession]:
    from kafka_coord.spark.java import find_java
    from kafka_coord.spark.session import spark_session

    given = dict(_setting(written) for written in conf)
    try:
        java = find_java().executable
    except DevClusterError as error:
        raise SettingsError(f"Spark needs Java: {error}") from None
    with spark_session(name, master=master, conf=given, java=java, log=log) as spark:
        yield spark


def _setting(written: str) -> tuple[str, str]:
    key, equals, value = written.partition("=")
    if not equals or not key.startswith("spark."):
        raise SettingsError(f"--conf {written[:60]!r} is not KEY=VALUE with a key of Spark, such as spark.cores.max=4")
    return key, value


class _Rarely:
    """Tells how it goes every few seconds at most: micro-batches may be many."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s = every_s
        self._told = -every_s

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._told + self._every_s:
            self._told = now
            note(text)
