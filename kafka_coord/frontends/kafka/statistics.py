"""Counts what a listener for Kafka clients has done since it started. Only one thread writes the counters, but any
thread may read them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kafka_coord.classic_groups.errors import CODES
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.model.durations import Durations

OTHER = "Other"
NAMES = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    26: "EndTxn",
    32: "DescribeConfigs",
    36: "SaslAuthenticate",
    60: "DescribeCluster",
} | {api_key: name for api_key, (name, _) in LOCAL.items()}
"""The names of the requests that are counted separately, by API key. All others are counted together, since a client
could invent any number of API keys."""
_PARTS = ("topics", "partitions", "groups", "coordinators", "results", "members")


@dataclass(slots=True)
class Statistics:
    """The counters of one listener."""

    answered: dict[str, Durations] = field(default_factory=lambda: defaultdict(Durations))
    """The seconds from a request to its complete response, by request name. Like the broker's TotalTimeMs, they include
    waits."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of this instance's own error responses, by request name and error name."""
    accepted: int = 0
    refused: int = 0
    closed: int = 0
    """The number of connections that ended for a reason worth logging."""
    received_bytes: int = 0
    sent_bytes: int = 0

    def took(self, api_key: int, took_s: float) -> None:
        self.answered[NAMES.get(api_key, OTHER)].add(took_s)

    def told(self, name: str, answer: Any) -> None:
        """Counts the first error in a response from this instance, if there is one."""
        code = first_error(answer)
        if code:
            self.errors[name, CODES.get(code, OTHER)] += 1


def first_error(answer: Any) -> int:
    """Returns the first error code other than NONE in a response, at any depth, or 0 if there is none."""
    has_code, parts = _errors_in(answer.__class__)
    if has_code and answer.error_code:
        return int(answer.error_code)
    for name in parts:
        for part in getattr(answer, name):
            if code := first_error(part):
                return code
    return 0


@cache
def _errors_in(kind: Hashable) -> tuple[bool, tuple[str, ...]]:
    """Returns whether a message of the given type has an error code of its own, and which of its fields to search for
    others."""
    fields = getattr(kind, "_fields", ())
    return "error_code" in fields, tuple(name for name in _PARTS if name in fields)
