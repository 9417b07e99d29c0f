"""The members of a healthy cluster: every kind, in groups of every kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.dev.demo.options import Kind
from kafka_coord.dev.demo.workforce import MODULES

TOPIC = "healthy"
MANAGED, NATIVE = "managed", "native"
"""What the names of managed and of native groups begin with."""
_OWN_SESSION_MS, _STOCK_SESSION_MS = 12_000, 45_000
_RECORDS_PER_S = 200.0


@dataclass(frozen=True, slots=True)
class Member:
    """One member. ``socket`` only matters for this project's consumers, ``strategy`` and ``static`` only for stock
    clients that use the classic protocol."""

    name: str
    group: str
    kind: Kind
    socket: bool = False
    strategy: str = "cooperative-sticky"
    static: bool = False

    def command(self, directory: Path, zookeeper: str, channel: str, instances: str) -> Sequence[str]:
        """Returns the command that runs the member. ``channel`` and ``instances`` are the instances' addresses for
        socket consumers and for stock clients."""
        stock = self.kind in {Kind.CLASSIC, Kind.CONSUMER}
        bootstrap = instances if stock else channel if self.socket else ""
        return [
            *(sys.executable, "-m", MODULES[self.kind]),
            *(("--bootstrap", bootstrap) if bootstrap else ("--zookeeper", zookeeper)),
            *("--group", self.group, "--topic", TOPIC, "--consumer-id", self.name),
            *("--journal", str(directory / f"{self.name}.jsonl"), "--records-per-s", str(_RECORDS_PER_S)),
            *("--session-timeout-ms", str(_STOCK_SESSION_MS if stock else _OWN_SESSION_MS)),
            *(("--group-protocol", "consumer") if self.kind is Kind.CONSUMER else ("--strategy", self.strategy)),
            *(("--static",) if self.static else ()),
        ]


def every_kind(*, spark: bool, kraft: bool = False) -> tuple[Member, ...]:
    """Returns members of every kind: all kinds together in one managed group, each kind in a group of its own, and what
    the brokers know in native groups too (with ``kraft``, that includes KIP-848)."""
    together = f"{MANAGED}-together"
    return (
        *_members(together, Kind.OWN),
        *_members(together, Kind.OWN, socket=True),
        *_members(together, Kind.CONSUMER),
        *_members(together, Kind.CLASSIC, strategy="range"),
        *_members(together, Kind.CLASSIC),
        *_members(together, Kind.CLASSIC, static=True),
        *_members(f"{MANAGED}-own", Kind.OWN, 2),
        *_members(f"{MANAGED}-socket", Kind.OWN, 2, socket=True),
        *_members(f"{MANAGED}-kip-848", Kind.CONSUMER, 2),
        *_members("eager", Kind.CLASSIC, 2, strategy="range"),
        *_members("cooperative", Kind.CLASSIC, 2),
        *_members("static", Kind.CLASSIC, 2, static=True),
        *_members(f"{NATIVE}-eager", Kind.CLASSIC, strategy="range"),
        *_members(f"{NATIVE}-cooperative", Kind.CLASSIC),
        *_members(f"{NATIVE}-cooperative", Kind.CLASSIC, static=True),
        *(_members(f"{NATIVE}-kip-848", Kind.CONSUMER) if kraft else ()),
        *(_members(f"{MANAGED}-spark", Kind.SPARK) if spark else ()),
        *(_members(f"{MANAGED}-spark", Kind.OWN) if spark else ()),
    )


def _members(
    group: str,
    kind: Kind,
    count: int = 1,
    *,
    socket: bool = False,
    strategy: str = "cooperative-sticky",
    static: bool = False,
) -> list[Member]:
    words = [str(kind), *(["socket"] if socket else []), *(["static"] if static else [])]
    words += [strategy.partition("-")[0]] if kind is Kind.CLASSIC else []
    return [
        Member(f"{group}.{'-'.join(words)}-{number}", group, kind, socket, strategy, static)
        for number in range(1, count + 1)
    ]
