"""``scripts/clients [NAME …]``: runs each client, or those with these name prefixes, and prints the results."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.errors import KafkaCoordError, VerificationFailed
from tests.frontends.kafka.conftest import Front, started
from tests.frontends.kafka.tried.connect import try_connect, try_console
from tests.frontends.kafka.tried.contenders import CONTENDERS, Contender
from tests.frontends.kafka.tried.older import OLDER, older_cluster
from tests.frontends.kafka.tried.play import Instances, NotSeen, Play
from tests.waiting import eventually

OTHERS: dict[str, Callable[[Instances, Path], str]] = {
    "Kafka Connect 3.9.2": try_connect,
    "console consumer 3.9.2": try_console,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option("--managed", is_flag=True, help="In managed groups, with an elected coordinator.")
@click.option("--brokers", type=click.Choice(list(OLDER)), help="The brokers' release. [default: 3.9.2]")
def main(names: tuple[str, ...], brokers: str | None, *, managed: bool) -> None:
    """Run stock Kafka clients against three instances on a separate cluster: join, share, leave, lose the coordinator,
    resume, be a static member. Each client is fetched once, with its language's package tool.

    \b
    scripts/clients                                     # all of them, some 15 minutes
    scripts/clients kafka-clients                       # those with this name prefix
    scripts/clients --brokers 2.8.2 confluent-kafka     # behind older brokers
    scripts/clients --managed confluent-kafka           # the coordinator assigns
    """
    logging.disable(logging.WARNING)
    cluster = [functools.partial(older_cluster, brokers)] if brokers else []
    failed = False
    with (
        tempfile.TemporaryDirectory() as directory,
        started(Path(directory), *cluster) as front,
        elected(front) if managed else contextlib.nullcontext(),
    ):
        for contender in CONTENDERS:
            if not names or contender.name.startswith(names):
                failed = _tried(contender, front, managed=managed) or failed
        for name, play in OTHERS.items():
            if not managed and (not names or name.startswith(names)):
                failed = _other(name, play, front, Path(directory)) or failed
    sys.exit(VerificationFailed.exit_code if failed else 0)


@contextlib.contextmanager
def elected(front: Front) -> Iterator[None]:
    """Runs the elected coordinator, which decides about managed groups."""
    service = CoordinatorService(front.store, next(iter(front.listeners)), {}, CoordinatorOptions())
    service.start()
    try:
        eventually(lambda: service.registered)
        yield
    finally:
        service.stop()


def _tried(contender: Contender, front: Front, *, managed: bool) -> bool:
    """Runs a client. Returns whether it failed. If this machine lacks a tool for it, reports it as not tried."""
    try:
        contender.program()
    except KafkaCoordError as error:
        click.echo(f"| {contender.name} | | not tried: {error} | |")
        return False
    failed = False
    for strategy in contender.strategies:
        play = Play(contender, strategy, front)
        if managed:
            ensure_group(front.store, play.group)
        seen = play.run()
        steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in seen.steps)
        failed = failed or bool(seen.failure)
        click.echo(f"| {contender.name} ({seen.version}) | {strategy} | {seen.failure or 'all'} | {steps} |")
    return failed


def _other(name: str, play: Callable[[Instances, Path], str], front: Instances, directory: Path) -> bool:
    try:
        said, failed = play(front, directory), False
    except NotSeen as error:
        said, failed = str(error), True
    except KafkaCoordError as error:
        said, failed = f"not tried: {error}", False
    click.echo(f"| {name} | | {said} | |")
    return failed


if __name__ == "__main__":
    main()
