"""All settings, with their allowed values. A flag overrides a ``KAFKA_COORD_*`` variable, which overrides the TOML
file.

::

    [zookeeper]                         KAFKA_COORD_ZOOKEEPER_HOSTS, or KAFKA_COORD_ZOOKEEPER
    hosts = "zk1:2181,zk2:2181/kafka"
    session_timeout_ms = 10000

    [serve]                             KAFKA_COORD_SERVE_BROKER_ID
    broker_id = 1

    [kafka]                             KAFKA_COORD_KAFKA_SECURITY_PROTOCOL
    security.protocol = "SASL_SSL"      any librdkafka property, passed on unchanged

Settings are checked when they are loaded, so mistakes are reported at startup. A :class:`Secret` never appears in a
message, a log line or a ``repr``.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kafka_coord.errors import SettingsError

VARIABLE_PREFIX = "KAFKA_COORD_"
DEFAULT_HOSTS = "localhost:2181"
DEFAULT_SESSION_TIMEOUT_MS = 10_000
DEFAULT_SOCKET_SESSION_TIMEOUT_MS = 45_000
"""The default session timeout, in ms, of a consumer that does not use ZooKeeper. It has also been the default of
Kafka's own consumers since 3.0 (KIP-735). It is long enough that no consumer has to stop when an instance crashes: it
covers the instance's own session timeout, one ping interval, and the time that thousands of consumers take to
reconnect."""

_MAX_FILE_BYTES = 1_000_000
_MAX_FILE_DEPTH = 16
_TEXT_OR_COMMENT = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*")

_SHORT_VARIABLES = {"zookeeper.hosts": "KAFKA_COORD_ZOOKEEPER"}
_OTHER_VARIABLES = frozenset(
    f"{VARIABLE_PREFIX}{name}" for name in ("CONFIG", "OUTPUT", "DEBUG", "SERVE_SESSION_TIMEOUT_MS")
)
"""Variables that commands read. These are not settings, but could be mistaken for misspelt ones."""
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])")
_SECRET_PROPERTY = re.compile(r"password|secret|token|\.key$|\.pem$|sasl\.jaas", re.IGNORECASE)


class Secret:
    """A value that is never displayed. Only :meth:`reveal` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))


def _setting(default: Any, what: str, check: Callable[[Any], Any]) -> Any:
    """Returns a field. ``what`` describes the allowed values in a few words. ``check`` parses a value, or raises
    ``ValueError`` if it is not allowed."""
    return field(default=default, metadata={"what": what, "check": check})


# --- what is allowed ---------------------------------------------------------------------------------------------


def _between(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"a {type(value).__name__}")  # noqa: TRY004 - one error type for every check
        number = int(value)
        if not low <= number <= high:
            raise ValueError("out of range")
        return number

    return check


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "yes", "on", "1"}:
        return True
    if isinstance(value, str) and value.lower() in {"false", "no", "off", "0"}:
        return False
    raise ValueError("neither true nor false")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("empty" if isinstance(value, str) else f"a {type(value).__name__}")
    return value.strip()


def _secret(value: Any) -> Secret:
    return value if isinstance(value, Secret) else Secret(_text(value))


def _digest(value: Any) -> Secret:
    found = _secret(value)
    user, colon, password = found.reveal().partition(":")
    if not (user and colon and password):
        raise ValueError("not in this form")
    return found


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        found = {word.lower(): word for word in allowed}.get(_text(value).lower())
        if found is None:
            raise ValueError("not one of these")
        return found

    return check


def _readable_file(value: Any) -> Path:
    try:
        path = Path(_text(str(value))).expanduser()
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None
    except RuntimeError as error:  # the path begins with ~user, but the user's home directory is unknown
        raise ValueError(str(error)) from None


def host_and_port(written: str) -> tuple[str, int]:
    """Parses ``"host:9092"`` or ``"[::1]:9092"``. Raises ValueError with the reason."""
    match = _HOST.match(written)
    if match is None:
        raise ValueError(f"{written[:100]!r} has no host")
    host, rest = match.group(), written[match.end() :]
    port = rest.removeprefix(":")
    if rest == port or not (port.isascii() and port.isdigit() and 0 <= int(port[:6]) <= 65_535 and len(port) <= 5):
        raise ValueError(f"{written[:100]!r} has no port from 0 to 65535")
    return host.strip("[]"), int(port)


def is_address(host: str) -> bool:
    """Returns whether ``host`` is an IP address."""
    import ipaddress  # imported here, because few processes need it

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_local(address: str) -> bool:
    """Returns whether only this machine can reach a listener at ``address``."""
    host, _ = host_and_port(address)
    return host in {"localhost", "::1"} or (host.startswith("127.") and is_address(host))


def _address(value: Any) -> str:
    host_and_port(_text(value))
    return str(value).strip()


def _addresses(value: Any) -> str:
    return ",".join(_address(part) for part in _text(value).split(","))


def _listener_addresses(value: Any) -> str:
    for part in _text(value).split(","):
        _address(part.rpartition("=")[2])
    return str(value).strip()


def _hosts(value: Any) -> str:
    names = [part.strip().lower() for part in _text(value).split(",")]
    for name in names:
        if not _HOST.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is not a host name; leave out the port")
    return ",".join(names)


def _ms(default: int | None, low: int, high: int) -> Any:
    """Returns a field for a duration in ms. If ``default`` is ``None``, the code that uses it has its own."""
    return _setting(default, f"milliseconds, {low} to {high}", _between(low, high))


_flag = partial(_setting, what="true or false", check=_boolean)
_pem = partial(_setting, None, "a readable PEM file", _readable_file)


# --- the sections ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """The connection to ZooKeeper. Unless ``identities`` is set, ``acl`` applies to the znodes that kafka-coord
    creates."""

    hosts: str = _setting(DEFAULT_HOSTS, "host:port,host:port/chroot (with the same chroot as Kafka, if any)", _text)
    session_timeout_ms: int = _ms(DEFAULT_SESSION_TIMEOUT_MS, 400, 3_600_000)
    connect_timeout_ms: int = _ms(10_000, 100, 3_600_000)
    tls: bool = _flag(False)
    tls_ca_file: Path | None = _pem()
    tls_cert_file: Path | None = _pem()
    tls_key_file: Path | None = _pem()
    tls_key_password: Secret | None = _setting(None, "the password of the key file", _secret)
    tls_verify: bool = _flag(True)
    digest: Secret | None = _setting(None, "user:password, for ZooKeeper's digest scheme", _digest)
    sasl_mechanism: str | None = _setting(None, "DIGEST-MD5 or GSSAPI", _one_of("DIGEST-MD5", "GSSAPI"))
    sasl_username: str | None = _setting(None, "the SASL user name", _text)
    sasl_password: Secret | None = _setting(None, "the SASL password", _secret)
    acl: str = _setting(
        "open", "open, creator-world-read or creator-only", _one_of("open", "creator-world-read", "creator-only")
    )
    identities: Path | None = _setting(None, "a readable TOML file that assigns identities to roles", _readable_file)

    def __post_init__(self) -> None:
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise SettingsError(
                "zookeeper.tls_key_file is set without zookeeper.tls_cert_file: a key needs its certificate"
            )
        if not self.tls and (self.tls_ca_file or self.tls_cert_file):
            raise SettingsError(
                "zookeeper.tls_ca_file or tls_cert_file is set, but zookeeper.tls is not true; set it too"
            )
        if self.sasl_mechanism == "DIGEST-MD5" and not (self.sasl_username and self.sasl_password):
            raise SettingsError(
                "zookeeper.sasl_mechanism DIGEST-MD5 needs zookeeper.sasl_username and zookeeper.sasl_password"
            )
        if self.acl != "open" and self.identities is not None:
            raise SettingsError(
                f"zookeeper.acl is {self.acl!r} but zookeeper.identities is set as well; leave one of them out"
            )
        if self.acl != "open" and self.digest is None and self.sasl_mechanism is None and self.tls_cert_file is None:
            raise SettingsError(
                f"zookeeper.acl is {self.acl!r}, but this client does not authenticate to ZooKeeper, so no one "
                "could change what it creates: set zookeeper.digest, sasl_mechanism or tls_cert_file, "
                "or leave zookeeper.acl 'open'"
            )


_OF_LISTENERS = {
    "listen_channel": "advertise_channel channel_users_file channel_cert_file channel_key_file channel_client_ca_file",
    "listen_http": "advertise_http http_cert_file http_operators",
    "listen_kafka": "kafka_certificate kafka_rewrite managed_groups new_groups",
}
"""For each listener, the settings that have no effect without it."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of one instance. Listen addresses have the form ``host:port``, and the instance publishes them. If a
    duration is ``None``, the default in :class:`kafka_coord.coordinator.deadlines.CoordinatorOptions` applies."""

    broker_id: int | None = _setting(
        None, "the broker.id of the broker beside this instance, 0 to 2147483647", _between(0, 2**31 - 1)
    )
    listen_http: str | None = _setting(None, "host:port", _address)
    advertise_http: str | None = _setting(None, "host:port", _address)
    http_dashboard: bool = _flag(True)
    http_host_names: str | None = _setting(None, "comma-separated host names", _hosts)
    http_operators: Path | None = _setting(
        None, "a readable TOML file that says who may act in the dashboard", _readable_file
    )
    http_cert_file: Path | None = _pem()
    http_key_file: Path | None = _pem()
    http_client_ca_file: Path | None = _pem()
    lag_metrics_groups: int = _setting(0, "0 to 10000 groups; 0 means off", _between(0, 10_000))
    lag_metrics_interval_ms: int = _ms(30_000, 100, 3_600_000)
    lag_warning_ms: int = _ms(60_000, 0, 365 * 86_400_000)
    listen_channel: str | None = _setting(None, "host:port", _address)
    advertise_channel: str | None = _setting(None, "host:port", _address)
    channel_users_file: Path | None = _setting(
        None, "a readable TOML file that says who may join which group", _readable_file
    )
    channel_cert_file: Path | None = _pem()
    channel_key_file: Path | None = _pem()
    channel_client_ca_file: Path | None = _pem()
    listen_kafka: str | None = _setting(None, "host:port", _address)
    broker_listener: str | None = _setting(None, "host:port", _address)
    kafka_rewrite: bool = _flag(False)
    kafka_hold_heartbeats: bool = _flag(True)
    kafka_certificate: Path | None = _pem()
    kafka_key: Path | None = _pem()
    kafka_max_connections: int = _setting(10_000, "1 to 1000000", _between(1, 1_000_000))
    kafka_max_connections_per_ip: int | None = _setting(None, "1 to 1000000", _between(1, 1_000_000))
    kafka_max_request_bytes: int = _setting(100 << 20, "bytes, 1048576 to 2147483647", _between(1 << 20, 2**31 - 1))
    kafka_queued_max_bytes: int = _setting(256 << 20, "bytes, 16777216 or more", _between(16 << 20, 1 << 50))
    kafka_max_idle_ms: int = _ms(600_000, 1_000, 86_400_000)
    kafka_initial_rebalance_delay_ms: int | None = _ms(None, 0, 600_000)
    kafka_consumer_session_timeout_ms: int | None = _ms(None, 1_000, 1_800_000)
    metadata: str = _setting("auto", "auto, zookeeper or brokers", _one_of("auto", "zookeeper", "brokers"))
    bootstrap: str | None = _setting(None, "[LISTENER=]host:port,host:port of brokers", _listener_addresses)
    new_groups: str | None = _setting(None, "coordinated, native or native:PATTERN (RE2)", _text)
    managed_groups: str | None = _setting(None, "a regular expression (RE2) for whole group names", _text)
    log_level: str = _setting("INFO", "DEBUG, INFO, WARNING or ERROR", _one_of("DEBUG", "INFO", "WARNING", "ERROR"))
    trace_rebalances: bool = _flag(False)
    log_format: str = _setting("text", "text or json", _one_of("text", "json"))
    look_interval_ms: int | None = _ms(None, 100, 3_600_000)
    settled_after_ms: int | None = _ms(None, 0, 3_600_000)
    whole_look_interval_ms: int | None = _ms(None, 1_000, 24 * 3_600_000)
    retry_backoff_ms: int | None = _ms(None, 1, 600_000)
    retry_backoff_max_ms: int | None = _ms(None, 1, 3_600_000)
    channel_retirement_ms: int | None = _ms(None, 60_000, 7 * 86_400_000)

    @property
    def host_names(self) -> list[str]:
        """The names in ``http_host_names``, and that of ``advertise_http``."""
        advertised = (self.advertise_http or "").rpartition(":")[0]
        return [*(self.http_host_names or "").split(","), *([advertised] if advertised else ())]

    def __post_init__(self) -> None:
        if self.lag_metrics_groups and self.listen_http is None:
            raise SettingsError("serve.lag_metrics_groups is set, but nothing serves metrics without serve.listen_http")
        for listener, names in _OF_LISTENERS.items():
            for name in names.split():
                if getattr(self, name) and getattr(self, listener) is None:
                    raise SettingsError(f"serve.{name} is set, but serve.{listener} is not, so nothing listens")
        for of in ("channel", "http"):
            files = (getattr(self, f"{of}_{name}_file") for name in ("key", "client_ca"))
            if getattr(self, f"{of}_cert_file") is None and any(files):
                raise SettingsError(f"serve.{of}_key_file and {of}_client_ca_file need serve.{of}_cert_file")
        if self.http_operators is not None and not self.http_dashboard:
            raise SettingsError("serve.http_operators has no effect, because serve.http_dashboard is false")
        if self.http_operators is not None and self.http_cert_file is None and not _is_local(str(self.listen_http)):
            raise SettingsError(
                f"serve.http_operators needs serve.http_cert_file, or others could read what operators send to "
                f"{self.listen_http}. Without TLS, listen on 127.0.0.1"
            )
        if self.kafka_key is not None and self.kafka_certificate is None:
            raise SettingsError("serve.kafka_key needs serve.kafka_certificate")
        if (self.listen_kafka is None) != (self.broker_listener is None):
            raise SettingsError(
                "set both serve.listen_kafka, where Kafka clients connect, and serve.broker_listener, "
                "the broker's listener for this instance"
            )


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Properties that are passed to librdkafka unchanged (``security.protocol``, ``sasl.*``, ``ssl.*``, …)."""

    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, str]:
        """The properties, with secrets masked."""
        return {
            key: str(Secret(value)) if _SECRET_PROPERTY.search(key) else value for key, value in self.properties.items()
        }

    def __repr__(self) -> str:
        return f"KafkaSettings(properties={self.shown})"


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """How a consumer without ZooKeeper connects to the coordinator."""

    bootstrap: str | None = _setting(None, "host:port,host:port of broker hosts where kafka-coord listens", _addresses)
    session_timeout_ms: int = _ms(DEFAULT_SOCKET_SESSION_TIMEOUT_MS, 1_000, 300_000)
    secret: Secret | None = _setting(None, "the secret that identifies the consumer", _secret)
    tls: bool = _flag(False)
    tls_ca_file: Path | None = _pem()
    tls_cert_file: Path | None = _pem()
    tls_key_file: Path | None = _pem()

    def __post_init__(self) -> None:
        if not self.tls and (self.tls_ca_file or self.tls_cert_file or self.tls_key_file):
            raise SettingsError("socket.tls_ca_file, tls_cert_file or tls_key_file is set, but socket.tls is not true")
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise SettingsError("socket.tls_key_file is set without socket.tls_cert_file: a key needs its certificate")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. ``origin`` names the source of each value that is not the default. ``file`` is the settings file.
    ``reread`` reads all settings again, from the same sources."""

    zookeeper: ZooKeeperSettings = field(default_factory=ZooKeeperSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    socket: SocketSettings = field(default_factory=SocketSettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    origin: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = field(default=None, compare=False)
    reread: Callable[[], Settings] | None = field(default=None, compare=False, repr=False)


# --- loading -----------------------------------------------------------------------------------------------------

_Section = TypeVar("_Section", ZooKeeperSettings, ServeSettings, SocketSettings)


@dataclass(frozen=True, slots=True)
class _FoundSetting:
    """A value and its source: ``flag --zookeeper``, ``variable KAFKA_COORD_…`` or ``/etc/coord.toml``."""

    value: Any
    origin: str


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    kafka_properties: Mapping[str, str] | None = None,
    called: str = "flag --{}",
) -> Settings:
    """Loads and checks all settings.

    ``flags`` maps keys (``"zookeeper.hosts"``) to values, or to ``None`` if the flag was not given.
    ``kafka_properties`` contains the flags for the ``kafka`` section. ``file`` is the TOML file (by default,
    ``KAFKA_COORD_CONFIG``). ``called`` is the template for a flag's name in messages.

    Raises :class:`SettingsError`, which names the key, its value, its source and the allowed values.
    """
    environ = os.environ if environ is None else environ
    file = file or environ.get("KAFKA_COORD_CONFIG")
    tables = _read_file(Path(file)) if file else {}
    values = _from_file(tables, str(file)) | _from_variables(environ) | _from_flags(flags or {}, called)
    kafka = _kafka_from_file(tables.get("kafka", {}), str(file)) | _kafka_from_variables(environ)
    kafka |= {
        key: _FoundSetting(value, called.format("kafka-property")) for key, value in (kafka_properties or {}).items()
    }
    origin = {key: given.origin for key, given in values.items()}
    return Settings(
        zookeeper=_section(ZooKeeperSettings, "zookeeper", values),
        serve=_section(ServeSettings, "serve", values),
        socket=_section(SocketSettings, "socket", values),
        kafka=KafkaSettings({key: given.value for key, given in sorted(kafka.items())}),
        origin=origin | {f"kafka.{key}": given.origin for key, given in kafka.items()},
        file=Path(file) if file else None,
        reread=partial(
            load_settings, flags, environ=environ, file=file, kafka_properties=kafka_properties, called=called
        ),
    )


def variable_of(key: str) -> str:
    """Returns the environment variable for a setting: its short name if it has one, else a name such as
    ``KAFKA_COORD_ZOOKEEPER_SESSION_TIMEOUT_MS``."""
    return _SHORT_VARIABLES.get(key) or VARIABLE_PREFIX + key.replace(".", "_").upper()


def keys() -> dict[str, str]:
    """Returns the allowed values of each setting, by key. Omits the ``kafka`` section, whose keys librdkafka
    defines."""
    return {
        f"{section}.{one.name}": str(one.metadata["what"])
        for section, settings in _SECTIONS.items()
        for one in dataclasses.fields(settings)
    }


_SECTIONS: Mapping[str, Any] = {"zookeeper": ZooKeeperSettings, "serve": ServeSettings, "socket": SocketSettings}


def _section(settings: type[_Section], section: str, found: Mapping[str, _FoundSetting]) -> _Section:
    checked = {}
    for setting in dataclasses.fields(settings):
        key = f"{section}.{setting.name}"
        given = found.get(key)
        if given is None:
            continue
        try:
            checked[setting.name] = setting.metadata["check"](given.value)
        except ValueError as error:
            secret = "Secret" in str(setting.type)
            shown = "the value given" if secret else f"{str(given.value)[:120]!r}"
            reason = "" if "invalid literal" in str(error) or secret else f" ({error})"
            raise SettingsError(
                f"{key}: {shown} from {given.origin} is invalid{reason}: it must be {setting.metadata['what']}"
            ) from None
    return settings(**checked)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as opened:
            raw = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"settings file {path} cannot be read: {error.strerror}") from None
    return parse_toml(raw, f"settings file {path}")


def parse_toml(raw: bytes, what: str) -> dict[str, Any]:
    """Parses a TOML file. ``what`` is its name in messages. Raises :class:`SettingsError` if the file is invalid, too
    long or nested too deeply (``tomllib`` takes quadratic time in the depth of a dotted key)."""
    import tomllib  # imported here, because few consumers and commands read a file

    if len(raw) > _MAX_FILE_BYTES:
        raise SettingsError(f"{what} is longer than {_MAX_FILE_BYTES} bytes")
    deep = f"{what} nests tables deeper than {_MAX_FILE_DEPTH} levels, which no setting needs"
    if any(line.count(b".") > _MAX_FILE_DEPTH for line in _TEXT_OR_COMMENT.sub(b"", raw).split(b"\n")):
        raise SettingsError(deep)
    try:
        tables = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # impossible numbers, dates and text raise ValueError
        raise SettingsError(f"{what} is not TOML: {str(error)[:200]}") from None
    if _nests_deeper(tables, _MAX_FILE_DEPTH):
        raise SettingsError(deep)
    return tables


def _nests_deeper(tables: Mapping[str, Any], most: int) -> bool:
    """Returns whether the tables nest deeper than ``most`` levels. Not recursive, because dotted keys can nest deeper
    than Python's recursion limit."""
    level: list[Any] = [tables]
    for _ in range(most):
        level = [
            below
            for one in level
            for below in (one.values() if isinstance(one, dict) else one)
            if isinstance(below, dict | list)
        ]
    return bool(level)


def _from_file(tables: Mapping[str, Any], file: str) -> dict[str, _FoundSetting]:
    values = {}
    known = keys()
    for section, table in tables.items():
        if section not in {*_SECTIONS, "kafka"}:
            raise _unknown(f"[{section}]", [f"[{name}]" for name in (*_SECTIONS, "kafka")], file)
        if not isinstance(table, dict):
            raise SettingsError(f"{section} in {file} must be a table, [{section}], not {str(table)[:60]!r}")
        if section == "kafka":
            continue
        for name, value in table.items():
            key = f"{section}.{name}"
            if key not in known:
                raise _unknown(key, list(known), file)
            values[key] = _FoundSetting(value, file)
    return values


def _from_variables(environ: Mapping[str, str]) -> dict[str, _FoundSetting]:
    names = {VARIABLE_PREFIX + key.replace(".", "_").upper(): key for key in keys()}
    names |= {short: key for key, short in _SHORT_VARIABLES.items()}
    for variable in environ:
        if variable.startswith(VARIABLE_PREFIX) and variable not in names and _means_a_setting(variable, names):
            raise _unknown(variable, [*names, *sorted(_OTHER_VARIABLES)], "the environment")
    return {key: _FoundSetting(environ[name], f"variable {name}") for name, key in names.items() if name in environ}


def _means_a_setting(variable: str, names: Iterable[str]) -> bool:
    """Returns whether an unknown variable is probably a misspelt setting: it begins with the name of a section, or
    resembles a setting. Any other variable may be a command's option (``KAFKA_COORD_<COMMAND>_<OPTION>``)."""
    written = variable.removeprefix(VARIABLE_PREFIX)
    first = written.partition("_")[0]
    if variable in _OTHER_VARIABLES or first == "KAFKA":
        return False
    if first.lower() in _SECTIONS:
        return True
    known = [name.removeprefix(VARIABLE_PREFIX) for name in (*names, *_OTHER_VARIABLES)]
    near = difflib.get_close_matches(written, known, n=1, cutoff=0.85)
    return bool(near) and bool(difflib.get_close_matches(first, [near[0].partition("_")[0]], cutoff=0.8))


def _from_flags(flags: Mapping[str, Any], called: str) -> dict[str, _FoundSetting]:
    values = {}
    known = keys()
    for key, value in flags.items():
        if value is None:
            continue
        if key not in known:
            raise _unknown(key, list(known), called.format(key))
        name = "zookeeper" if key == "zookeeper.hosts" else key.partition(".")[2].replace("_", "-")
        values[key] = _FoundSetting(value, called.format(name))
    return values


def _kafka_from_file(table: Any, file: str, above: str = "") -> dict[str, _FoundSetting]:
    """Joins the keys of nested tables into librdkafka's names, because TOML parses ``security.protocol = …`` as a
    nested table."""
    values: dict[str, _FoundSetting] = {}
    for name, value in table.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            values |= _kafka_from_file(value, file, f"{key}.")
        elif isinstance(value, str | int | float):
            written = str(value).lower() if isinstance(value, bool) else str(value)
            values[key] = _FoundSetting(written, file)
        else:
            raise SettingsError(f"kafka.{key} in {file} is a {type(value).__name__}; librdkafka takes text or numbers")
    return values


def _kafka_from_variables(environ: Mapping[str, str]) -> dict[str, _FoundSetting]:
    prefix = f"{VARIABLE_PREFIX}KAFKA_"
    return {
        name.removeprefix(prefix).lower().replace("_", "."): _FoundSetting(value, f"variable {name}")
        for name, value in environ.items()
        if name.startswith(prefix) and name != prefix
    }


def _unknown(name: str, known: list[str], where: str) -> SettingsError:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known[:20])}"
    return SettingsError(f"{name[:200]} in {where} is not a setting; {hint}")
