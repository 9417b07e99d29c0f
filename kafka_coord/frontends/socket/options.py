"""The options of an instance's socket channel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Limits and intervals."""

    least_session_timeout_ms: int = 1_000
    """The shortest session timeout that a consumer may request."""
    most_session_timeout_ms: int = 300_000
    """The longest session timeout that a consumer may request."""
    most_consumers: int = 10_000
    """The maximum number of consumers that one instance accepts."""
    registrations_per_s: int = 200
    """The maximum number of registrations per second. The rest must be retried later, so that existing members do not
    have to wait and one rebalance serves many new consumers."""
    unregistered_ms: int = 10_000
    """How long a connection may stay open without an attempt to register."""
    commit_interval_ms: int = 100
    """How long the offsets in responses to pings are collected before they are written together."""
    metadata_age_ms: int = 200
    """The maximum age of metadata in a response."""
