"""The options of an instance's socket channel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Limits and intervals. Durations in ms.

    ``least_session_timeout_ms`` … ``most_session_timeout_ms``: the session timeouts that a consumer may ask for.
    ``most_consumers``: the maximum number of consumers of one instance. ``registrations_per_s``: consumers above this
    rate are told when to retry, so that members are not kept waiting and one rebalance serves many consumers.
    ``unregistered_ms``: how long a connection may stay without registering or asking for metadata.
    ``commit_interval_ms``: how long offsets from ping replies are collected before they are written together.
    ``metadata_age_ms``: the maximum age of metadata.
    """

    least_session_timeout_ms: int = 1_000
    most_session_timeout_ms: int = 300_000
    most_consumers: int = 10_000
    registrations_per_s: int = 200
    unregistered_ms: int = 10_000
    commit_interval_ms: int = 100
    metadata_age_ms: int = 200
