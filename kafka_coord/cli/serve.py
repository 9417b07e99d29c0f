"""``kafka-coord serve``: runs one coordinator instance beside a broker, and tells systemd, the log and the other
programs of the cluster when it is ready, and what it waits for."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafka_coord import __version__
from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.failures import stopping_at_signals
from kafka_coord.cli.settings import listed
from kafka_coord.errors import BrokerError, SettingsError, StoreError, StoreUnavailable, TreeUnfinished
from kafka_coord.model import Process
from kafka_coord.model.names import group_pattern, left_to_brokers
from kafka_coord.monitor.metrics import state
from kafka_coord.renewed import Renewed
from kafka_coord.settings import KafkaSettings, ServeSettings, Settings
from kafka_coord.zk import connect_with, layout
from kafka_coord.zk.brokers import read_brokers
from kafka_coord.zk.root import OwnTree
from kafka_coord.zk.store import SessionState

if TYPE_CHECKING:
    from kafka_coord.coordinator.deadlines import CoordinatorOptions
    from kafka_coord.coordinator.mirroring import MetadataOptions
    from kafka_coord.coordinator.service import CoordinatorService
    from kafka_coord.frontends.kafka.listener import KafkaListener
    from kafka_coord.frontends.socket.gateway import LeadershipView
    from kafka_coord.frontends.socket.server import GatewayServer
    from kafka_coord.groups.lag import LagService
    from kafka_coord.monitor.dashboard.site import Site
    from kafka_coord.monitor.metrics import LagSampler, MetricsServer
    from kafka_coord.monitor.tracing import Tracing
    from kafka_coord.zk.store import Store

log = logging.getLogger("kafka_coord.serve")


class Status:
    """What the instance ``broker_id`` has told about itself. Call :meth:`look` often."""

    def __init__(self, broker_id: int, service: CoordinatorService, kafka: KafkaListener | None) -> None:
        self._broker_id, self._service, self._kafka = broker_id, service, kafka
        self._was_ready = False
        self._told = ""

    def look(self) -> None:
        """Tells what has changed since the last call. Once the instance has been ready, it stays so."""
        is_ready, waiting_for = state(self._service, self._kafka)
        is_ready = is_ready or self._was_ready
        words = f"registered as instance {self._broker_id}" if self._service.registered else "not registered yet"
        status = f"{words}; waiting for {waiting_for}" if waiting_for else words
        if is_ready and not self._was_ready:
            self._was_ready = True
            why = f" although it waits for {waiting_for}" if waiting_for else ""
            log.info("ready broker_id=%d%s", self._broker_id, why, extra={"event": "ready"})
            notify_systemd(f"READY=1\nSTATUS={status}")
        elif status != self._told and self._service.registered:
            notify_systemd(f"STATUS={status}")
        self._told = status
        with contextlib.suppress(StoreUnavailable):
            only_registers = self._kafka is None  # then the registration itself says that it is ready
            self._service.tell(
                ready=is_ready or only_registers,
                waiting_for="" if only_registers else waiting_for,
                withdrawn=() if self._kafka is None or self._kafka.is_listening else ("kafka",),
            )


class Warned:
    """Warns in the log of what will do harm and what nobody else may see: a broker id of no broker, and certificates
    that end. Call :meth:`look` often."""

    def __init__(self, broker_id: int, store: Store, renewed: Mapping[str, Renewed[Any]]) -> None:
        self._broker_id, self._store, self._renewed = broker_id, store, renewed
        self._due = time.monotonic() + _FIRST_LOOK_S
        self._knows_broker = False

    def look(self) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_EVERY_S
        for one in self._renewed.values():
            one.say_if_ending()
        if not self._knows_broker and self._store.session.state is SessionState.CONNECTED:
            with contextlib.suppress(StoreError):
                self._look_at_broker()

    def _look_at_broker(self) -> None:
        brokers = read_brokers(self._store)
        if brokers is None or any(one.path == layout.broker(self._broker_id) for one in brokers.unreadable):
            return
        numbers, self._knows_broker = {one.broker_id for one in brokers.live}, True
        if self._broker_id not in numbers:
            log.warning(
                "no broker %d is registered (registered: %s); give --broker-id the broker.id of the broker beside this"
                " instance, or start that broker",
                *(self._broker_id, ", ".join(map(str, sorted(numbers))) or "none"),
                extra={"event": "no_broker"},
            )


def notify_systemd(state: str) -> None:
    """Notifies systemd if it started this process (``NOTIFY_SOCKET``, see sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.connect("\0" + address[1:] if address.startswith("@") else address)
        notifications.sendall(state.encode())


F = TypeVar("F", bound=Callable[..., Any])

_LOG_FORMAT = "%(asctime)sZ %(levelname)-7s %(name)s %(message)s"
"""Times are in UTC, as in everything that the commands and the dashboard show."""
_RETRY_S = 1.0
_POLL_S = 0.05
"""How often, in seconds, to check whether the service has ended on its own. A stop signal ends the wait immediately."""
_FIRST_LOOK_S, _LOOK_EVERY_S = 60.0, 3600.0
"""When, in seconds, to look for what the log is to warn of. At a boot, a broker often comes after its instance."""
_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "[::]", "::"})  # noqa: S104  only recognised here, not bound


_OPTIONS = {
    "--broker-id ID": "The broker.id of the broker beside this instance.",
    "--listen-http HOST:PORT": "Serve /metrics (Prometheus), /health and /dashboard/ at this address. [default: off]",
    "--advertise-http HOST:PORT": "The address that browsers connect to. [default: the listening address]",
    "--http-dashboard/--no-http-dashboard": (
        "With --listen-http: serve the dashboard, which shows groups, hosts and offsets. [default: on]"
    ),
    "--http-host-names NAMES": "Additional host names that browsers may use for --listen-http, separated by commas.",
    "--http-operators FILE": (
        "A TOML file with the operators who may act in the dashboard: pause, resume, rebalance, evict, reset. Needs "
        "--http-cert-file, unless --listen-http is on 127.0.0.1. [default: the dashboard is read-only]"
    ),
    "--http-cert-file FILE": (
        "A PEM certificate, which turns on TLS for HTTP. Commands and dashboards verify it against the system's CAs, "
        "or those in SSL_CERT_FILE. [default: off]"
    ),
    "--http-key-file FILE": "The PEM private key. [default: in the certificate file]",
    "--http-client-ca-file FILE": (
        "The PEM certificates of the CA that signs operator certificates; others need none. [default: none]"
    ),
    "--listen-channel HOST:PORT": "Serve consumers that do not connect to ZooKeeper at this address. [default: off]",
    "--advertise-channel HOST:PORT": "The address that consumers connect to. [default: the listening address]",
    "--channel-cert-file FILE": "A PEM certificate, which turns on TLS for consumers. [default: off]",
    "--channel-key-file FILE": "The PEM private key. [default: in the certificate file]",
    "--channel-client-ca-file FILE": (
        "The PEM certificates of the CA that must sign consumer certificates. [default: none]"
    ),
    "--channel-users-file FILE": (
        "A TOML file that says which users may join which groups. [default: anyone may join any group]"
    ),
    "--listen-kafka HOST:PORT": (
        "Serve Kafka clients at this address; the broker handles everything except groups. [default: off]"
    ),
    "--broker-listener HOST:PORT": (
        "With --listen-kafka: the broker's listener that advertises the address of --listen-kafka."
    ),
    "--kafka-rewrite": (
        "With --listen-kafka: replace the brokers' addresses in their responses with the instances' addresses. Set it "
        "on all instances or on none."
    ),
    "--kafka-hold-heartbeats/--no-kafka-hold-heartbeats": (
        "Hold the Heartbeat requests of Kafka clients, so that the response can announce a rebalance immediately. "
        "[default: on]"
    ),
    "--new-groups WHICH": (
        "With --listen-kafka: who coordinates groups that exist nowhere yet: the instances (coordinated), the brokers "
        "(native), or the brokers only for names that match a regular expression (native:PATTERN). Must be the same on "
        "all instances. [default: coordinated]"
    ),
    "--managed-groups PATTERN": (
        "With --listen-kafka: a regular expression (RE2). Groups of classic clients whose whole name matches it are "
        "managed from their first member on. Must be the same on all instances. [default: none]"
    ),
    "--kafka-certificate FILE": "A PEM certificate, which turns on TLS for Kafka clients. [default: off]",
    "--kafka-key FILE": "The PEM private key. [default: in the certificate file]",
    "--kafka-max-connections COUNT": (
        "The maximum number of Kafka client connections. Each may need two open files. [default: 10000]"
    ),
    "--kafka-max-connections-per-ip COUNT": (
        "The maximum number of connections from one address. [default: three quarters of the maximum]"
    ),
    "--kafka-max-request-bytes BYTES": (
        "The maximum size of a request, like the broker's socket.request.max.bytes. [default: 104857600]"
    ),
    "--kafka-queued-max-bytes BYTES": (
        "The maximum memory for incomplete requests and unsent responses of all Kafka clients. [default: 268435456]"
    ),
    "--kafka-max-idle-ms MS": (
        "How long a Kafka client's connection may be idle, like the broker's connections.max.idle.ms. [default: 600000]"
    ),
    "--kafka-initial-rebalance-delay-ms MS": (
        "How long an empty group waits for more members, like the broker's group.initial.rebalance.delay.ms. "
        "[default: the broker's setting]"
    ),
    "--kafka-consumer-session-timeout-ms MS": (
        "How long a KIP-848 member may be silent, like the broker's group.consumer.session.timeout.ms. Keep it above "
        "15000: librdkafka waits up to 10 seconds before it reconnects. [default: the broker's setting]"
    ),
    "--metadata SOURCE": (
        "Where the brokers and topics are read: zookeeper, brokers, or auto (from ZooKeeper, and from the brokers once "
        "the cluster migrates to KRaft or has no /brokers). [default: auto]"
    ),
    "--bootstrap ADDRESSES": (
        "Brokers to ask for metadata: [LISTENER=]HOST:PORT, separated by commas. Needed if the cluster was never in "
        "ZooKeeper. [default: the brokers in ZooKeeper]"
    ),
    "--session-timeout-ms MS": (
        "The ZooKeeper session timeout, after which another instance replaces a dead one, in ms. [default: 10000]"
    ),
    "--log-level LEVEL": "DEBUG, INFO, WARNING or ERROR. [default: INFO]",
    "--log-format FORMAT": "text, or json: one object per line. [default: text]",
    "--trace-rebalances": (
        "Export rebalances as OpenTelemetry traces (see the OTEL_* variables). Needs the extra otel. [default: off]"
    ),
    "--look-interval-ms MS": "How often to check a group that has no events, in ms. [default: 60000]",
}
"""Maps each option and its metavar to its help text. The settings define the defaults."""


def _serve_options(command: F) -> F:
    for option, text in reversed(_OPTIONS.items()):
        name, _, metavar = option.partition(" ")
        command = click.option(name, metavar=metavar or None, is_flag=not metavar, default=None, help=text)(command)
    return command


@click.command()
@_serve_options
@connection_options
def serve(session_timeout_ms: str | None, **serve_options: str | bool | None) -> None:
    """Run one coordinator instance beside a broker, in the foreground, until SIGTERM or Ctrl-C.

    All instances run for election in ZooKeeper: the elected one coordinates, and the others stand by. An elected
    instance resigns before it stops, so another takes over immediately. Under systemd (Type=notify), an instance
    reports that it is ready once it is registered in ZooKeeper and, with --listen-kafka, serves every group whose
    partition of the groups log its broker leads.

    SIGUSR1 sets the log level to DEBUG, and the next SIGUSR1 restores it.

    \b
    kafka-coord serve --broker-id 1 --zookeeper zk1:2181,zk2:2181/kafka
    kafka-coord serve --config /etc/kafka-coord.toml
    """
    settings = current_settings(
        zookeeper__session_timeout_ms=session_timeout_ms,
        **{f"serve__{name}": value for name, value in serve_options.items()},
    )
    if settings.serve.broker_id is None:
        raise SettingsError(
            "serve.broker_id is not set; give --broker-id (or KAFKA_COORD_SERVE_BROKER_ID), "
            "the broker.id of the broker beside this instance"
        )
    if settings.serve.managed_groups is not None:
        group_pattern(settings.serve.managed_groups)
    left_to_brokers(settings.serve.new_groups)
    logging.basicConfig(level=settings.serve.log_level, force=True)
    formatter = logging.Formatter(_LOG_FORMAT)
    formatter.converter = time.gmtime
    if settings.serve.log_format == "json":
        from kafka_coord.monitor.json_log import JsonFormatter

        formatter = JsonFormatter()
    logging.getLogger().handlers[0].setFormatter(formatter)
    threading.excepthook = log_dead_thread
    signal.signal(signal.SIGUSR1, partial(_toggle_debug, settings.serve.log_level))
    changed = (f"{key}={value} ({origin})" for key, value, origin in listed(settings) if origin != "default")
    log.info("settings: %s", ", ".join(changed))
    run_service(settings, settings.serve.broker_id)


def run_service(settings: Settings, broker_id: int) -> None:
    """Runs until a stop signal arrives, or until the service fails, in which case it raises the service's error."""
    from kafka_coord.coordinator.service import CoordinatorService, collecting_rarely
    from kafka_coord.coordinator.start_offsets import ANSWER_S
    from kafka_coord.frontends.socket.gateway import LeadershipView
    from kafka_coord.groups.lag import LagService
    from kafka_coord.groups.next_records import next_records_of
    from kafka_coord.kafka.offsets import BrokerLog

    tracing = _tracing(settings.serve, broker_id)
    settings = _with_renewed_properties(settings)
    renewed = _Renewed()
    with stopping_at_signals(_say_stopping) as signals, renewed.looked_at_on_sighup(), collecting_rarely():
        stopping = signals.event
        store = _connect_patiently(settings, stopping)
        if store is None:
            return
        with contextlib.ExitStack() as parts:  # closed in reverse order: the service resigns first
            parts.callback(store.close)
            tree = _join_patiently(settings, store, stopping)
            if tree is None:
                return
            leadership_view = LeadershipView()
            # The last stable offsets: a consumer that reads uncommitted records may begin some records early, but one
            # that reads committed records skips none of a transaction that is open now.
            lister = BrokerLog(store, settings.kafka.properties, read_committed=True, timeout_s=ANSWER_S)
            renewed.read(settings, store)
            gateway = _gateway(settings.serve, broker_id, leadership_view, store, renewed)
            kafka = _kafka_listener(settings, broker_id, store, renewed, tree)
            published = endpoints(settings.serve, gateway)
            process = Process(socket.gethostname(), os.getpid(), __version__, round(time.time() * 1000))
            service = CoordinatorService(
                store,
                broker_id,
                published,
                options_of(settings.serve),
                process=process,
                observer=tracing.observer(store.clock) if tracing is not None else None,
                lister=lister.ends,
                metadata=_metadata(settings),
                tree=tree,
            )
            parts.callback(lister.close)
            leadership_view.service = service
            # shared by the lag sampler and the dashboard
            lag_service = LagService(
                next_records=next_records_of(store, settings.kafka.properties),
                warning_ms=settings.serve.lag_warning_ms,
            )
            lags, site = _lags(settings, service, lag_service), _dashboard(settings, lag_service, renewed)
            metrics = _metrics(settings.serve, service, store, gateway, kafka, lags, site, renewed)
            for part in (tracing, lags, metrics, site, kafka, gateway):
                if part is not None:
                    parts.callback(part.close)
            parts.callback(service.stop)
            parts.callback(notify_systemd, "STOPPING=1")
            status, warned = Status(broker_id, service, kafka), Warned(broker_id, store, renewed.ones)
            status.look()  # the registration says that the instance is not ready yet
            service.start()
            while not stopping.wait(_POLL_S) and not service.wait(0.0):
                renewed.look_if_asked()
                for part in (gateway, kafka):
                    if part is not None:
                        part.raise_failure()
                status.look()
                warned.look()
        log.info("stopped broker_id=%d", broker_id, extra={"event": "stopped"})


def _with_renewed_properties(settings: Settings) -> Settings:
    """Makes new connections to the brokers use the properties that are then in the settings file."""
    file, reread = settings.file, settings.reread
    if file is None or reread is None:
        return settings
    from kafka_coord.consumer.other_clients import check_properties
    from kafka_coord.kafka.authentication import SettingsFileProperties

    properties = SettingsFileProperties(file, lambda: check_properties(reread()).kafka.properties)
    return dataclasses.replace(settings, kafka=KafkaSettings(properties))


@dataclasses.dataclass
class _Renewed:
    """What others renew, by its name in metrics and findings. New connections look at it by themselves, SIGHUP looks at
    all of it at once."""

    ones: dict[str, Renewed[Any]] = dataclasses.field(default_factory=dict)
    asked: bool = False

    def read(self, settings: Settings, store: Store) -> None:
        """Raises :class:`SettingsError` for a file that cannot be used."""
        made = self.ones
        if isinstance(credentials := getattr(store, "credentials", None), Renewed):
            made["zookeeper"] = credentials
        serve, properties = settings.serve, settings.kafka.properties
        if not (serve.listen_http or serve.listen_channel or serve.listen_kafka or settings.kafka.properties):
            return
        from kafka_coord.frontends.listening import Certificate
        from kafka_coord.frontends.socket.access import UsersFile

        if serve.listen_http is not None and serve.http_cert_file is not None:
            http = serve.http_cert_file, serve.http_key_file, serve.http_client_ca_file
            made["https"] = Certificate(*http, optional=True)
        if serve.listen_channel is not None and serve.channel_cert_file is not None:
            channel = serve.channel_cert_file, serve.channel_key_file, serve.channel_client_ca_file
            made["channel"] = Certificate(*channel)
        if serve.listen_kafka is not None and serve.kafka_certificate is not None:
            made["kafka"] = Certificate(serve.kafka_certificate, serve.kafka_key)
        if serve.listen_channel is not None and serve.channel_users_file is not None:
            made["users"] = UsersFile(serve.channel_users_file)
        if serve.listen_http is not None and serve.http_operators is not None:
            from kafka_coord.monitor.dashboard.logins import OperatorsFile

            made["operators"] = OperatorsFile(serve.http_operators)
        from kafka_coord.kafka.authentication import broker_security, files_of, knows_all, renewed_from

        if serve.listen_kafka is not None or (files_of(properties) and knows_all(properties)):
            made["brokers"] = broker_security(properties)
        elif files_of(properties):  # only librdkafka uses them
            made["brokers"] = renewed_from(properties, lambda: None)

    def context(self, endpoint: str) -> ssl.SSLContext | None:
        found = self.ones.get(endpoint)
        return found.newest().context if found is not None else None

    @contextlib.contextmanager
    def looked_at_on_sighup(self) -> Iterator[None]:
        before = signal.signal(signal.SIGHUP, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def look_if_asked(self) -> None:
        if self.asked:
            self.asked = False
            log.info("received SIGHUP: looking at certificates, users and passwords again", extra={"event": "reload"})
            for one in self.ones.values():
                one.look(now=True)


def _metadata(settings: Settings) -> MetadataOptions:
    """Raises :class:`SettingsError` if the brokers are to be asked and cannot be."""
    from kafka_coord.coordinator.mirroring import MetadataOptions
    from kafka_coord.grouplog.term import TOPIC
    from kafka_coord.kafka.metadata import MetadataAsker, bootstraps

    serve = settings.serve
    if serve.metadata == "brokers" or serve.bootstrap is not None:
        MetadataAsker(settings.kafka.properties).close()
    return MetadataOptions(
        partial(MetadataAsker, settings.kafka.properties),
        serve.metadata,
        bootstraps(serve.bootstrap) if serve.bootstrap is not None else None,
        led=TOPIC,
    )


def _tracing(serve_settings: ServeSettings, broker_id: int) -> Tracing | None:
    if not serve_settings.trace_rebalances:
        return None
    from kafka_coord.monitor.tracing import Tracing

    return Tracing(broker_id)


def log_dead_thread(died: threading.ExceptHookArgs) -> None:
    """Logs that a thread crashed (a :func:`threading.excepthook`). If the thread belongs to a listener, ``/health``
    also reports a failure."""
    name = died.thread.name if died.thread is not None else "unknown"
    error = (died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback)
    log.critical("thread %s crashed, which is a bug; restart this instance", name, exc_info=error)


def _lags(settings: Settings, service: CoordinatorService, lag_service: LagService) -> LagSampler | None:
    if not settings.serve.lag_metrics_groups:
        return None
    from kafka_coord.monitor.metrics import LagSampler

    return LagSampler(
        partial(connect_with, settings.zookeeper, settings),
        settings.kafka.properties,
        lambda: service.leads,
        most=settings.serve.lag_metrics_groups,
        interval_s=settings.serve.lag_metrics_interval_ms / 1000,
        service=lag_service,
    )


def _metrics(
    serve_settings: ServeSettings,
    service: CoordinatorService,
    store: Store,
    gateway: GatewayServer | None,
    kafka: KafkaListener | None,
    lags: LagSampler | None,
    site: Site | None,
    renewed: _Renewed,
) -> MetricsServer | None:
    if serve_settings.listen_http is None:
        return None
    from kafka_coord.monitor.metrics import MetricsServer

    server = MetricsServer(
        serve_settings.listen_http,
        service,
        store,
        gateway.gateway if gateway is not None else None,
        kafka,
        lags,
        site,
        tls=renewed.context("https"),
        renewed=renewed.ones,
        host_names=serve_settings.host_names,
        threads=[thread for one in (gateway, kafka) if one is not None for thread in one.threads],
    )
    also = " and /dashboard/" if site is not None else ""
    log.info("serving /metrics, /health%s address=%s", also, serve_settings.listen_http)
    return server


def _dashboard(settings: Settings, lag_service: LagService, renewed: _Renewed) -> Site | None:
    if settings.serve.listen_http is None or not settings.serve.http_dashboard:
        return None
    from kafka_coord.cli.dashboard import live_documents
    from kafka_coord.monitor.dashboard.site import Site

    operating = None
    if settings.serve.http_operators is not None:
        from kafka_coord.monitor.dashboard.logins import Logins
        from kafka_coord.monitor.dashboard.operating import Operating

        logins = Logins(renewed.ones["operators"].newest)
        operating = Operating(logins, partial(open_store, settings), settings.kafka.properties)
    return Site(live_documents(settings, lag_service), operating)


def _gateway(
    serve_settings: ServeSettings, broker_id: int, leadership_view: LeadershipView, store: Store, renewed: _Renewed
) -> GatewayServer | None:
    if serve_settings.listen_channel is None:
        return None
    from kafka_coord.frontends.socket.server import GatewayServer

    server = GatewayServer(
        serve_settings.listen_channel,
        store,
        broker_id,
        leadership_view,
        tls=renewed.context("channel"),
        access=renewed.ones.get("users"),  # type: ignore[arg-type]
    )
    log.info("serving consumers over sockets address=%s", server.address)
    return server


def _kafka_listener(
    settings: Settings, broker_id: int, store: Store, renewed: _Renewed, tree: OwnTree
) -> KafkaListener | None:
    serve_settings = settings.serve
    if serve_settings.listen_kafka is None or serve_settings.broker_listener is None:
        return None
    from kafka_coord.frontends.kafka.clients import ClientLimits
    from kafka_coord.frontends.kafka.listener import KafkaListener

    limits = ClientLimits(
        max_connections=serve_settings.kafka_max_connections,
        max_connections_per_ip=serve_settings.kafka_max_connections_per_ip,
        max_request_bytes=serve_settings.kafka_max_request_bytes,
        max_kept_bytes=serve_settings.kafka_queued_max_bytes,
        idle_s=serve_settings.kafka_max_idle_ms / 1000,
    )
    own_ms = {
        "initial_rebalance_delay_s": serve_settings.kafka_initial_rebalance_delay_ms,
        "consumer_session_timeout_s": serve_settings.kafka_consumer_session_timeout_ms,
    }
    listener = KafkaListener(
        serve_settings.listen_kafka,
        serve_settings.broker_listener,
        store,
        broker_id,
        limits=limits,
        security=renewed.ones["brokers"],
        tls=renewed.context("kafka"),
        rewrite=serve_settings.kafka_rewrite,
        group_limits={name: value / 1000 for name, value in own_ms.items() if value is not None},
        holds=serve_settings.kafka_hold_heartbeats,
        managed_groups=serve_settings.managed_groups,
        tree=tree,
        new_groups=serve_settings.new_groups,
    )
    log.info("serving Kafka clients address=%s", listener.address)
    return listener


def _connect_patiently(settings: Settings, stopping: threading.Event) -> Store | None:
    """Waits for ZooKeeper, however long that takes: after a power failure, it may be the last to start. Returns
    ``None`` after a stop signal."""
    log.info("connecting zookeeper=%s", settings.zookeeper.hosts)
    while not stopping.is_set():
        try:
            return connect_with(settings.zookeeper, settings)
        except StoreUnavailable as error:
            log.warning("waiting for ZooKeeper: %s", error, extra={"event": "waiting_for_zookeeper"})
            stopping.wait(_RETRY_S)
    return None


def _join_patiently(settings: Settings, store: Store, stopping: threading.Event) -> OwnTree | None:
    """Waits while the tree is being made, or while the brokers must be asked whether it may be made and do not answer.
    Returns ``None`` after a stop signal. Raises :class:`TreeRefused`."""
    from kafka_coord.cli.tree import begin_where_allowed

    tree = OwnTree(store, partial(begin_where_allowed, settings))
    while not stopping.is_set():
        try:
            tree.join()
        except (StoreUnavailable, TreeUnfinished, BrokerError) as error:
            log.warning("waiting for the coordination tree: %s", error, extra={"event": "waiting_for_tree"})
            stopping.wait(_RETRY_S)
        else:
            log.info("serving %s", tree.record.name, extra={"event": "joined_tree"})
            return tree
    return None


def endpoints(serve_settings: ServeSettings, gateway: GatewayServer | None = None) -> dict[str, str]:
    """Returns the addresses that the instance publishes, with the host name in place of a wildcard address."""
    channel = serve_settings.advertise_channel or (gateway.address if gateway is not None else None)
    http = "http" if serve_settings.http_cert_file is None else "https"
    page = serve_settings.advertise_http or serve_settings.listen_http
    listening = {http: page, "channel": channel, "kafka": serve_settings.listen_kafka}
    published = {}
    for name, address in listening.items():
        if address is not None:
            host, _, port = address.rpartition(":")
            published[name] = f"{socket.getfqdn() if host in _EVERY_ADDRESS else host}:{port}"
    return published


def options_of(serve_settings: ServeSettings) -> CoordinatorOptions:
    """Returns the coordinator's options. Options without a setting keep their defaults."""
    from kafka_coord.coordinator.deadlines import CoordinatorOptions

    given = {one.name: getattr(serve_settings, one.name, None) for one in dataclasses.fields(CoordinatorOptions)}
    return CoordinatorOptions(**{name: value for name, value in given.items() if value is not None})


def _toggle_debug(configured: str, *_: object) -> None:
    """Handles SIGUSR1."""
    usual = "INFO" if configured == "DEBUG" else configured
    level = usual if logging.getLogger().level == logging.DEBUG else "DEBUG"
    logging.getLogger().setLevel(level)
    log.log(logging.getLevelName(level), "log level: %s, until the next SIGUSR1", level)


def _say_stopping(received: signal.Signals) -> None:
    log.info("stopping: received %s", received.name, extra={"event": "stopping", "signal": received.name})
