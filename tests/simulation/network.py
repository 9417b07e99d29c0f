"""Carries the connections between simulated consumers and gateways, and breaks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.kafka_members import KafkaMember
from tests.simulation.process import Process
from tests.simulation.sockets import SimulatedClient, Wire

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster


class SimulatedNetwork:
    """Implements :class:`~tests.simulation.sockets.Network` for ``cluster``."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster

    def dial(self, process: Process, host: str) -> Wire | None:
        """Opens a connection. A frozen host also accepts a connection, but sends nothing."""
        server = self.cluster.processes[host]
        end = server.listener if isinstance(process.client, KafkaMember) else server.gateway
        if not server.alive or end is None or self.cluster.clock.now < process.unreachable_until:
            return None
        wire = Wire(process.name, host, self)
        end.accept(wire)
        self.said(host)
        return wire

    def said(self, process: str) -> None:
        """Records that a process has input (sockets.Network)."""
        self.cluster.processes[process].ready_until = 0.0

    def may_say(self, wire: Wire) -> bool:
        """Tells whether the connection carries the next message (sockets.Network)."""
        if not wire.broken and self.cluster.loses():
            self.cluster.occurred["frame lost"] += 1
            self.break_wire(wire, f"{wire.client} - {wire.host}: the next message is lost with the connection")
        return not wire.broken

    def break_wire(self, wire: Wire, why: str) -> None:
        """Breaks the connection. Some messages in flight still arrive. Each end notices this immediately, later, or
        never."""
        if wire.broken:
            return
        self.cluster.say(why)
        wire.broken = True
        for direction in (wire.up, wire.down):
            for _ in range(self.cluster.rng.randint(0, len(direction))):
                direction.pop()

        def end_up() -> None:
            wire.up_ended = True
            self.said(wire.host)

        def end_down() -> None:
            wire.down_ended = True
            self.said(wire.client)

        for end in (end_up, end_down):
            delay = self.cluster.rng.choice((0.0, 0.5, 5.0, None))
            if delay is not None:
                self.cluster.later(self.cluster.rng.random() * delay, end)

    def hang_up(self, process: Process) -> None:
        """Closes the connection of a consumer whose program has ended."""
        if isinstance(process.client, SimulatedClient):
            process.client.close()
