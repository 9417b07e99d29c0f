"""What an instance tells the others about itself while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafka_coord.cli.serve import Status


@dataclass
class _Service:
    registered: bool = True
    told: dict[str, Any] = field(default_factory=dict)

    def tell(self, **told: Any) -> None:
        self.told = told


@dataclass
class _Readiness:
    is_ready: bool = True


@dataclass
class _Listener:
    is_listening: bool = True
    reason: str = ""
    readiness: _Readiness = field(default_factory=_Readiness)

    def waiting_for(self) -> str:
        return self.reason


def test_an_instance_that_refuses_kafka_clients_withdraws_their_address_and_stays_ready() -> None:
    service, kafka = _Service(), _Listener()
    status = Status(1, service, kafka)  # type: ignore[arg-type]
    status.look()
    assert service.told == {"ready": True, "waiting_for": "", "withdrawn": ()}
    kafka.is_listening, kafka.reason = False, "its broker"
    status.look()
    assert service.told == {"ready": True, "waiting_for": "its broker", "withdrawn": ("kafka",)}
    kafka.is_listening, kafka.reason = True, ""
    status.look()
    assert service.told == {"ready": True, "waiting_for": "", "withdrawn": ()}


def test_an_instance_without_a_listener_withdraws_nothing() -> None:
    service = _Service()
    Status(1, service, None).look()  # type: ignore[arg-type]
    assert service.told == {"ready": True, "waiting_for": "", "withdrawn": ()}
