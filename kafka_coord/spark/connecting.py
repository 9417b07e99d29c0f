"""Determines a query's ZooKeeper and broker settings from its options, a settings file and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_coord.settings import Settings, ZooKeeperSettings, load_settings

if TYPE_CHECKING:
    from kafka_coord.zk.store import Store


def query_settings(given: Mapping[str, str], config: str | None, kafka: Mapping[str, str] | None = None) -> Settings:
    """Returns the settings for ZooKeeper and librdkafka. As in every command, ``given`` settings override
    ``KAFKA_COORD_*`` variables, which override the file ``config`` (by default, ``KAFKA_COORD_CONFIG``). Raises
    :class:`SettingsError`.
    """
    return load_settings(given, file=config, kafka_properties=kafka, called="the query's options")


def open_zookeeper(settings: ZooKeeperSettings) -> Store:
    """Opens a ZooKeeper session. Raises the same errors as :func:`kafka_coord.zk.session.connect`."""
    from kafka_coord.zk.options_from_settings import zookeeper_options
    from kafka_coord.zk.session import connect

    return connect(
        settings.hosts,
        session_timeout_ms=settings.session_timeout_ms,
        connect_timeout_s=settings.connect_timeout_ms / 1000,
        options=zookeeper_options(settings),
    )


def without_secrets(settings: ZooKeeperSettings) -> ZooKeeperSettings:
    """Removes everything but the servers and the session timeout, for processes that do not connect."""
    return replace(ZooKeeperSettings(), hosts=settings.hosts, session_timeout_ms=settings.session_timeout_ms)
