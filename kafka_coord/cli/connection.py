"""Reads a command's settings and opens its ZooKeeper session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kafka_coord.errors import SettingsError
from kafka_coord.settings import Settings, load_settings, variable_of
from kafka_coord.zk import connect_with

if TYPE_CHECKING:
    from kafka_coord.zk import KazooStore

F = TypeVar("F", bound=Callable[..., Any])

_META = "kafka_coord.given"


def _remember(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            ctx.meta.setdefault(_META, {})[key] = value

    return callback


def connection_options(command: F) -> F:
    """Adds ``--zookeeper``, ``--config`` and ``--kafka-property``, which are also allowed before the command's name."""
    for option in (
        click.option(
            "--kafka-property",
            metavar="KEY=VALUE",
            multiple=True,
            expose_value=False,
            allow_from_autoenv=False,
            callback=_remember("kafka"),
            help="A librdkafka property for the connection to the brokers; repeatable.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            expose_value=False,
            allow_from_autoenv=False,
            callback=_remember("config"),
            help="A TOML file with settings. [env var: KAFKA_COORD_CONFIG]",
        ),
        click.option(
            "--zookeeper",
            "-z",
            metavar="HOSTS",
            expose_value=False,
            allow_from_autoenv=False,
            callback=_remember("zookeeper.hosts"),
            help="ZooKeeper's connect string, host:port,host:port/chroot. "
            "[env var: KAFKA_COORD_ZOOKEEPER; default: localhost:2181]",
        ),
    ):
        command = option(command)
    return command


def current_settings(**flags: Any) -> Settings:
    """Reads the settings of the running command. ``flags`` maps a key, with ``__`` for its dot, to the flag's value."""
    given = dict(click.get_current_context().meta.get(_META, {}))
    given.pop("config", None)
    properties = dict(_property(written) for written in given.pop("kafka", ()))
    given |= {key.replace("__", "."): value for key, value in flags.items() if not _from_own_variable(key)}
    from kafka_coord.consumer.other_clients import check_properties  # imported here, because --help needs no model

    return check_properties(load_settings(given, file=given_config(), kafka_properties=properties))


def _from_own_variable(key: str) -> bool:
    """Returns whether click took the value from an environment variable that :func:`load_settings` reads itself."""
    ctx = click.get_current_context()
    source = ctx.get_parameter_source(key.partition("__")[2])
    return source is ParameterSource.ENVIRONMENT and variable_of(key.replace("__", ".")) in os.environ


def _property(written: str) -> tuple[str, str]:
    key, equals, value = written.partition("=")
    if not key.strip() or not equals:
        shown = key[:60] if equals else written[:60]
        raise SettingsError(f"--kafka-property {shown!r} is not KEY=VALUE, for example security.protocol=SSL")
    return key.strip(), value


@contextmanager
def open_store(settings: Settings | None = None) -> Iterator[KazooStore]:
    """Opens a ZooKeeper session for the duration of one command."""
    settings = settings or current_settings()
    try:
        store = connect_with(settings.zookeeper, settings)
    except SettingsError as error:
        origin = settings.origin.get("zookeeper.hosts")
        raise SettingsError(f"{error} (from {origin})" if origin else str(error)) from error
    try:
        yield store
    finally:
        store.close()


def given_config() -> Path | None:
    """Returns the path given with ``--config``, or ``None``."""
    config = click.get_current_context().meta.get(_META, {}).get("config")
    return Path(config) if config else None
