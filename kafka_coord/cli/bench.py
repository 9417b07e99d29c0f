"""``kafka-coord bench``: how fast it is on this machine, beside what one would use instead."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafka_coord.cli.failures import terminate_as_interrupt
from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Column, Format, Section, note, number, show

if TYPE_CHECKING:
    from kafka_coord.dev.bench.report import BenchReport, Table

_PARTS = ("throughput", "micro-batches", "handover", "soak")
_BARS = (Column("met"), Column("name", "BAR"), Column("wanted"), Column("found"))


@click.group()
def bench() -> None:
    """Measure parts of it on real servers, which are started for it and stopped again.

    \b
    kafka-coord bench spark
    """


@bench.command()
@click.option("--rows", type=click.IntRange(100), metavar="N", help="Rows of a topic. [default: 336,776]")
@click.option("--repeat", type=click.IntRange(1, 100), metavar="N", help="How often each source reads it. [default: 5]")
@click.option(
    "--minutes",
    type=click.FloatRange(0, 10_000),
    default=0.0,
    metavar="N",
    help="Then read on for so long, and tell the memory of the Python workers every minute.",
)
@click.option(
    "--only",
    type=click.Choice(_PARTS),
    multiple=True,
    help="This part alone; may be given several times.",
)
@click.option("--smoke", is_flag=True, help="Everything once and small, to see that it works.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where data and logs are kept. [default: a temporary directory, removed at the end]",
)
@output_option
def spark(
    rows: int | None,
    repeat: int | None,
    minutes: float,
    only: tuple[str, ...],
    smoke: bool,
    directory: Path | None,
    output: Format,
) -> None:
    """Compare the Spark source with Spark's own, over the same topics of flights, in turn.

    Rows/s and CPU of reading whole topics of 1 and of 12 partitions (trigger available-now), the time of small and
    of empty micro-batches (a trigger every second), and how long a stop-fetcher takes to be acknowledged while the
    query reads. One Kafka broker and Spark run on this machine; it should have nothing else to do. Takes about
    twelve minutes. Spark's own connector is fetched once; where it cannot be, this source is measured alone.

    \b
    kafka-coord bench spark
    kafka-coord bench spark --rows 2000000 --repeat 3 -o json
    kafka-coord bench spark --only soak --minutes 60
    kafka-coord bench spark --smoke
    """
    from kafka_coord.dev.bench.spark.options import SMOKE, Part, SparkBenchOptions
    from kafka_coord.dev.bench.spark.run import run_spark_bench

    terminate_as_interrupt()
    options = SMOKE if smoke else SparkBenchOptions()
    options = dataclasses.replace(
        options,
        rows=rows or options.rows,
        repeat=repeat or options.repeat,
        minutes=minutes,
        parts=tuple(Part(part) for part in only) or options.parts,
    )
    where = Path(tempfile.mkdtemp(prefix="kafka-coord-bench-")) if directory is None else directory.absolute()
    try:
        report = run_spark_bench(options, where, note)
    except KeyboardInterrupt:
        _clean_up(where, directory)
        raise
    except Exception:
        note(f"logs are in {where}")
        raise
    _clean_up(where, directory)
    _show(output, report)


def _clean_up(where: Path, given: Path | None) -> None:
    if given is None:
        shutil.rmtree(where, ignore_errors=True)


def _show(output: Format, report: BenchReport) -> None:
    bars = [{**bar.to_json(), "met": _VERDICTS[bar.met]} for bar in report.bars]
    sections = [_section(table) for table in report.tables]
    summary = [*report.setup.sentences(), *report.notes]
    show(output, report.to_json(), [*sections, Section("bars", _BARS, bars)], summary=summary)


_VERDICTS = {True: "yes", False: "no", None: "-"}


def _section(table: Table) -> Section:
    first = table.rows[0] if table.rows else {}
    columns = [number(key) if isinstance(value, int | float) else Column(key) for key, value in first.items()]
    return Section(table.name, columns, table.rows)
