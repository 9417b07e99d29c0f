"""The options of the source, as Spark passes them, with names in lower case and values as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from kafka_coord.consumer.other_clients import check_properties
from kafka_coord.consumer.settings import generated_id
from kafka_coord.errors import SettingsError
from kafka_coord.model.names import legal
from kafka_coord.settings import ZooKeeperSettings, load_settings

KAFKA_PREFIX = "kafka."
ZOOKEEPER_PREFIX = "zookeeper."
DEFAULT_MAX_OFFSETS = 1_000_000
"""The default limit per micro-batch. This many records fit in an executor's memory on a laptop. Spark's own source has
no limit.
"""


class StartingOffsets(StrEnum):
    """Where a partition without a committed offset starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnDataLoss(StrEnum):
    """What to do if the next offset is not in the log: records were deleted, or the topic was recreated."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class TimestampOutOfRange(StrEnum):
    """What to do with a record whose timestamp Spark cannot represent: fail, or replace it by the nearest time from
    year 1 to 9999."""

    FAIL = "fail"
    CLAMP = "clamp"


class LogLevel(StrEnum):
    """The lowest level that Spark's planning process logs to the driver's stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query. Times are in ms. ``zookeeper`` holds the connection settings, and ``kafka`` holds
    librdkafka's settings without their prefix. The driver's settings file and environment supply settings that the
    options leave out. ``wait_ms`` is how long the first micro-batch, a replayed one and an ``availableNow`` run wait
    for the query's partitions. An ``availableNow`` run also waits that long for the servers.
    """

    zookeeper: ZooKeeperSettings
    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    consumer_id: str = ""
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS
    min_partitions: int = 0
    starting_offsets: StartingOffsets = StartingOffsets.LATEST
    new_partitions: StartingOffsets = StartingOffsets.EARLIEST
    """Where a partition without a committed offset starts that came into being after the group's subscription first
    covered its topic."""
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    timestamp_out_of_range: TimestampOutOfRange = TimestampOutOfRange.FAIL
    include_headers: bool = False
    rejoin_grace_ms: int = 0
    capacity: int = 1
    wait_ms: int = 15_000
    log_level: LogLevel = LogLevel.WARNING
    kafka: Mapping[str, str] = field(default_factory=dict)

    @property
    def session_timeout_ms(self) -> int:
        return self.zookeeper.session_timeout_ms

    def for_executors(self) -> SourceOptions:
        """Returns the options without ZooKeeper credentials, for tasks, which do not connect to ZooKeeper."""
        place = ZooKeeperSettings(hosts=self.zookeeper.hosts, session_timeout_ms=self.session_timeout_ms)
        return replace(self, zookeeper=place)

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out. By default, librdkafka leaves them out,
        whereas Kafka's Java client does not."""
        return self.kafka.get("isolation.level", "read_committed") != "read_uncommitted"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Reads the options. Raises :class:`SettingsError`, which names the option that is wrong, missing or
        unknown."""
        options = {name.lower(): value for name, value in given.items()}
        passed_on = (KAFKA_PREFIX, ZOOKEEPER_PREFIX)
        unknown = sorted(name for name in options if name not in _KNOWN and not name.startswith(passed_on))
        if unknown:
            raise SettingsError(
                f"unknown option {unknown[0]!r} of format kafka_coord; valid options are "
                f"{', '.join(sorted(_KNOWN.values()))}, zookeeper.* (TLS, credentials) and kafka.* for librdkafka"
            )
        zookeeper, kafka = _connections(options)
        topics, pattern = _subscription(options)
        group = legal("group", _required(options, "group"))
        consumer_id = options.get("consumerid")
        return cls(
            zookeeper=zookeeper,
            group=group,
            topics=topics,
            pattern=pattern,
            consumer_id=legal("consumer", consumer_id) if consumer_id else generated_id(group),
            max_offsets_per_trigger=_number(options, "maxoffsetspertrigger", DEFAULT_MAX_OFFSETS, 1),
            min_partitions=_number(options, "minpartitions", 0, 0),
            starting_offsets=_starting_offsets(options),
            new_partitions=_choice(options, "autooffsetresetnewpartitions", StartingOffsets.EARLIEST),
            on_data_loss=_on_data_loss(options),
            timestamp_out_of_range=_choice(options, "timestampoutofrange", TimestampOutOfRange.FAIL),
            include_headers=_truth(options, "includeheaders", default=False),
            rejoin_grace_ms=_number(options, "rejoingracems", 0, 0),
            capacity=_number(options, "capacity", 1, 1),
            wait_ms=_number(options, "waitms", 15_000, 0),
            log_level=_choice(options, "loglevel", LogLevel.WARNING),
            kafka=kafka,
        )


_KNOWN = {
    name.lower(): name
    for name in (
        "zookeeper",
        "config",
        "group",
        "topics",
        "subscribePattern",
        "consumerId",
        "maxOffsetsPerTrigger",
        "minPartitions",
        "startingOffsets",
        "autoOffsetResetNewPartitions",
        "failOnDataLoss",
        "onDataLoss",
        "timestampOutOfRange",
        "includeHeaders",
        "sessionTimeoutMs",
        "rejoinGraceMs",
        "capacity",
        "waitMs",
        "logLevel",
        "ranges",
    )
}


def _connections(options: Mapping[str, str]) -> tuple[ZooKeeperSettings, Mapping[str, str]]:
    """Returns the settings for ZooKeeper and the settings for librdkafka."""
    given = {name: value for name, value in options.items() if name.startswith(ZOOKEEPER_PREFIX)}
    hosts = "zookeeper.hosts"
    if options.get("zookeeper", "").strip():
        given[hosts] = options["zookeeper"]
    if "sessiontimeoutms" in options:
        given["zookeeper.session_timeout_ms"] = options["sessiontimeoutms"]
    kafka = {name.removeprefix(KAFKA_PREFIX): v for name, v in options.items() if name.startswith(KAFKA_PREFIX)}
    settings = load_settings(given, file=options.get("config"), kafka_properties=kafka, called="the query's options")
    check_properties(settings)
    if hosts not in settings.origin:
        _required(options, "zookeeper")
    return settings.zookeeper, settings.kafka.properties


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name, "").strip()
    if not value:
        raise SettingsError(f"option {_KNOWN[name]!r} of format kafka_coord is missing")
    return value


def _subscription(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    topics, pattern = options.get("topics"), options.get("subscribepattern")
    if (topics is None) == (pattern is None):
        raise SettingsError("give one of the options 'topics' (a comma-separated list) or 'subscribePattern'")
    if pattern is not None:
        return (), pattern
    names = tuple(name.strip() for name in (topics or "").split(",") if name.strip())
    if not names:
        raise SettingsError("option 'topics' must name at least one topic")
    return tuple(legal("topic", name) for name in names), None


def _number(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise SettingsError(f"option {_KNOWN[name]!r} must be an integer of at least {least}, not {text!r}")
    return value


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in {"true", "false"}:
        raise SettingsError(f"option {_KNOWN[name]!r} must be true or false, not {text!r}")
    return text.lower() == "true"


_Choice = TypeVar("_Choice", bound=StrEnum)


def _choice(options: Mapping[str, str], name: str, default: _Choice) -> _Choice:
    text = options.get(name)
    if text is None:
        return default
    try:
        return type(default)(text.lower())
    except ValueError:
        raise SettingsError(f"option {_KNOWN[name]!r} must be {' or '.join(type(default))}, not {text!r}") from None


def _starting_offsets(options: Mapping[str, str]) -> StartingOffsets:
    if options.get("startingoffsets", "").startswith("{"):
        raise SettingsError(
            f"option {_KNOWN['startingoffsets']!r} cannot be JSON, because a query starts at the group's committed "
            f"offsets: set them with 'kafka-coord groups reset-offsets', and use {' or '.join(StartingOffsets)} here"
        )
    return _choice(options, "startingoffsets", StartingOffsets.LATEST)


def _on_data_loss(options: Mapping[str, str]) -> OnDataLoss:
    """Returns the policy for lost records. ``failOnDataLoss`` works as in Spark's own source, and ``onDataLoss`` says
    where to continue instead of failing."""
    fail = _truth(options, "failondataloss", default="ondataloss" not in options)
    policy = _choice(options, "ondataloss", OnDataLoss.FAIL if fail else OnDataLoss.EARLIEST)
    if "failondataloss" in options and fail != (policy is OnDataLoss.FAIL):
        raise SettingsError(
            f"options 'failOnDataLoss' ({options['failondataloss']}) and 'onDataLoss' ({policy}) contradict each other;"
            " give only one of them"
        )
    return policy
