"""Defines the options of an instance's socket channel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Limits and intervals.

    A consumer may request a session timeout from ``least_session_timeout_ms`` to ``most_session_timeout_ms``. One
    instance accepts at most ``most_consumers`` consumers. Registrations above the rate ``registrations_per_s`` must be
    retried later, so that members do not wait and one rebalance serves many consumers. A connection is closed if its
    client does not try to register within ``unregistered_ms``. Offsets that arrive in responses to pings are collected
    for ``commit_interval_ms`` and then written together. Metadata is at most ``metadata_age_ms`` old.
    """

    least_session_timeout_ms: int = 1_000
    most_session_timeout_ms: int = 300_000
    most_consumers: int = 10_000
    registrations_per_s: int = 200
    unregistered_ms: int = 10_000
    commit_interval_ms: int = 100
    metadata_age_ms: int = 200
