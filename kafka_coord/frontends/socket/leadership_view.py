"""The coordinator's service, as the gateway sees it."""

from __future__ import annotations

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.zk.election import Leadership


class ServiceLeadership:
    """Asks ``service``, which is set later: the gateway starts before the service, which publishes the gateway's
    address."""

    def __init__(self) -> None:
        self.service: CoordinatorService | None = None

    def leadership(self) -> Leadership | None:
        return self.service.leadership if self.service is not None else None

    def leads(self) -> bool:
        return self.service is not None and self.service.elected
