"""``kafka-coord pipeline``: runs Spark jobs that are members of a group, and shows their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafka_coord.cli.connection import connection_options, open_store
from kafka_coord.cli.main import LazyCommands
from kafka_coord.cli.options import GROUP, output_option, result_format
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.errors import DevClusterError, SettingsError
from kafka_coord.groups.managed import read_trail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_coord.spark.jobs import HistoryReport

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
        "reads": "ZooKeeper's logs, or the output of 'groups history'",
        "gives": "history/: rebalances by cause, time without an owner",
    },
)
_SAMPLE = "kafka_coord.dev.commands.pipeline"
"""The module of the sample job. Like the job's input, it comes with the distribution kafka-coord-dev."""

_HISTORY = {
    "rebalances": columns("source group cause #decisions #moved #settled_p50_ms #settled_p95_ms #settled_max_ms"),
    "without_owner": columns("source group ending #times #p50_ms #p99_ms #max_ms #total_ms #not_taken_up"),
}
_JOB_COLUMNS = columns("job kind reads gives")


@click.group(cls=LazyCommands, lazy={"report": (f"{_SAMPLE}:report", "Summarise the output of 'run flights'.")})
def pipeline() -> None:
    """Run Spark queries as members of a group, like any consumer, and show their results.

    The jobs need Java 17 and the extras: pip install 'kafka-coord[cli,spark]'. Several applications and plain consumers
    can share a group's partitions. The output contains each record once, even if some applications are killed.

    \b
    kafka-coord load --flights --topic flights --partitions 12
    kafka-coord pipeline run flights --group delays --topics flights --output /data/delays
    kafka-coord pipeline report --output /data/delays
    """


@pipeline.command("list")
@output_option
def list_jobs(output: Format) -> None:
    """List the jobs.

    \b
    kafka-coord pipeline list
    """
    there = run.list_commands(click.get_current_context())
    jobs = [job for job in _JOBS if job["job"] in there]
    show(output, jobs, [Section("jobs", _JOB_COLUMNS, jobs)])


@pipeline.group(cls=LazyCommands, lazy={"flights": (f"{_SAMPLE}:flights", "Write a group's flights into a table.")})
def run() -> None:
    """Run a job, on this machine's cores or on a cluster.

    \b
    kafka-coord pipeline run history --help
    """


def spark_options(command: F) -> F:
    """Adds the options for Spark: its master, its settings and its log."""
    for option in (
        click.option(
            "--log",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The file for Spark's output. [default: in the output directory]",
        ),
        click.option(
            "--conf",
            "conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="A Spark setting, such as spark.executor.memory=1g; repeatable.",
        ),
        click.option(
            "--master",
            metavar="URL",
            help="Where Spark runs: local[N] for N cores of this machine, or spark://host:7077, yarn or k8s://… for a "
            "cluster. [default: local[*], or the --master of spark-submit]",
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


format_option = result_format("--format", "output", what="How to print the result.")
"""The option is ``--format`` here, because ``--output`` names a directory."""


@run.command()
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path(path_type=Path))
@output_directory
@click.option("--chroot", default="", metavar="PATH", help="The chroot in the connect string, such as /kafka.")
@click.option(
    "--group", "groups", type=GROUP, multiple=True, help="Include a group's history from ZooKeeper; repeatable."
)
@format_option
@spark_options
@connection_options
def history(
    paths: tuple[Path, ...],
    directory: str,
    chroot: str,
    groups: tuple[str, ...],
    output: Format,
    master: str | None,
    conf: tuple[str, ...],
    log: Path | None,
) -> None:
    """Analyse the coordinators' decisions: rebalances by cause, and time without an owner.

    PATH is the data directory of a ZooKeeper server, or a file with the output of 'groups history GROUP -o json',
    named after the group. Give several PATHs for several servers of an ensemble.

    \b
    kafka-coord pipeline run history /var/lib/zookeeper --output /tmp/history
    kafka-coord pipeline run history --group delays --group fares --output /tmp/history
    """
    from kafka_coord.spark.session import require_versions

    require_versions()
    from kafka_coord.spark.jobs import read_evidence, write_history
    from kafka_coord.spark.sinks.files import local_directory

    if not paths and not groups:
        raise SettingsError("give a PATH or a --group to analyse")
    root = local_directory(directory)
    evidence = read_evidence(paths, chroot=chroot)
    if groups:
        with open_store() as store:
            for group in groups:
                evidence.add_trail("zookeeper", group, read_trail(store, group))
    with job_session("kafka-coord history", master, conf, log or root / "logs" / "history.log") as spark:
        report = write_history(spark, evidence, directory)
    show_history(output, report)


def show_history(output: Format, report: HistoryReport) -> None:
    """Prints the report from its files."""
    parts = {part: report.read(part).to_pylist() for part in _HISTORY}
    sections = [Section(part, columns, parts[part]) for part, columns in _HISTORY.items()]
    counts = {name: getattr(report, name) for name in ("decisions", "holds", "positions", "unreadable")}
    summary = [", ".join(f"{count:,} {name}" for name, count in counts.items()) + f"; results in {report.directory}"]
    show(output, {"directory": str(report.directory), **counts, **parts}, sections, summary=summary)


@pipeline.command()
@click.option(
    "--output",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where to write the archive. [default: the current directory]",
)
@click.option("--environment", is_flag=True, help="Pack a whole Python environment, including the requirements.")
def package(directory: Path, environment: bool) -> None:
    """Pack kafka-coord for the machines of a cluster, and print how to pass it to Spark (docs/spark-cluster.md).

    If the machines have the requirements, a zip of the package is enough. Otherwise, --environment creates an archive
    that also contains the requirements, except PySpark. pip downloads them, which takes a few minutes.

    \b
    kafka-coord pipeline package --output dist
    kafka-coord pipeline package --output dist --environment
    """
    from kafka_coord.spark.session import write_environment, write_zip

    if environment:
        archive = write_environment(directory, note)
        note("pass it with --conf spark.archives=FILE#environment and PYSPARK_PYTHON=./environment/bin/python,")
        note("and unpack it into ./environment where the driver runs")
    else:
        archive = write_zip(directory)
        note("pass it with --conf spark.submit.pyFiles=FILE, and install kafka-coord[cli,spark] in the driver's Python")
    click.echo(archive)


@contextmanager
def job_session(name: str, master: str | None, conf: tuple[str, ...], log: Path) -> Iterator[SparkSession]:
    """Opens a Spark session, configured by the options that :func:`spark_options` adds."""
    from kafka_coord.spark.session import find_java, spark_session

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
        raise SettingsError(
            f"--conf {written[:60]!r} is not KEY=VALUE with a Spark property, such as spark.cores.max=4"
        )
    return key, value
