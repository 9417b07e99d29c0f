"""``kafka-coord dashboard``: serves the dashboard without an instance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.failures import stopping_at_signals
from kafka_coord.cli.output import note, warnings_shown
from kafka_coord.errors import SettingsError
from kafka_coord.settings import Settings, host_and_port
from kafka_coord.zk import connect_with

if TYPE_CHECKING:
    from kafka_coord.groups.lag import LagService
    from kafka_coord.monitor.dashboard.live import Live
    from kafka_coord.monitor.dashboard.sources import Sources


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:8087",
    show_default=True,
    metavar="HOST:PORT",
    help="Serve the dashboard at this address.",
)
@click.option(
    "--http-host-names",
    metavar="NAMES",
    help="Additional host names that browsers may use for the dashboard, separated by commas.",
)
@connection_options
def dashboard(listen: str, http_host_names: str | None) -> None:
    """Serve the live, read-only dashboard of a cluster until Ctrl-C: groups, owners, lag, rebalances and instances.

    Every instance started with `serve --listen-http` also serves the dashboard, at /dashboard/.

    \b
    kafka-coord dashboard --zookeeper zk1:2181/kafka
    kafka-coord dashboard --listen 0.0.0.0:8087
    """
    from kafka_coord.monitor.dashboard.site import PAGE, Site
    from kafka_coord.monitor.exposition import Exposition

    settings = current_settings(serve__http_host_names=http_host_names)
    try:
        host, _ = host_and_port(listen)
    except ValueError as error:
        raise SettingsError(f"--listen: {error}") from None
    with open_store(settings):
        pass  # to report a connection error now rather than on the page
    live = live_documents(settings)
    with stopping_at_signals() as stopping, warnings_shown():
        served = Exposition(
            listen,
            None,
            lambda: (True, {"healthy": True}),
            setting="--listen",
            site=Site(live),
            host_names=settings.serve.host_names,
        )
        try:
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"http://{shown}:{served.port}{PAGE}")
            note("press Ctrl-C to stop")
            stopping.event.wait()
        finally:
            live.close()
            served.close()


def live_documents(settings: Settings, lag_service: LagService | None = None) -> Live:
    """Returns the live documents behind the dashboard. They have a ZooKeeper session of their own, which is opened when
    the first page is requested. ``lag_service`` may be shared with the lag sampler."""
    from kafka_coord.monitor.dashboard.live import Live

    return Live(partial(_open_sources, settings, lag_service))


def _open_sources(settings: Settings, lag_service: LagService | None, wake: Callable[[], None]) -> Sources:
    from kafka_coord.groups.lag import LagService
    from kafka_coord.groups.next_records import next_records_of
    from kafka_coord.monitor.dashboard.sources import Sources

    zookeeper = settings.zookeeper
    store = connect_with(zookeeper, settings)
    return Sources(
        store,
        zookeeper.hosts,
        settings.kafka.properties,
        session_timeout_ms=zookeeper.session_timeout_ms,
        tls=zookeeper.tls,
        wake=wake,
        service=lag_service
        or LagService(
            next_records=next_records_of(store, settings.kafka.properties),
            warning_ms=settings.serve.lag_warning_ms,
        ),
    )
