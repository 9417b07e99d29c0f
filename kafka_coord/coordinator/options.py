"""The coordinator's timing options. The defaults suit most installations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The coordinator's timing options, in ms. ``look_interval_ms`` is the time between two passes over a group without
    events. A group that has been at rest for ``settled_after_ms`` (0 means never) is recorded as such, and later passes
    only check whether anything has changed. ``whole_look_interval_ms`` is the time between two complete reads of such a
    group, which also find registrations and ledgers edited by hand. After a failed pass, the group is retried after
    ``retry_backoff_ms``, which doubles with every further failure up to ``retry_backoff_max_ms``.
    ``channel_retirement_ms`` is how long a departed consumer's channel znode is kept. It must be far longer than any
    session timeout, because the channel fences a frozen consumer of the same name (ADR 3). ``answers_kept_ms`` is how
    long the response to an operator's request is kept if no one fetches it. After an operator's resign request, an
    instance stays out of the election for ``resign_pause_ms``."""

    look_interval_ms: int = 60_000
    settled_after_ms: int = 5_000
    whole_look_interval_ms: int = 600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 5_000
    channel_retirement_ms: int = 600_000
    answers_kept_ms: int = 600_000
    resign_pause_ms: int = 2_000
