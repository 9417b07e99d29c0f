"""The coordinator's timing options. The defaults suit most installations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Durations in ms.

    ``look_interval_ms``: the time between two passes over a group that has no events. A group that has been at rest for
    ``settled_after_ms`` (0: never) is recorded as such; later passes only check whether anything has changed.
    ``whole_look_interval_ms``: the time between two complete reads of such a group, which also find registrations and
    ledgers edited by hand. ``retry_backoff_ms`` to ``retry_backoff_max_ms``: how long a group waits when ZooKeeper has
    not answered. ``channel_retirement_ms``: how long the channel znode of a departed consumer is kept. It must be far
    longer than any session timeout, because the channel fences a frozen consumer of that name (ADR 3).
    ``answers_kept_ms``: how long the answer to an operator's request is kept if nobody fetches it. ``resign_pause_ms``:
    how long an instance that was told to resign stays out of the election.
    """

    look_interval_ms: int = 60_000
    settled_after_ms: int = 5_000
    whole_look_interval_ms: int = 600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 5_000
    channel_retirement_ms: int = 600_000
    answers_kept_ms: int = 600_000
    resign_pause_ms: int = 2_000
