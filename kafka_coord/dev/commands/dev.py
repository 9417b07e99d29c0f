"""``kafka-coord dev``: runs a real ZooKeeper and real Kafka brokers on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.errors import DevClusterError, NotFound

if TYPE_CHECKING:
    from kafka_coord.dev.cluster.status import ClusterStatus

F = TypeVar("F", bound=Callable[..., Any])

_ZOOKEEPER_PORT = 2181
"""Where every command looks for ZooKeeper by default."""

_COLUMNS = columns("name kind state address #pid log")


def default_directory() -> Path:
    """Returns ``kafka-coord/dev`` in the user's data directory (XDG)."""
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "kafka-coord" / "dev"


def directory_option(command: F) -> F:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="KAFKA_COORD_DEV_DIR",
        default=default_directory,
        show_default="~/.local/share/kafka-coord/dev",
        help="The directory for the cluster's data and logs. [env var: KAFKA_COORD_DEV_DIR]",
    )(command)


@click.group()
def dev() -> None:
    """Run a real ZooKeeper and real Kafka brokers on this machine, with a coordinator beside each broker.

    Use it to try the system out, not in production. It needs Java 17.

    \b
    kafka-coord dev up --brokers 3
    kafka-coord dev status
    kafka-coord dev down
    """


@dev.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, 20),
    metavar="N",
    help="The number of brokers. [default: 3, or as many as there were]",
)
@click.option(
    "--kraft",
    is_flag=True,
    default=None,
    help="Run Kafka 4.3 in KRaft mode; ZooKeeper then belongs to the coordinators alone. [default: Kafka 3.9 with its "
    "metadata in ZooKeeper, or as it was]",
)
@click.option(
    "--zookeepers",
    type=click.IntRange(1, 7),
    metavar="N",
    help="The number of ZooKeeper servers. [default: 1, or as many as there were]",
)
@click.option(
    "--coordinators/--no-coordinators",
    default=True,
    show_default=True,
    help="Start an instance beside each broker, with an address for Kafka clients.",
)
@click.option(
    "--channel-port",
    type=click.IntRange(1, 65_000),
    metavar="PORT",
    help="The port at which the first coordinator serves consumers without ZooKeeper; the others use the following "
    "ports. [default: off]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 3600),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the servers.",
)
@directory_option
@output_option
def up(
    brokers: int | None,
    kraft: bool | None,
    zookeepers: int | None,
    coordinators: bool,
    channel_port: int | None,
    timeout_s: float,
    directory: Path,
    output: Format,
) -> None:
    """Start the cluster, with existing data if there is any, and leave it running.

    The command starts only the servers that are not up, on their earlier ports. It returns once a record has been
    written through every broker and read back. The first time, it fetches the jars. Each instance serves the dashboard.

    \b
    kafka-coord dev up --brokers 3 --dir /tmp/coord
    kafka-coord dev up --kraft
    """
    from kafka_coord.dev.cluster import record
    from kafka_coord.dev.cluster.cluster import DevCluster
    from kafka_coord.dev.cluster.coordinator import serve_command
    from kafka_coord.dev.cluster.kafka import Broker, KafkaSettings

    def channel(broker_id: int) -> str:
        return f"127.0.0.1:{(channel_port or 0) + broker_id - 1}"

    def serve(broker: Broker) -> Sequence[str]:
        listen = ["--listen-channel", channel(broker.broker_id)] if channel_port is not None else []
        return [*serve_command(broker), *listen]

    if (before := record.load(directory)) is not None:
        kraft = before.kraft if kraft is None else kraft
        brokers = brokers or len(before.of_kind("kafka"))
        zookeepers = zookeepers or len(before.of_kind("zookeeper"))
    brokers, zookeepers = brokers or 3, zookeepers or 1
    cluster = DevCluster(
        directory,
        brokers=brokers,
        zookeepers=zookeepers,
        coordinators=coordinators,
        coordinator_command=serve,
        dashboards=coordinators,
        zookeeper_port=_ZOOKEEPER_PORT,
        kafka_settings=KafkaSettings(kraft=bool(kraft), replication=min(brokers, 3), for_instances=coordinators),
        on_progress=note,
    )
    found = cluster.up(timeout_s)
    cluster.detach()
    _show(output, found)
    if output is Format.TABLE:
        click.echo(f"\nexport KAFKA_COORD_ZOOKEEPER={found.zookeeper}")
        click.echo("kafka-coord load --flights --topic flights --partitions 12")
        click.echo("kafka-coord consume --group delays --topic flights --from-beginning --max-messages 5")
        if channel_port is not None and coordinators:
            bootstrap = ",".join(channel(number) for number in range(1, brokers + 1))
            click.echo(f"kafka-coord consume --group delays --topic flights --bootstrap {bootstrap}")
        if found.instance_servers:
            click.echo(f"any Kafka client can join a coordinated group with bootstrap.servers={found.instance_servers}")
        click.echo(f"kafka-coord dev down --dir {directory}")


@dev.command()
@directory_option
@output_option
def status(directory: Path, output: Format) -> None:
    """Show the servers, their addresses and logs. The exit code is 0 if all are up, 7 without a cluster, otherwise 9.

    \b
    kafka-coord dev status -o json
    """
    from kafka_coord.dev.cluster.status import read_status

    found = read_status(directory)
    if not found.servers:
        raise NotFound(f"there is no cluster in {directory}; start one with 'kafka-coord dev up'")
    _show(output, found)
    if not found.up:
        bad = ", ".join(server.name for server in found.servers if not server.serving)
        raise DevClusterError(f"not serving: {bad}; 'kafka-coord dev up' starts the missing servers")


@dev.command()
@directory_option
def down(directory: Path) -> None:
    """Stop the cluster, but keep its data.

    \b
    kafka-coord dev down
    """
    from kafka_coord.dev.cluster.cluster import DevCluster

    DevCluster(directory).down()
    click.echo(f"stopped the cluster in {directory}; its data is kept")


def _show(output: Format, found: ClusterStatus) -> None:
    servers = [asdict(server) | {"log": str(server.log)} for server in found.servers]
    document = asdict(found) | {"directory": str(found.directory), "up": found.up, "servers": servers}
    show(
        output,
        document,
        [Section("servers", _COLUMNS, servers)],
        summary=[
            f"Kafka {found.kafka_version} in {found.directory}",
            f"ZooKeeper at {found.zookeeper}, brokers at {found.bootstrap_servers}",
            *([f"dashboard at {found.dashboards[0]}"] if found.dashboards else ()),
        ],
    )
