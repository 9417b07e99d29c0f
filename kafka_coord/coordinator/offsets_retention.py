"""Computes when the committed offsets of an empty managed group expire. ``plan.group_removal`` then removes the group.

For client-assigned groups, ``GroupMetadataManager.delete_expired_consumer_offsets`` (``grouplog.manager``) decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka_coord.model import Assignment, GroupSettings, Ledger


def offsets_expire_at_ms(
    registered: Collection[str],
    ledgers: Mapping[str, Ledger],
    target: Assignment | None,
    settings: GroupSettings | None,
) -> int | None:
    """Returns when the group's offsets expire (ms since 1970), or ``None`` while the group is not known to be empty.

    A group has been empty since its empty target was written. A target with members does not count, even if none of
    them exists, because it may be older than the retention. A coordinator that dies between forgetting the last member
    and emptying the target leaves such a target behind.
    """
    if settings is None:  # unreadable settings may ask for a longer retention than the default
        return None
    if registered or ledgers or target is None or target.members:
        return None
    return target.timestamp_ms + settings.offsets_retention_ms
