"""``kafka-coord serve``: one coordinator instance beside a broker."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafka_coord.cli.connection import connection_options, current_settings, zookeeper_options
from kafka_coord.cli.stopping import stopping_at_signals
from kafka_coord.errors import SettingsError, StoreUnavailable
from kafka_coord.settings import ServeSettings, Settings

if TYPE_CHECKING:
    from kafka_coord.coordinator.options import CoordinatorOptions
    from kafka_coord.coordinator.service import CoordinatorService
    from kafka_coord.frontends.kafka.listener import KafkaListener
    from kafka_coord.frontends.socket.leadership_view import ServiceLeadership
    from kafka_coord.frontends.socket.server import GatewayServer
    from kafka_coord.monitor.metrics import MetricsServer
    from kafka_coord.zk.store import Store

log = logging.getLogger("kafka_coord.serve")

_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
_RETRY_S = 1.0
_POLL_S = 0.1
"""Seconds between checks whether the service has ended by itself. A signal to stop wakes it at once."""
_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "[::]", "::"})  # noqa: S104  not bound here, recognised


@click.command()
@click.option("--broker-id", metavar="ID", help="The broker.id of the broker beside this instance.")
@click.option(
    "--listen-http", metavar="HOST:PORT", help="Serve /metrics (Prometheus) and /health at this address. [default: off]"
)
@click.option(
    "--listen-channel", metavar="HOST:PORT", help="Serve consumers without ZooKeeper at this address. [default: off]"
)
@click.option(
    "--advertise-channel",
    metavar="HOST:PORT",
    help="The address consumers connect to. [default: the listening address]",
)
@click.option("--channel-cert-file", metavar="FILE", help="PEM certificate: turn on TLS for consumers. [default: off]")
@click.option(
    "--channel-key-file", metavar="FILE", help="The certificate's PEM key. [default: in the certificate's file]"
)
@click.option(
    "--channel-client-ca-file",
    metavar="FILE",
    help="PEM certificates of the authority that must sign consumers' certificates. [default: none]",
)
@click.option(
    "--channel-users-file",
    metavar="FILE",
    help="TOML file with the users who may join each group. [default: everybody may join every group]",
)
@click.option(
    "--listen-kafka",
    metavar="HOST:PORT",
    help="Serve Kafka clients at this address; the broker handles everything except groups. [default: off]",
)
@click.option(
    "--broker-listener",
    metavar="HOST:PORT",
    help="With --listen-kafka: the broker's listener whose advertised address is --listen-kafka's.",
)
@click.option(
    "--kafka-rewrite",
    is_flag=True,
    default=None,
    help="With --listen-kafka: replace the brokers' addresses in their answers with those of the instances. "
    "All instances must be given this, or none.",
)
@click.option(
    "--kafka-hold-heartbeats/--no-kafka-hold-heartbeats",
    default=None,
    help="Whether Heartbeats of Kafka clients wait for something to say, so that a rebalance is pushed. [default: on]",
)
@click.option(
    "--kafka-certificate", metavar="FILE", help="PEM certificate: turn on TLS for Kafka clients. [default: off]"
)
@click.option("--kafka-key", metavar="FILE", help="The certificate's PEM key. [default: in the certificate's file]")
@click.option(
    "--kafka-max-connections", metavar="COUNT", help="The most connections of Kafka clients. [default: 10000]"
)
@click.option(
    "--kafka-max-connections-per-ip",
    metavar="COUNT",
    help="The most connections from one address. [default: three quarters of all]",
)
@click.option(
    "--kafka-max-request-bytes",
    metavar="BYTES",
    help="The largest request, like the broker's socket.request.max.bytes. [default: 104857600]",
)
@click.option(
    "--kafka-queued-max-bytes",
    metavar="BYTES",
    help="Memory for the incomplete requests and unread answers of all Kafka clients. [default: 268435456]",
)
@click.option(
    "--kafka-max-idle-ms",
    metavar="MS",
    help="How long a Kafka client's connection may be idle, like the broker's connections.max.idle.ms. "
    "[default: 600000]",
)
@click.option(
    "--kafka-initial-rebalance-delay-ms",
    metavar="MS",
    help="How long an empty group waits for more members, like the broker's group.initial.rebalance.delay.ms. "
    "[default: 3000]",
)
@click.option(
    "--session-timeout-ms",
    metavar="MS",
    help="How long until another instance replaces a dead one, in ms. [default: 10000]",
)
@click.option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR. [default: INFO]")
@click.option(
    "--look-interval-ms", metavar="MS", help="How often to look at a group without an event. [default: 60000]"
)
@connection_options
def serve(
    broker_id: str | None,
    listen_http: str | None,
    listen_channel: str | None,
    advertise_channel: str | None,
    channel_cert_file: str | None,
    channel_key_file: str | None,
    channel_client_ca_file: str | None,
    channel_users_file: str | None,
    listen_kafka: str | None,
    broker_listener: str | None,
    kafka_rewrite: bool | None,
    kafka_hold_heartbeats: bool | None,
    kafka_certificate: str | None,
    kafka_key: str | None,
    kafka_max_connections: str | None,
    kafka_max_connections_per_ip: str | None,
    kafka_max_request_bytes: str | None,
    kafka_queued_max_bytes: str | None,
    kafka_max_idle_ms: str | None,
    kafka_initial_rebalance_delay_ms: str | None,
    session_timeout_ms: str | None,
    log_level: str | None,
    look_interval_ms: str | None,
) -> None:
    """Run one coordinator instance beside a broker, in the foreground, until SIGTERM or Ctrl-C.

    All instances stand for election in ZooKeeper; the elected one coordinates, the others wait. When told to stop,
    it first resigns, so that another takes over at once. Under systemd (Type=notify) it reports ready once it is
    registered in ZooKeeper.

    \b
    kafka-coord serve --broker-id 1 --zookeeper zk1:2181,zk2:2181/kafka
    kafka-coord serve --config /etc/kafka-coord.toml
    """
    settings = current_settings(
        serve__broker_id=broker_id,
        serve__listen_http=listen_http,
        serve__listen_channel=listen_channel,
        serve__advertise_channel=advertise_channel,
        serve__channel_cert_file=channel_cert_file,
        serve__channel_key_file=channel_key_file,
        serve__channel_client_ca_file=channel_client_ca_file,
        serve__channel_users_file=channel_users_file,
        serve__listen_kafka=listen_kafka,
        serve__broker_listener=broker_listener,
        serve__kafka_rewrite=kafka_rewrite,
        serve__kafka_hold_heartbeats=kafka_hold_heartbeats,
        serve__kafka_certificate=kafka_certificate,
        serve__kafka_key=kafka_key,
        serve__kafka_max_connections=kafka_max_connections,
        serve__kafka_max_connections_per_ip=kafka_max_connections_per_ip,
        serve__kafka_max_request_bytes=kafka_max_request_bytes,
        serve__kafka_queued_max_bytes=kafka_queued_max_bytes,
        serve__kafka_max_idle_ms=kafka_max_idle_ms,
        serve__kafka_initial_rebalance_delay_ms=kafka_initial_rebalance_delay_ms,
        serve__log_level=log_level,
        serve__look_interval_ms=look_interval_ms,
        zookeeper__session_timeout_ms=session_timeout_ms,
    )
    if settings.serve.broker_id is None:
        raise SettingsError(
            "serve.broker_id is not set: give --broker-id (or KAFKA_COORD_SERVE_BROKER_ID), "
            "the broker.id of the broker beside this instance"
        )
    logging.basicConfig(level=settings.serve.log_level, format=_LOG_FORMAT, force=True)
    if settings.serve.log_level != "DEBUG":
        # They log a line or two for every attempt to connect; our own lines report the outcome.
        logging.getLogger("kafka_coord.zk.kazoo").setLevel(logging.ERROR)
    run_service(settings, settings.serve.broker_id)


def run_service(settings: Settings, broker_id: int) -> None:
    """Runs until told to stop, or until the service ends by itself; then raises the error that ended it."""
    from kafka_coord.coordinator.gc_tuning import collecting_rarely
    from kafka_coord.coordinator.service import CoordinatorService
    from kafka_coord.frontends.socket.leadership_view import ServiceLeadership

    with stopping_at_signals(_say_stopping) as asked, collecting_rarely():
        stopping = asked.event
        store = _connect_patiently(settings, stopping)
        if store is None:
            return
        try:
            leadership_view = ServiceLeadership()
            gateway = _gateway(settings.serve, broker_id, leadership_view, store)
            kafka = _kafka_listener(settings, broker_id, store)
            published = endpoints(settings.serve, gateway)
            service = CoordinatorService(store, broker_id, published, options_of(settings.serve))
            leadership_view.service = service
            metrics = _metrics(settings.serve, service, store, gateway, kafka)
            service.start()
            try:
                ready = False
                while not stopping.wait(_POLL_S) and not service.wait(0.0):
                    if gateway is not None:
                        gateway.raise_failure()
                    if not ready and service.wait_registered(0.0):
                        ready = True
                        log.info("ready broker_id=%d zookeeper=%s", broker_id, settings.zookeeper.hosts)
                        notify_systemd(f"READY=1\nSTATUS=registered as instance {broker_id}")
            finally:
                notify_systemd("STOPPING=1")
                service.stop()
                if gateway is not None:
                    gateway.close()
                if kafka is not None:
                    kafka.close()
                if metrics is not None:
                    metrics.close()
        finally:
            store.close()
        log.info("stopped broker_id=%d", broker_id)


def _metrics(
    serve_settings: ServeSettings,
    service: CoordinatorService,
    store: Store,
    gateway: GatewayServer | None,
    kafka: KafkaListener | None,
) -> MetricsServer | None:
    if serve_settings.listen_http is None:
        return None
    from kafka_coord.monitor.metrics import MetricsServer

    of_sockets = gateway.gateway if gateway is not None else None
    server = MetricsServer(serve_settings.listen_http, service, store, of_sockets, kafka)
    log.info("serving /metrics and /health address=%s", serve_settings.listen_http)
    return server


def _gateway(
    serve_settings: ServeSettings, broker_id: int, leadership_view: ServiceLeadership, store: Store
) -> GatewayServer | None:
    if serve_settings.listen_channel is None:
        return None
    from kafka_coord.frontends.socket.access import Access
    from kafka_coord.frontends.socket.server import GatewayServer

    users = serve_settings.channel_users_file
    server = GatewayServer(
        serve_settings.listen_channel,
        store,
        broker_id,
        leadership_view,
        tls=tls_context(
            serve_settings.channel_cert_file, serve_settings.channel_key_file, serve_settings.channel_client_ca_file
        ),
        access=Access.load(users) if users is not None else None,
    )
    log.info("serving consumers over sockets address=%s", server.address)
    return server


def _kafka_listener(settings: Settings, broker_id: int, store: Store) -> KafkaListener | None:
    serve_settings = settings.serve
    if serve_settings.listen_kafka is None or serve_settings.broker_listener is None:
        return None
    from kafka_coord.classic_groups.machine import GroupLimits
    from kafka_coord.frontends.kafka.limits import ClientLimits
    from kafka_coord.frontends.kafka.listener import KafkaListener
    from kafka_coord.grouplog.authentication import BrokerSecurity

    limits = ClientLimits(
        max_connections=serve_settings.kafka_max_connections,
        max_connections_per_ip=serve_settings.kafka_max_connections_per_ip,
        max_request_bytes=serve_settings.kafka_max_request_bytes,
        max_kept_bytes=serve_settings.kafka_queued_max_bytes,
        idle_s=serve_settings.kafka_max_idle_ms / 1000,
    )
    group_limits = GroupLimits(initial_rebalance_delay_s=serve_settings.kafka_initial_rebalance_delay_ms / 1000)
    address, behind = serve_settings.listen_kafka, serve_settings.broker_listener
    security = BrokerSecurity.of(settings.kafka.properties)
    tls = tls_context(serve_settings.kafka_certificate, serve_settings.kafka_key)
    listener = KafkaListener(
        address,
        behind,
        store,
        broker_id,
        limits=limits,
        security=security,
        tls=tls,
        rewrite=serve_settings.kafka_rewrite,
        group_limits=group_limits,
        holds=serve_settings.kafka_hold_heartbeats,
    )
    log.info("serving Kafka clients address=%s", listener.address)
    return listener


def tls_context(certificate: Path | None, key: Path | None, client_ca: Path | None = None) -> ssl.SSLContext | None:
    """The TLS context for consumers. With a client CA, they must present a certificate it has signed."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cannot use {certificate} and its key for TLS: {error}") from None
    return context


def _connect_patiently(settings: Settings, stopping: threading.Event) -> Store | None:
    """Waits for ZooKeeper without a limit, because it may start last after a power cut. ``None``: stopped meanwhile."""
    from kafka_coord.zk import connect

    log.info("connecting zookeeper=%s", settings.zookeeper.hosts)
    while not stopping.is_set():
        try:
            return connect(
                settings.zookeeper.hosts,
                session_timeout_ms=settings.zookeeper.session_timeout_ms,
                connect_timeout_s=settings.zookeeper.connect_timeout_ms / 1000,
                options=zookeeper_options(settings.zookeeper),
            )
        except StoreUnavailable as error:
            log.warning("waiting for ZooKeeper: %s", error)
            stopping.wait(_RETRY_S)
    return None


def endpoints(serve_settings: ServeSettings, gateway: GatewayServer | None = None) -> dict[str, str]:
    """The addresses that the instance publishes: the host name if it listens on every address."""
    channel = serve_settings.advertise_channel or (gateway.address if gateway is not None else None)
    listening = {"http": serve_settings.listen_http, "channel": channel, "kafka": serve_settings.listen_kafka}
    published = {}
    for name, address in listening.items():
        if address is not None:
            host, _, port = address.rpartition(":")
            published[name] = f"{socket.getfqdn() if host in _EVERY_ADDRESS else host}:{port}"
    return published


def options_of(serve_settings: ServeSettings) -> CoordinatorOptions:
    """The coordinator's options that are set; the others keep their defaults."""
    from kafka_coord.coordinator.options import CoordinatorOptions

    names = (
        "look_interval_ms",
        "settled_after_ms",
        "whole_look_interval_ms",
        "retry_backoff_ms",
        "retry_backoff_max_ms",
        "channel_retirement_ms",
    )
    given = {name: getattr(serve_settings, name) for name in names}
    return CoordinatorOptions(**{name: value for name, value in given.items() if value is not None})


def _say_stopping(received: signal.Signals) -> None:
    log.info("stopping: received %s", received.name)


def notify_systemd(state: str) -> None:
    """Notifies systemd if it started this process (``NOTIFY_SOCKET``, see sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.connect("\0" + address[1:] if address.startswith("@") else address)
        notifications.sendall(state.encode())
