"""Tells systemd, the log and the other programs of the cluster when an instance is ready, and what it waits for."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from kafka_coord.errors import StoreUnavailable
from kafka_coord.monitor.metrics import state

if TYPE_CHECKING:
    from kafka_coord.coordinator.service import CoordinatorService
    from kafka_coord.frontends.kafka.listener import KafkaListener

log = logging.getLogger("kafka_coord.serve")


class Status:
    """What the instance ``broker_id`` has told about itself. Call :meth:`look` often."""

    def __init__(self, broker_id: int, service: CoordinatorService, kafka: KafkaListener | None) -> None:
        self._broker_id, self._service, self._kafka = broker_id, service, kafka
        self._was_ready = False
        self._told = ""

    def look(self) -> None:
        """Tells what has changed since the last call. Once the instance has been ready, it stays so."""
        is_ready, waiting_for = state(self._service, self._kafka)
        is_ready = is_ready or self._was_ready
        words = f"registered as instance {self._broker_id}" if self._service.registered else "not registered yet"
        status = f"{words}; waiting for {waiting_for}" if waiting_for else words
        if is_ready and not self._was_ready:
            self._was_ready = True
            why = f" although it waits for {waiting_for}" if waiting_for else ""
            log.info("ready broker_id=%d%s", self._broker_id, why, extra={"event": "ready"})
            notify_systemd(f"READY=1\nSTATUS={status}")
        elif status != self._told and self._service.registered:
            notify_systemd(f"STATUS={status}")
        self._told = status
        with contextlib.suppress(StoreUnavailable):
            only_registers = self._kafka is None  # then the registration itself says that it is ready
            self._service.tell(
                ready=is_ready or only_registers,
                waiting_for="" if only_registers else waiting_for,
                withdrawn=() if self._kafka is None or self._kafka.is_listening else ("kafka",),
            )


def notify_systemd(state: str) -> None:
    """Notifies systemd if it started this process (``NOTIFY_SOCKET``, see sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.connect("\0" + address[1:] if address.startswith("@") else address)
        notifications.sendall(state.encode())
