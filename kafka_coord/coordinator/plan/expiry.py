"""Removes an empty group once the retention of its offsets has passed."""

from __future__ import annotations

from kafka_coord.coordinator.plan.membership import Membership
from kafka_coord.coordinator.plan.requests import pending, refused
from kafka_coord.coordinator.steps import Step
from kafka_coord.model import Observation, RequestType


def expiry_steps(observation: Observation, membership: Membership) -> list[Step] | None:
    """The answers if the group has been empty for longer than its retention; ``None`` while it must stay.

    ``coordinator.deadlines`` decides how long a group has been empty (``observation.expired``).
    """
    nobody = not membership.effective and not membership.any_registration_unreadable
    if not observation.expired or not nobody or observation.pause is not None:
        return None
    asked = pending(observation)
    if any(request.type in {RequestType.RESET_OFFSETS, RequestType.DELETE_OFFSETS} for request in asked):
        return None
    return [
        refused(r, "the group was removed: it was empty for longer than the retention of its offsets") for r in asked
    ]
