"""How long the answer to a heartbeat may be held back while there is no news for its client (ADR 20)."""

from __future__ import annotations

_LONGEST_S = {
    "librdkafka": 15.0,
    "confluent-kafka": 15.0,
    "apache-kafka-java": 6.0,
    "kgo": 6.0,
}
"""By how a software name begins. librdkafka waits for its session timeout, and no setting changes that. franz-go (kgo)
closes a connection after 10 s without an answer, the Java client after 30 s. 6 s is longer than their intervals between
heartbeats and between commits, so the next heartbeat follows at once. Other clients may close their connection
sooner (kafka-go: after 5 s), or send nothing else meanwhile."""


def longest_hold_s(software: str) -> float:
    """By the client's software name in ApiVersions; 0, do not hold, for one that is unknown or tells none."""
    return next((longest_s for name, longest_s in _LONGEST_S.items() if software.startswith(name)), 0.0)


def waits_beyond_interval(software: str) -> bool:
    """Whether a KIP-848 client waits for a heartbeat's answer however short the interval is that it was told."""
    return software.startswith(("apache-kafka-java", "kgo"))


def hold_limit_s(longest_s: float, session_timeout_s: float, silent_s: float) -> float:
    """At most a third of the session timeout. ``silent_s`` is how long nothing came from the member before this
    heartbeat: after the hold it may be silent as long again, and both together stay within two thirds. Not positive:
    answer at once."""
    return min(longest_s, session_timeout_s / 3, session_timeout_s * 2 / 3 - silent_s)
