"""The counters of a listener for Kafka clients since its start. One thread writes them; any thread may read them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.routing import LOCAL

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
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
"""Requests that are counted by name. All others are counted together, because clients could send any number of
names."""
_CODES = {int(error): error.name for error in Error}
_PARTS = ("topics", "partitions", "groups", "coordinators", "results", "members")


@dataclass(slots=True)
class Times:
    """``buckets`` counts durations up to each of :data:`BOUNDS_S`, and longer ones; ``total_s`` is their sum."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, took_s: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, took_s)] += 1
        self.total_s += took_s


@dataclass(slots=True)
class Statistics:
    """``answered``, by request name: durations from the first byte read of the request to the last byte sent of its
    answer. ``errors``: local answers with an error, by request name and error name."""

    answered: dict[str, Times] = field(default_factory=dict)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    accepted: int = 0
    refused: int = 0
    closed: int = 0
    """Connections that the listener closed for a reason."""
    received_bytes: int = 0
    sent_bytes: int = 0

    def took(self, api_key: int, took_s: float) -> None:
        """Counts a request that was answered."""
        name = NAMES.get(api_key, OTHER)
        times = self.answered.get(name)
        if times is None:
            times = self.answered[name] = Times()
        times.add(took_s)

    def told(self, name: str, answer: Any) -> None:
        """Counts an answer of this instance."""
        code = first_error(answer)
        if code:
            self.errors[name, _CODES.get(code, OTHER)] += 1


def first_error(answer: Any) -> int:
    """The first error code other than NONE in an answer, at any depth; otherwise 0."""
    has_code, parts = _errors_in(answer.__class__)
    if has_code and answer.error_code:
        return int(answer.error_code)
    for name in parts:
        for part in getattr(answer, name):
            if found := first_error(part):
                return found
    return 0


@cache
def _errors_in(kind: Hashable) -> tuple[bool, tuple[str, ...]]:
    """Whether such an answer, or part of one, has an error code, and which fields have further parts."""
    fields = getattr(kind, "_fields", ())
    return "error_code" in fields, tuple(name for name in _PARTS if name in fields)
