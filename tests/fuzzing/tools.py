"""``scripts/fuzz --tools``: every command, page and instance on odd trees and with odd brokers' answers."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest import mock

import click

from kafka_coord.zk import SystemClock
from tests.fuzzing.odd_broker import running
from tests.fuzzing.odd_cluster import ASKING, EMPTY, READING, WRITING, OddCluster, write_tree, znodes
from tests.fuzzing.odd_files import OF_FILES, OddAcls, write_files
from tests.fuzzing.odd_pages import drawn
from tests.fuzzing.odd_requests import odd_requests
from tests.fuzzing.odd_serve import serve_trial
from tests.monitor.written import Tree
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import SimulatedStore


class _Calm:
    """What surrounds a simulated store: nothing happens."""

    def before_effect(self, store: SimulatedStore, doing: str) -> None:
        del store, doing

    def before_reply(self, store: SimulatedStore, doing: str) -> None:
        del store, doing

    def between_reads(self, store: SimulatedStore) -> None:
        del store


@contextmanager
def odd_cluster(chance: Random) -> Iterator[OddCluster]:
    """Makes a cluster on a simulated ZooKeeper, which the commands of this process use. Nothing in it is odd yet."""
    full, empty = SimulatedZooKeeper(), SimulatedZooKeeper()

    def connected(settings: object = None, *_: object, **__: object) -> SimulatedStore:
        zookeeper = empty if getattr(settings, "hosts", "") == EMPTY else full
        store = OddAcls(zookeeper, SystemClock(), _Calm(), 3_600_000)
        store.connect(zookeeper.replicas[0])
        return store

    with (
        running() as broker,
        running() as instance,
        mock.patch("kafka_coord.cli.connection.connect_with", connected),
        mock.patch("kafka_coord.cli.dashboard.connect_with", connected),
        mock.patch("kafka_coord.zk.session.connect", connected),
        TemporaryDirectory(prefix="fuzz-") as folder,
    ):
        tree = Tree(connected())  # type: ignore[arg-type]
        write_tree(tree, broker, instance)
        cluster = OddCluster(tree, connected, broker, instance, chance, Path(folder))
        cluster.told += write_files(cluster.folder, tree, znodes(tree), chance)
        yield cluster


def trial(cluster: OddCluster, *, commands: int, pages: bool = True, requests: int = 0) -> Iterator[tuple[str, str]]:
    """Makes the cluster odd, and yields what it tries, with the fault or ``""``."""
    chance = cluster.chance
    oddness = chance.choice(("tree", "brokers", "both"))
    for one in (cluster.broker, cluster.instance):
        one.becomes(chance, sane=oddness == "tree")
    if oddness != "brokers":
        cluster.spoil_tree(3)
    if pages:
        yield from cluster.pages()
    yield from odd_requests(cluster, requests)
    every = [*READING, *ASKING * 2, *WRITING, *OF_FILES]
    for command in chance.sample(every, commands):
        yield command, cluster.command(command)


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--seed", "first", default=0, show_default=True, help="The first seed; the next trials take the next.")
@click.option("--native", is_flag=True, help="Also give librdkafka odd answers, in which it may crash.")
@click.option("--verbose", is_flag=True, help="Also print what was tried.")
def main(minutes: float, first: int, native: bool, verbose: bool) -> None:
    """Makes the values in a tree, and the answers of a broker and an instance, odd, and runs every command, every page,
    and an instance of its own.

    Exit code 1 if any ended with an unexpected error, or took longer than its time limit. A trial's seed repeats it.
    Each trial has a process of its own.
    """
    context = multiprocessing.get_context("fork")
    until, tried, found = time.monotonic() + minutes * 60, 0, set[str]()
    for seed in itertools.count(first):
        if time.monotonic() >= until:
            break
        here, there = context.Pipe()
        process = context.Process(target=_try, args=(there, seed, native))
        process.start()
        there.close()
        with suppress(EOFError):
            while True:
                what, fault, told = here.recv()
                tried += 1
                if verbose:
                    click.echo(f"{time.strftime('%X')} seed {seed}: {what}")
                kind = fault.strip().rpartition("\n")[2]
                if fault and kind not in found:
                    found.add(kind)
                    click.echo(f"FAULT in {what} (--seed {seed}): {fault}\n  odd are:\n    {told[-6_000:]}\n")
        process.join()
        if process.exitcode:
            found.add("died")
            click.echo(f"FAULT: the process of --seed {seed} ended with {process.exitcode}, after {what}")
    click.echo(f"tried {tried} commands and pages of {seed - first} trees: {len(found)} faults")
    sys.exit(1 if found else 0)


def _try(reports: Connection, seed: int, native: bool) -> None:
    """The process of one trial."""
    logging.disable(logging.CRITICAL)
    with odd_cluster(Random(seed)) as cluster:
        for one in (cluster.broker, cluster.instance):
            one.spares_librdkafka = not native
        trials = trial(cluster, commands=8, requests=40), drawn(cluster), serve_trial(cluster)
        for what, fault in itertools.chain(*trials):
            told = "\n    ".join([*cluster.told, *cluster.broker.told, *cluster.instance.told]) if fault else ""
            reports.send((what, fault, told))


if __name__ == "__main__":
    main()
