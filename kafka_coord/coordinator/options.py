"""The coordinator's timing options. The defaults suit most installations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The coordinator's timing options, in ms.

    - ``look_interval_ms``: the time between two passes over a group that has no events.
    - ``settled_after_ms``: how long a group must be at rest before it is recorded as such and later passes only check
      whether anything has changed. 0 means never.
    - ``whole_look_interval_ms``: the time between two complete reads of a group at rest, which also find registrations
      and ledgers edited by hand.
    - ``retry_backoff_ms``: the delay before a failed pass is retried. It doubles with every further failure, up to
      ``retry_backoff_max_ms``.
    - ``channel_retirement_ms``: how long a departed consumer's channel znode is kept. It must be far longer than any
      session timeout, because the channel fences a frozen consumer of the same name (ADR 3).
    - ``answers_kept_ms``: how long the response to an operator's request is kept if no one fetches it.
    - ``resign_pause_ms``: how long an instance stays out of the election after an operator asked it to resign.
    """

    look_interval_ms: int = 60_000
    settled_after_ms: int = 5_000
    whole_look_interval_ms: int = 600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 5_000
    channel_retirement_ms: int = 600_000
    answers_kept_ms: int = 600_000
    resign_pause_ms: int = 2_000
