"""What can be set about the socket channel of an instance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Limits. Durations in ms.

    ``least_session_timeout_ms`` … ``most_session_timeout_ms``: what a consumer may ask for. ``most_consumers``: of one
    instance. ``registrations_per_s``: more are told when to come again, so that those who are members are not kept
    waiting, and one rebalance serves many. ``unregistered_ms``: how long a connection may take to register or ask for
    the cluster's metadata. ``commit_interval_ms``: how long offsets that came with pings are collected before they are
    written together. ``metadata_age_ms``: how old the brokers may be that are told.
    """

    least_session_timeout_ms: int = 1_000
    most_session_timeout_ms: int = 300_000
    most_consumers: int = 10_000
    registrations_per_s: int = 200
    unregistered_ms: int = 10_000
    commit_interval_ms: int = 100
    metadata_age_ms: int = 200
