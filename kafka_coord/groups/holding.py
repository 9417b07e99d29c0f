"""How long a Heartbeat that nothing is to be said to may wait for its answer."""

from __future__ import annotations

LONGEST_S = 15.0
LONGEST_OF_OTHERS_S = 4.0
"""For clients not known to be patient: kafka-go closes its connection after 5 s without an answer, franz-go after 10 s."""
_PATIENT = ("apache-kafka-java", "librdkafka", "confluent-kafka", "aiokafka", "kafka-python", "sarama", "kafkajs")
"""Software names, as far as they are common to its releases. Their requests time out after 30 s or more, or (librdkafka)
after the session timeout."""


def longest_hold_s(software: str) -> float:
    """By the client's software name in ApiVersions; empty where it tells none."""
    return LONGEST_S if software.lower().startswith(_PATIENT) else LONGEST_OF_OTHERS_S


def hold_limit_s(longest_s: float, session_timeout_s: float, silent_s: float) -> float:
    """At most a third of the session timeout. ``silent_s`` is how long nothing came from the member before this
    heartbeat: after the hold it may be silent as long again, and both together stay within two thirds. Not positive:
    answer at once."""
    return min(longest_s, session_timeout_s / 3, session_timeout_s * 2 / 3 - silent_s)
