"""``kafka-coord bench``: runs benchmarks on this machine, and compares the project with alternatives."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafka_coord.cli.failures import terminate_as_interrupt
from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Column, Format, Section, columns, note, show
from kafka_coord.errors import SettingsError

if TYPE_CHECKING:
    from kafka_coord.dev.bench.report import BenchOptions, BenchReport, Table
    from kafka_coord.dev.cluster.process import OnProgress

Options = TypeVar("Options", bound="BenchOptions")

_PARTS = ("throughput", "micro-batches", "handover", "soak")
_GROUPS_PARTS = ("requests", "passing", "join", "loading", "moving", "idle", "listing", "managed")
_PROCEDURES = ("brokers", "together", "alone", "give-back", "take-over")
_HTML = "kafka_coord.bench.html"
_BARS = columns("met name=BAR wanted found")


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory for data and logs. [default: a temporary directory, removed at the end]",
)


def _keep_html(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    context.meta[_HTML] = value


html_option = click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    callback=_keep_html,
    expose_value=False,
    help="Also write the report as a page with charts.",
)


smoke_option = click.option(
    "--smoke", is_flag=True, help="Run everything once, with little data, to check that it works."
)


def _bench_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that all benchmarks with servers have."""
    return smoke_option(directory_option(html_option(output_option(command))))


@click.group()
def bench() -> None:
    """Measure parts of the system. Each benchmark starts the real servers that it needs, and stops them at the end.

    \b
    kafka-coord bench rebalance
    kafka-coord bench failover
    kafka-coord bench sockets
    kafka-coord bench dashboard
    kafka-coord bench planner
    kafka-coord bench offsets
    kafka-coord bench backup
    kafka-coord bench consume
    kafka-coord bench spark
    kafka-coord bench groups
    kafka-coord bench rolling
    kafka-coord bench metadata
    kafka-coord bench quiet
    kafka-coord bench healthy
    """


@bench.command()
@click.option("--rows", type=click.IntRange(100), metavar="N", help="Rows per topic. [default: 336,776]")
@click.option(
    "--repeat", type=click.IntRange(1, 100), metavar="N", help="How many times each source reads a topic. [default: 5]"
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, 10_000),
    default=0.0,
    metavar="N",
    help="At the end, read for N minutes more, and report the Python workers' memory every minute.",
)
@click.option("--only", type=click.Choice(_PARTS), multiple=True, help="Measure only this part; repeatable.")
@_bench_options
def spark(only: tuple[str, ...], **given: Any) -> None:
    """Compare the Spark source with Spark's own. Both read the same topics of flights, in alternation.

    The benchmark measures the rows per second and the CPU time for whole topics of 1 and of 12 partitions (trigger
    available-now), how long small and empty micro-batches take (a trigger every second), and how fast a running query
    acknowledges a stop-fetcher. One Kafka broker and Spark run on this machine, which should be otherwise idle. The
    benchmark takes about ten minutes. It downloads Spark's own connector once; if that fails, it measures only this
    project's source.

    \b
    kafka-coord bench spark
    kafka-coord bench spark --rows 2000000 --repeat 3 -o json
    kafka-coord bench spark --only soak --minutes 60
    kafka-coord bench spark --smoke
    """
    from kafka_coord.dev.bench.spark.options import SMOKE, Part, SparkBenchOptions
    from kafka_coord.dev.bench.spark.run import run_spark_bench

    parts = tuple(Part(part) for part in only)
    _measure(run_spark_bench, SparkBenchOptions(), SMOKE, parts=parts, **given)


@bench.command()
@click.option(
    "--members",
    type=click.IntRange(1, 500),
    default=10,
    show_default=True,
    metavar="N",
    help="Members that stay in the group.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 50_000),
    default=900,
    show_default=True,
    metavar="N",
    help="Partitions of the topic.",
)
@click.option("--repeat", type=click.IntRange(1, 10_000), metavar="N", help="Repetitions of each event. [default: 30]")
@click.option(
    "--rarely",
    type=click.IntRange(0, 1000),
    metavar="N",
    help="Repetitions of cold starts, kills and added partitions, which are slow or irreversible. [default: 3]",
)
@click.option(
    "--session-timeout-ms",
    type=click.IntRange(1_000, 120_000),
    metavar="MS",
    help="Session timeout of the members. [default: 6000]",
)
@click.option(
    "--channel",
    type=click.Choice(["zk", "socket"]),
    help="How members connect: with their own ZooKeeper sessions, or over sockets to the coordinator. [default: zk]",
)
@click.option("--fetch", is_flag=True, help="Use consumers that fetch records from a real broker.")
@click.option(
    "--compare",
    metavar="PROTOCOL,…",
    help="Compare with groups of other kinds; all members then fetch records. Kafka's own protocols (classic, "
    "cooperative, kip848) run with both their default and their fastest settings. The others run with their default "
    "settings: the same clients in managed groups (managed-classic, managed-cooperative, managed), Kafka's Java "
    "client, which needs a JDK (kip848-java, managed-java, managed-java-classic, managed-java-cooperative), and the "
    "libraries aiokafka and kafka-python, also with the prefix client-assigned- or managed-. By default, each event "
    "is repeated 5 times, but cold starts and kills happen only once.",
)
@_bench_options
def rebalance(
    members: int,
    partitions: int,
    session_timeout_ms: int | None,
    channel: str | None,
    fetch: bool,
    compare: str | None,
    **given: Any,
) -> None:
    """Measure rebalances: a member joins, leaves or dies, a topic grows, an operator rebalances, or all members start.

    The coordinator, ZooKeeper and the members are real, but the members do not fetch. Everything runs on this machine,
    which should be otherwise idle, with the members in at most ten processes. For each event, the benchmark reports the
    time until all partitions are owned and all commands acknowledged (settle), the time without an owner (gap), and the
    partitions that were interrupted although they did not move.

    \b
    kafka-coord bench rebalance --members 10 --partitions 900 --repeat 30 -o json
    kafka-coord bench rebalance --members 100 --partitions 10000 --repeat 10
    kafka-coord bench rebalance --channel socket
    kafka-coord bench rebalance --compare classic,cooperative,kip848
    kafka-coord bench rebalance --compare kip848,managed --repeat 20
    kafka-coord bench rebalance --smoke
    """
    if fetch or compare is not None:
        if session_timeout_ms is not None:
            raise SettingsError(
                "--session-timeout-ms cannot be used with --fetch or --compare, because they set the session timeout "
                "of each group"
            )
        if channel == "socket":
            raise SettingsError(
                "--channel socket cannot be used with --fetch or --compare, because they measure the ZooKeeper channel"
            )
        _compare(members, partitions, compare or "", **given)
        return
    from kafka_coord.dev.bench.rebalance.run import SMOKE, RebalanceOptions, run_rebalance_bench
    from kafka_coord.dev.bench.rebalance.testbed import MembersChannel

    usual = RebalanceOptions(members=members, partitions=partitions)
    given |= {"session_timeout_ms": session_timeout_ms, "channel": channel and MembersChannel(channel)}
    _measure(run_rebalance_bench, usual, SMOKE, **given)


def _compare(members: int, partitions: int, compare: str, **given: Any) -> None:
    from kafka_coord.dev.bench.rebalance.compare import SMOKE, CompareOptions, run_compare
    from kafka_coord.dev.bench.rebalance.contenders import CONTENDERS

    known = {str(one): one for one in CONTENDERS}
    names = [name.strip() for name in compare.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise SettingsError(f"--compare {name[:60]!r} is not one of {', '.join(known)}")
    against = tuple(dict.fromkeys(known[name] for name in names))  # empty with --fetch alone
    usual = CompareOptions(members=members, partitions=partitions, against=against)
    _measure(run_compare, usual, dataclasses.replace(SMOKE, against=against), **given)


@bench.command()
@click.option(
    "--size",
    "sizes",
    metavar="MEMBERSxEACH",
    multiple=True,
    callback=lambda _ctx, _parameter, values: tuple(_size(value) for value in values),
    help="Members and partitions per member, such as 1000x50; repeatable. [default: up to 5000x50]",
)
@click.option("--assignor", "assignors", metavar="NAME", multiple=True, help="Measure only this assignor; repeatable.")
@click.option("--repeat", type=click.IntRange(1, 1000), metavar="N", help="How many times to run a case. [default: 5]")
@smoke_option
@html_option
@output_option
def planner(assignors: tuple[str, ...], smoke: bool, output: Format, **given: Any) -> None:
    """Measure how long a decision takes, from small groups to 5,000 members with 250,000 partitions.

    The benchmark measures each assignor alone ('assign'), and the coordinator's whole decision with the default
    assignor ('decide'). The cases are: nobody owns anything, a member joins or leaves, and topics grow by a tenth.
    Members subscribe to one topic, to a hundred, or each to five of a hundred. The benchmark reports the CPU time of
    one thread, needs no server, and takes a few minutes.

    \b
    kafka-coord bench planner
    kafka-coord bench planner --size 1000x50 --assignor sticky --repeat 20 -o json
    """
    from kafka_coord.coordinator.assignors import built_in_assignors
    from kafka_coord.dev.bench.planner import SMOKE, PlannerOptions, run_planner_bench

    known = built_in_assignors()
    for name in assignors:
        if name not in known:
            raise SettingsError(f"--assignor {name[:60]!r} is not one of {', '.join(sorted(known))}")
    options = _with(SMOKE if smoke else PlannerOptions(), assignors=assignors, **given)
    _show(output, run_planner_bench(options, note))


@bench.command()
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(1, 100_000),
    metavar="N",
    multiple=True,
    help="Partitions per commit; repeatable. [default: 1, 10, 100, 1,000 and 10,000]",
)
@click.option("--seconds", type=click.FloatRange(0.1, 3600), metavar="S", help="Seconds for each size. [default: 5]")
@click.option(
    "--listed",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Partitions whose starts and ends a broker then lists; 0 starts none. [default: 1,000]",
)
@_bench_options
def offsets(**given: Any) -> None:
    """Measure how many offsets one member commits per second, with 1 to 10,000 partitions in a commit. Then measure
    what a list of 1,000 logs' ends costs, and one of their starts and ends, which each lag needs.

    The member uses the channel of a real consumer, and its registration fences each commit. The benchmark starts a
    ZooKeeper that does not wait for the disk.

    \b
    kafka-coord bench offsets
    kafka-coord bench offsets --size 900 --seconds 30 -o json
    """
    from kafka_coord.dev.bench.offsets import SMOKE, OffsetsOptions, run_offsets_bench

    _measure(run_offsets_bench, OffsetsOptions(), SMOKE, **given)


@bench.command()
@click.option("--groups", type=click.IntRange(1, 100_000), metavar="N", help="Number of groups. [default: 10,000]")
@click.option("--offsets", type=click.IntRange(0, 10_000), metavar="N", help="Offsets per group. [default: 10]")
@_bench_options
def backup(**given: Any) -> None:
    """Measure how long `kafka-coord backup` and `restore` take for many groups, from one ZooKeeper to another.

    \b
    kafka-coord bench backup
    kafka-coord bench backup --groups 1000 --offsets 100 -o json
    """
    from kafka_coord.dev.bench.backup import SMOKE, BackupOptions, run_backup_bench

    _measure(run_backup_bench, BackupOptions(), SMOKE, **given)


@bench.command()
@click.option(
    "--groups",
    "sizes",
    type=click.IntRange(1, 50_000),
    metavar="N",
    multiple=True,
    help="Number of groups; repeatable. [default: 10, 1,000 and 10,000]",
)
@click.option("--consumers", type=click.IntRange(1, 1_000), metavar="N", help="Consumers per group. [default: 10]")
@click.option(
    "--repeat", type=click.IntRange(1, 1_000), metavar="N", help="Repetitions of each stop and kill. [default: 3]"
)
@_bench_options
def failover(**given: Any) -> None:
    """Measure failovers with many groups: the elected coordinator is stopped or killed, and another takes over.

    The benchmark starts a ZooKeeper and two instances with a 6 s session timeout. The groups' consumers are registered
    and acknowledge commands, but they are not processes. The benchmark measures how long it takes until another
    instance is elected, until that instance has read every group, and until the partitions of a member that leaves at
    the same moment have a new owner. It also checks that nothing is written for unchanged groups, and measures what
    settled groups cost an idle coordinator. It takes a few minutes.

    \b
    kafka-coord bench failover
    kafka-coord bench failover --groups 1000 --repeat 10 -o json
    """
    from kafka_coord.dev.bench.failover.run import SMOKE, FailoverOptions, run_failover_bench

    _measure(run_failover_bench, FailoverOptions(), SMOKE, **given)


@bench.command()
@click.option("--groups", type=click.IntRange(1, 50_000), metavar="N", help="Number of groups. [default: 10,000]")
@click.option("--pages", type=click.IntRange(1, 50), metavar="N", help="Open pages of groups. [default: 10]")
@_bench_options
def dashboard(**given: Any) -> None:
    """Measure what open dashboard pages cost the elected instance, and whether they delay its decisions.

    The groups are like those of `bench failover`: idle, without brokers. The benchmark measures the idle CPU time and
    how long a joining member waits: first with no page open, then with the overview, and then with the overview and
    pages of groups. It takes a few minutes.

    \b
    kafka-coord bench dashboard
    kafka-coord bench dashboard --groups 1000 --pages 20
    """
    from kafka_coord.dev.bench.dashboard import SMOKE, DashboardOptions, run_dashboard_bench

    _measure(run_dashboard_bench, DashboardOptions(), SMOKE, **given)


@bench.command()
@click.option("--consumers", type=click.IntRange(1, 9_000), metavar="N", help="Number of consumers. [default: 5,000]")
@click.option("--groups", type=click.IntRange(1, 1_000), metavar="N", help="Number of groups. [default: 50]")
@click.option(
    "--seconds",
    "steady_s",
    type=click.FloatRange(1),
    metavar="S",
    help="Seconds of steady state, with only pings and commits. [default: 60]",
)
@_bench_options
def sockets(**given: Any) -> None:
    """Measure what thousands of consumers without ZooKeeper cost a coordinator, and how they survive its crash.

    The benchmark starts a ZooKeeper and two instances. Each consumer has its own connection, the real client's link and
    connector, and fetchers that only read a clock. The benchmark measures how long it takes until all consumers are
    registered and reading, what pings and commits cost, and the round trip of a ping (the p99 is rounded up to a bound
    of the instance's histogram). Then it kills the elected instance: all consumers must move to the other instance with
    their partitions. It takes a few minutes.

    \b
    kafka-coord bench sockets
    kafka-coord bench sockets --consumers 1000 --groups 10 -o json
    """
    from kafka_coord.dev.bench.sockets.run import SMOKE, SocketsOptions, run_sockets_bench

    _measure(run_sockets_bench, SocketsOptions(), SMOKE, **given)


@bench.command()
@click.option("--records", type=click.IntRange(1_000), metavar="N", help="Records to read. [default: 1,000,000]")
@click.option("--partitions", type=click.IntRange(1, 1_000), metavar="N", help="Partitions of the topic. [default: 12]")
@click.option("--repeat", type=click.IntRange(1, 1_000), metavar="N", help="Repetitions with each client. [default: 5]")
@_bench_options
def consume(**given: Any) -> None:
    """Measure the records per second of the consumer and of a plain librdkafka client, in alternation.

    Both read the same partitions of one broker, each time in a new process: the plain client with librdkafka's default
    settings and with those of the consumer, and the consumer in batches, by iteration and with asyncio. The benchmark
    also measures the latency of a record from the producer to the application.

    \b
    kafka-coord bench consume
    kafka-coord bench consume --records 3000000 --repeat 10 -o json
    """
    from kafka_coord.dev.bench.consume.run import SMOKE, ConsumeOptions, run_consume_bench

    _measure(run_consume_bench, ConsumeOptions(), SMOKE, **given)


@bench.command()
@click.option("--only", type=click.Choice(_GROUPS_PARTS), multiple=True, help="Measure only this part; repeatable.")
@click.option(
    "--compare",
    type=click.Choice(["kafka"]),
    help="Also measure the broker's own group coordinator, in alternation.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), metavar="S", help="Seconds of each measurement. [default: 4]"
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="Measurements of each coordinator, alternating. [default: 2]",
)
@click.option("--joins", type=click.IntRange(1, 1_000), metavar="N", help="How many times a member joins. [default: 5]")
@click.option("--records", type=click.IntRange(1_000), metavar="N", help="Offset records to load. [default: 1,000,000]")
@click.option(
    "--groups", type=click.IntRange(50), metavar="N", help="Groups that move, or are listed. [default: 10,000]"
)
@click.option("--connections", type=click.IntRange(10, 9_000), metavar="N", help="Idle connections. [default: 5,000]")
@_bench_options
def groups(only: tuple[str, ...], compare: str | None, **given: Any) -> None:
    """Measure the listener for stock Kafka clients, compared with the broker's own coordinator.

    The benchmark starts ZooKeeper, one broker (two for "moving", three for "managed") and an instance beside each
    broker, and sends prepared requests. CPU is the CPU time of the answering process, as the kernel reports it.

    \b
    requests  commits, offset fetches and heartbeats: CPU for each, and the p99 at 1,000 a second
    passing   record fetches through the instance: MB per second of CPU, and the added latency
    join      a member joins a group of ten with 900 partitions (librdkafka's defaults)
    loading   an instance starts with a million records in one partition of the groups log
    moving    a broker and its instance are killed; 10,000 groups move to another instance
    idle      5,000 members that only send heartbeats
    listing   operators' commands on 10,000 groups
    managed   5,000 KIP-848 members in 50 groups on three instances; another member joins a group and leaves it

    \b
    kafka-coord bench groups --compare kafka
    kafka-coord bench groups --only requests --compare kafka --rounds 5 -o json
    """
    from kafka_coord.dev.bench.kafka_groups.options import SMOKE, KafkaGroupsOptions, Part
    from kafka_coord.dev.bench.kafka_groups.run import run_kafka_groups_bench

    given |= {"parts": tuple(Part(part) for part in only), "compare": compare is not None}
    _measure(run_kafka_groups_bench, KafkaGroupsOptions(), SMOKE, **given)


@bench.command()
@click.option("--topics", type=click.IntRange(1, 100_000), metavar="N", help="Number of topics. [default: 10,000]")
@click.option("--partitions", type=click.IntRange(1, 1_000), metavar="N", help="Partitions of each. [default: 10]")
@click.option("--groups", type=click.IntRange(1, 100_000), metavar="N", help="Groups at the change. [default: 1,000]")
@click.option("--seconds", type=click.FloatRange(1), metavar="S", help="How long each cost is measured. [default: 60]")
@_bench_options
def metadata(**given: Any) -> None:
    """Measure the mirror of a cluster's metadata: a change of source, new partitions, and the mirror's cost.

    ZooKeeper and the instance are real. The broker is a process that only answers requests for metadata, because a real
    one with 100,000 partitions would need a larger machine.

    \b
    kafka-coord bench metadata
    kafka-coord bench metadata --topics 1000 --seconds 20 -o json
    """
    from kafka_coord.dev.bench.metadata import SMOKE, MetadataOptions, run_metadata_bench

    _measure(run_metadata_bench, MetadataOptions(), SMOKE, **given)


@bench.command()
@click.option("--minutes", type=click.FloatRange(0.1, 10_000), metavar="N", help="How long it stands. [default: 120]")
@click.option(
    "--idle-s",
    type=click.FloatRange(1, 100_000),
    metavar="S",
    help="The brokers' connections.max.idle.ms, in seconds. [default: 600, as in Kafka]",
)
@click.option(
    "--reauth-s",
    type=click.FloatRange(1, 100_000),
    metavar="S",
    help="Connections use SASL; the brokers' connections.max.reauth.ms, in seconds. [default: no SASL]",
)
@click.option("--brokers", type=click.IntRange(1, 9), metavar="N", help="Number of brokers. [default: 3]")
@_bench_options
def quiet(**given: Any) -> None:
    """Count how often instances lose the right to write to the groups log while nobody uses the cluster.

    The benchmark starts ZooKeeper, three brokers and an instance beside each. A member joins a group and dies at once.
    Its session is longer than the brokers' idle limit, and it must be gone when its session has ended. At the end, a
    few groups commit once, and the slowest commit is reported. Nothing else happens in between.

    \b
    kafka-coord bench quiet
    kafka-coord bench quiet --minutes 30 --idle-s 20
    kafka-coord bench quiet --minutes 30 --idle-s 20 --reauth-s 30 -o json
    """
    from kafka_coord.dev.bench.quiet import SMOKE, QuietOptions, run_quiet_bench

    _measure(run_quiet_bench, QuietOptions(), SMOKE, **given)


@bench.command()
@click.option("--minutes", type=click.FloatRange(0.1, 10_000), metavar="N", help="How long it runs. [default: 60]")
@click.option(
    "--every-s",
    type=click.FloatRange(1, 3_600),
    metavar="S",
    help="Seconds between two examinations by the doctor. [default: 30]",
)
@click.option("--spark/--no-spark", default=None, help="With a Spark query. [default: with one]")
@click.option("--kraft/--no-kraft", default=None, help="On Kafka 4.3. [default: on Kafka 3.9]")
@_bench_options
def healthy(**given: Any) -> None:
    """Count the doctor's findings and the warnings in the logs of a cluster in which nothing is wrong.

    The benchmark starts ZooKeeper, three brokers and an instance beside each, and members of every kind: this project's
    consumers over both channels, a Spark query, and stock clients that are eager, cooperative, static or use KIP-848,
    in managed, client-assigned and native groups. While records are written, "kafka-coord doctor --strict" runs again
    and again. At the end, the lines at WARNING and above in the logs of all instances and members are counted. Both
    counts must be 0; the report has every finding and line.

    \b
    kafka-coord bench healthy
    kafka-coord bench healthy --minutes 10 --dir /tmp/healthy -o json
    """
    from kafka_coord.dev.bench.healthy.run import SMOKE, HealthyOptions, run_healthy_bench

    _measure(run_healthy_bench, HealthyOptions(), SMOKE, **given)


@bench.command()
@click.option(
    "--procedure",
    "procedures",
    type=click.Choice(_PROCEDURES),
    multiple=True,
    help="What happens; repeatable. [default: brokers, together]",
)
@click.option("--static", is_flag=True, help="The clients are static members.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="How often to run each procedure, in turn. [default: 1]",
)
@_bench_options
def rolling(procedures: tuple[str, ...], **given: Any) -> None:
    """Measure what stock clients meet in a rolling restart, compared with a rolling restart of Kafka's brokers alone.

    The benchmark starts ZooKeeper, three brokers and an instance beside each, writes records all the time, and runs a
    consumer each of confluent-kafka, kafka-python, aiokafka and Kafka's Java client, which commit synchronously. It
    counts the connections that each restart closes. The longest pause is the longest time without a record of a
    partition. It takes some minutes, and fetches the libraries once.

    \b
    brokers   the brokers are restarted, and the clients connect to them
    together  each broker is restarted with its instance, and the clients connect to the instances
    alone     the instances are restarted, while their brokers run
    give-back  the clients' groups are given back to the brokers
    take-over  they are taken over again

    \b
    kafka-coord bench rolling
    kafka-coord bench rolling --procedure brokers --procedure together --procedure alone --rounds 3 -o json
    """
    from kafka_coord.dev.bench.rolling.run import SMOKE, Procedure, RollingOptions, run_rolling_bench

    given |= {"procedures": tuple(Procedure(one) for one in procedures)}
    _measure(run_rolling_bench, RollingOptions(), SMOKE, **given)


def _size(written: str) -> tuple[int, int]:
    members, x, each = written.partition("x")
    if not (x and members.isdecimal() and each.isdecimal() and 0 < int(members[:6]) <= 20_000 and int(each[:4]) > 0):
        raise SettingsError(f"--size {written[:60]!r} is not MEMBERSxEACH, such as 1000x50")
    return int(members), int(each)


def _with(options: Options, **given: Any) -> Options:
    """Returns the options with the user's changes. None and an empty list mean that the option was not given."""
    return dataclasses.replace(options, **{name: value for name, value in given.items() if value not in (None, ())})


def _measure(
    run: Callable[[Options, Path, OnProgress], BenchReport],
    usual: Options,
    small: Options,
    *,
    smoke: bool,
    directory: Path | None,
    output: Format,
    **given: object,
) -> None:
    """Runs a benchmark in ``directory``, and shows its results. ``given`` overrides its ``usual`` options or, with
    ``smoke``, its ``small`` options."""
    options = _with(small if smoke else usual, **given)
    with _working_in(directory) as where:
        report = run(options, where, note)
    _show(output, report)


@contextmanager
def _working_in(given: Path | None) -> Iterator[Path]:
    """Yields the working directory. A temporary one is removed at the end, unless the benchmark fails, in which case it
    is kept for its logs."""
    terminate_as_interrupt()
    where = Path(tempfile.mkdtemp(prefix="kafka-coord-bench-")) if given is None else given.absolute()
    kept = given is not None
    try:
        yield where
    except Exception:
        kept = True
        note(f"logs are in {where}")
        raise
    finally:
        if not kept:
            shutil.rmtree(where, ignore_errors=True)


def _show(output: Format, report: BenchReport) -> None:
    where: Path | None = click.get_current_context().meta[_HTML]
    if where is not None:
        from kafka_coord.dev.bench.picture import picture

        try:
            where.write_text(picture(report), encoding="utf-8")
        except OSError as error:  # the measurements are still shown
            note(f"the page could not be written: {error}")
    bars = [{**dataclasses.asdict(bar), "met": _VERDICTS[bar.met]} for bar in report.bars]
    sections = [_section(table) for table in report.tables]
    summary = [*report.setup.sentences(), *report.notes]
    show(output, report.to_json(), [*sections, Section("bars", _BARS, bars)], summary=summary)


_VERDICTS = {True: "yes", False: "no", None: "-"}


def _section(table: Table) -> Section:
    first = table.rows[0] if table.rows else {}
    shown = [Column(key, right=isinstance(value, int | float)) for key, value in first.items()]
    return Section(table.name, shown, table.rows)
