"""The coordinator's service, as the gateway sees it."""

from __future__ import annotations

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.zk.election import Leadership


class ServiceLeadership:
    """Asks ``service``. It is set later, because the service publishes the gateway's address, so the gateway starts
    first."""

    def __init__(self) -> None:
        self.service: CoordinatorService | None = None

    def leadership(self) -> Leadership | None:
        return self.service.leadership if self.service is not None else None

    def leads(self) -> bool:
        return self.service is not None and self.service.elected
