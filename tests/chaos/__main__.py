"""``python -m tests.chaos run``, ``migrate``, ``moves``, ``judge`` and ``lag``."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from msgspec import json

from kafka_coord.errors import KafkaCoordError, VerificationFailed
from tests.chaos.journal import Kind
from tests.chaos.schedule import EVENTS, OF_KRAFT


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def chaos() -> None:
    """Run real servers and consumers under seeded faults, and judge the files that they wrote."""


@chaos.command()
@click.option("--minutes", type=click.FloatRange(0.25, 7 * 24 * 60.0), default=3.0, show_default=True)
@click.option("--seed", type=int, help="The same seed gives the same faults. [default: from the clock]")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="An empty or new directory. [default: a temporary one]"
)
@click.option(
    "--per-s", type=click.FloatRange(1.0), default=400.0, show_default=True, help="Records produced per second."
)
@click.option(
    "--spark", is_flag=True, help="Also run a Spark query, in a group with a plain consumer. It needs half a core more."
)
@click.option(
    "--clients",
    type=click.Choice(["library", "kafka", "mixed"]),
    default="library",
    show_default=True,
    help="kafka: all consumers are stock Kafka clients, in groups that the instances serve. mixed: managed groups of "
    "consumers of every kind.",
)
@click.option(
    "--only",
    "only",
    multiple=True,
    type=click.Choice(sorted({kind.value for kinds in (*EVENTS.values(), OF_KRAFT) for kind in kinds})),
    help="Only let this event of the world happen, again and again, without other faults. Can be given several times.",
)
@click.option("--planted", metavar="NAME", help="All coordinators and consumers have this deliberate defect.")
def run(
    minutes: float,
    seed: int | None,
    directory: Path | None,
    per_s: float,
    spark: bool,
    clients: str,
    only: tuple[str, ...],
    planted: str | None,
) -> None:
    """Inject faults for that many minutes, and judge the result. The directory keeps journals, logs and ZooKeeper's
    transaction logs. report.md lists the faults, the findings and the cost of the faults. The exit code is 0 if all
    invariants held, and 10 otherwise.

    \b
    python -m tests.chaos run --minutes 30 --seed 7 --dir /var/tmp/chaos-7
    python -m tests.chaos run --clients kafka --minutes 30 --seed 7
    python -m tests.chaos run --clients mixed --minutes 30 --seed 7
    python -m tests.chaos run --minutes 1 --only retention --only transactions
    python -m tests.chaos run --clients mixed --minutes 4 --only tree-lost
    """
    from tests.chaos.run import ChaosRun, Options
    from tests.chaos.skewed import PLANTED

    kinds = tuple(Kind(name) for name in only)
    possible = {**EVENTS, "mixed": (*EVENTS["mixed"], *OF_KRAFT)}
    if strange := [kind for kind in kinds if kind not in possible[clients]]:
        where = " and ".join(f"--clients {name}" for name, known in possible.items() if strange[0] in known)
        raise click.BadParameter(f"{strange[0]} happens only with {where}", param_hint="--only")
    if planted:
        os.environ[PLANTED] = planted
    seed = int(time.time()) % 1_000_000 if seed is None else seed
    directory = directory or Path(tempfile.mkdtemp(prefix=f"kafka-coord-chaos-{seed}-"))
    click.echo(f"seed {seed}, {minutes:g} minutes, everything is written to {directory}", err=True)
    ChaosRun(
        Options(directory, minutes, seed, per_s, spark, kinds, clients), lambda line: click.echo(line, err=True)
    ).run()
    _judge(directory)


@chaos.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses the order of the brokers and the kills.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="An empty or new directory. [default: a temporary one]"
)
@click.option(
    "--per-s", type=click.FloatRange(1.0), default=200.0, show_default=True, help="Records produced per second."
)
@click.option("--kills", is_flag=True, help="Kill the elected instance in each phase.")
@click.option("--back", is_flag=True, help="Roll the migration back before it is finalised, and begin another.")
def migrate(seed: int, directory: Path | None, per_s: float, kills: bool, back: bool) -> None:
    """Migrate three brokers from ZooKeeper to KRaft and on to Kafka 4 under members of every kind, and judge the result
    like a run of faults.

    \b
    python -m tests.chaos migrate --seed 7 --kills
    """
    from tests.chaos.migration import MigrationRun
    from tests.chaos.run import Options

    directory = directory or Path(tempfile.mkdtemp(prefix=f"kafka-coord-migration-{seed}-"))
    click.echo(f"seed {seed}, everything is written to {directory}", err=True)
    options = Options(directory, seed=seed, per_s=per_s, clients="mixed")
    MigrationRun(options, lambda line: click.echo(line, err=True), kills=kills, back=back).run()
    _judge(directory)


@chaos.command()
@click.option("--times", type=click.IntRange(1), default=100, show_default=True, help="Moves in each direction.")
@click.option("--members", type=click.IntRange(1), default=10, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=900, show_default=True)
@click.option("--one-in", type=click.IntRange(0), default=5, show_default=True, help="Moves with a kill; 0: none.")
@click.option("--away-s", type=float, default=1.0, show_default=True, help="Seconds until it is started again.")
@click.option("--kraft", is_flag=True, help="Run Kafka 4.3 in KRaft mode.")
@click.option("--strategy", type=click.Choice(["range", "cooperative-sticky"]), default="range", show_default=True)
@click.option("--protocol", type=click.Choice(["classic", "consumer"]), default="classic", show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses the instances that are killed, and when.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="An empty or new directory. [default: a temporary one]"
)
@click.option(
    "--per-s", type=click.FloatRange(1.0), default=400.0, show_default=True, help="Records produced per second."
)
def moves(seed: int, directory: Path | None, per_s: float, **given: Any) -> None:
    """Take a group over from the brokers and give it back, again and again, while its members read and instances are
    killed with kill -9, and judge the result like a run of faults.

    \b
    python -m tests.chaos moves
    python -m tests.chaos moves --kraft --times 20 --partitions 90
    """
    from tests.chaos.moves import MovesOptions, MovesRun
    from tests.chaos.run import Options

    directory = directory or Path(tempfile.mkdtemp(prefix=f"kafka-coord-moves-{seed}-"))
    click.echo(f"seed {seed}, everything is written to {directory}", err=True)
    options = Options(directory, seed=seed, per_s=per_s, clients="kafka")
    MovesRun(options, lambda line: click.echo(line, err=True), moves=MovesOptions(**given)).run()
    _judge(directory)


@chaos.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
def judge(directory: Path) -> None:
    """Judge a run by its files, audit ZooKeeper's log, and write report.md, report.json and audit.json."""
    _judge(directory)


@chaos.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--every", "every_s", type=click.IntRange(1), default=10, show_default=True, help="Window, in seconds.")
def lag(directories: tuple[Path, ...], output: Path, every_s: int) -> None:
    """Compute the lag in these runs with Spark. Print each consumer's worst lag, and write all lags to --output."""
    import pyarrow.parquet as pq

    from kafka_coord.spark.session import spark_session
    from tests.chaos.lag import read_run_evidence, write_lag

    runs = [read_run_evidence(directory) for directory in directories]
    with spark_session("kafka-coord chaos lag", log=output / "spark.log") as spark:
        found = write_lag(spark, runs, output.absolute(), every_s=every_s)
    for row in pq.read_table(found / "laggards").to_pylist():
        click.echo(f"{row['source']} {row['group']} {row['consumer']}: at most {row['most']:,} records at {row['at']}")
    click.echo(f"all lags are in {found}", err=True)


def _judge(directory: Path) -> None:
    from tests.chaos.judge import judge as judged
    from tests.chaos.judge import write_report
    from tests.chaos.judge.report import EVENTS_TITLE, REPORT_PAGE

    _audit(directory)
    report = judged(directory)
    write_report(report, directory)
    page, events, _ = (directory / REPORT_PAGE).read_text(encoding="utf-8").partition(EVENTS_TITLE)
    click.echo(f"{page}{events}: see {directory / REPORT_PAGE}")
    if not report.held:
        raise VerificationFailed(f"an invariant was broken: see {directory / 'report.md'}")


def _audit(directory: Path) -> None:
    """Writes ``audit.json`` and ``decisions.json`` from ZooKeeper's own log. If the servers' directories do not exist,
    keeps the files.
    """
    from kafka_coord.monitor.audit import audit
    from tests.chaos.journal import read_run
    from tests.chaos.judge.decisions import write_decisions

    run = read_run(directory)
    logs = [path for path in (directory / name for name in run.zookeeper_logs) if path.is_dir()]
    if logs:
        found = audit(logs, chroot=run.chroot)
        (directory / "audit.json").write_bytes(json.format(json.encode(found.document()), indent=1) + b"\n")
        write_decisions(directory, logs, run.chroot)


def _stop(number: int, _: Any) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> None:
    """Runs the program. An error prints one line and sets the exit code, as with ``kafka-coord``."""
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # the faults break connections
    logging.getLogger("kafka_coord.zk.kazoo").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)  # a shell ignores it for background processes
    try:
        chaos(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KafkaCoordError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted: all started processes are stopped", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
