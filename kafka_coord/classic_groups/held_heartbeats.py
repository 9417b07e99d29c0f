"""How long the answer to a heartbeat may be held back while there is no news for its client (ADR 20)."""

from __future__ import annotations

_LONGEST_S = {
    "librdkafka": 15.0,
    "confluent-kafka": 15.0,
    "apache-kafka-java": 6.0,
    "kgo": 6.0,
}
"""By prefix of the software name. librdkafka waits for its session timeout, which no setting changes. franz-go (kgo)
closes a connection after 10 s without an answer, the Java client after 30 s. 6 s is longer than their intervals between
heartbeats and between commits, so the next heartbeat follows at once. Other clients may close their connection sooner
(kafka-go: after 5 s), or send nothing else meanwhile."""


def longest_hold_s(software: str) -> float:
    """How long a client with this software name (from ApiVersions) can wait; 0 for an unknown or missing name: do not
    hold."""
    return next((longest_s for name, longest_s in _LONGEST_S.items() if software.startswith(name)), 0.0)


def waits_beyond_interval(software: str) -> bool:
    """Whether a KIP-848 client waits for the answer to its heartbeat even if that takes longer than the interval it was
    told."""
    return software.startswith(("apache-kafka-java", "kgo"))


def hold_limit_s(longest_s: float, session_timeout_s: float, silent_s: float) -> float:
    """The longest hold: at most a third of the session timeout. ``silent_s`` is how long the member had sent nothing
    before this heartbeat. After the hold, it may be silent as long again, and both together stay within two thirds. If
    the result is not positive, answer at once."""
    return min(longest_s, session_timeout_s / 3, session_timeout_s * 2 / 3 - silent_s)
