"""Lets the gateway ask the coordinator service whether this instance is elected."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka_coord.coordinator.service import CoordinatorService
    from kafka_coord.zk.election import Leadership


class LeadershipView:
    """Tells the gateway whether this instance is elected. ``service`` is set only after the gateway has started,
    because the service publishes the gateway's address."""

    def __init__(self) -> None:
        self.service: CoordinatorService | None = None

    def leadership(self) -> Leadership | None:
        """Returns the current leadership, even while it is uncertain whether this instance still leads."""
        return self.service.leadership if self.service is not None else None

    def leads(self) -> bool:
        """Returns whether it is certain that this instance is elected now."""
        return self.service is not None and self.service.elected
