"""The consumers of a run. The testbed passes its description to each process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.chaos.journal import Group, Participant
from tests.chaos.journal.consumers import CONFLUENT, JAVA
from tests.chaos.logins import MEMBER, login

STOCK = frozenset({CONFLUENT, JAVA})
"""The kinds that are stock Kafka clients. Their bootstrap servers are the instances, and they do not use ZooKeeper."""
PLAIN = "plain"
"""The kind that reads every partition without a group."""
MODULES = {"library": "worker", "third-party": "foreign", "spark": "spark", PLAIN: "clients.plain"} | {
    CONFLUENT: "clients.confluent"
}
"""Maps each kind of consumer to the module that runs it."""

PREFIX = "chaos-"
"""The prefix of the names of all topics of a run."""

EAGER_GROUP = "eager"

SOCKET_SESSION_MS = 14_000

CONSUMER_PROTOCOL = "consumer"
"""The ``group.protocol`` of KIP-848."""

REBALANCE_TIMEOUT_MS = 60_000
"""The groups' rebalance timeout, which is the default. It limits how long a stop-fetcher may be unanswered."""


@dataclass(frozen=True, slots=True)
class Part:
    """One consumer. It commits after ``commit_every`` records, or automatically if this is 0. A batch of up to
    ``batch`` records takes ``work_s`` seconds. ``kind`` is one of :data:`MODULES`."""

    name: str
    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    kind: str = "library"
    streams: int = 1
    mode: str = "incremental"
    assignor: str | None = None
    commit_every: int = 0
    latest: bool = False
    """Whether its group begins at the end."""
    batch: int = 200
    work_s: float = 0.0
    session_timeout_ms: int = 6_000
    rejoin_grace_ms: int = 0
    iterates: bool = False
    """Whether it reads record by record instead of in batches."""
    socket: bool = False
    """Whether it uses a socket. Then ``channel`` is the address at which it searches for the coordinator."""
    channel: str = ""
    strategy: str = "range"
    """A stock client's assignor."""
    static: bool = False
    """Whether a stock client has its name as ``group.instance.id``."""
    protocol: str = "classic"
    """A stock client's ``group.protocol``. The instances set the session timeout of a KIP-848 member."""
    user: str = MEMBER
    """As whom it logs in at the brokers."""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Further properties of librdkafka."""

    @property
    def stock(self) -> bool:
        return self.kind in STOCK

    @property
    def security(self) -> dict[str, str]:
        """The properties with which its client connects to the brokers."""
        return login(self.user) | dict(self.properties)

    @property
    def cooperative(self) -> bool:
        """Whether a stock client gives up only moving partitions."""
        return self.protocol == CONSUMER_PROTOCOL or self.strategy.startswith("cooperative")

    def participant(self) -> Participant:
        return Participant(self.name, self.group, self.described(), self.session_timeout_ms, self.rejoin_grace_ms)

    def described(self) -> str:
        """Returns its kind and options in words."""
        words = [self.kind]
        words += ["socket"] if self.socket else []
        words += ["iterates"] if self.iterates else []
        words += ["slow"] if self.work_s else []
        words += [f"{self.streams} streams"] if self.streams > 1 else []
        words += ["eager"] if self.mode == "eager" or (self.stock and not self.cooperative) else []
        words += ["commits itself"] if self.commit_every else []
        words += [self.protocol, self.strategy] if self.stock else []
        words += ["static"] if self.static else []
        words += ["grace"] if self.rejoin_grace_ms else []
        return ", ".join(words)

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> Part:
        value = json.loads(text)
        return cls(**value | {"topics": tuple(value["topics"])})


TOPICS = {f"{PREFIX}a": 12, f"{PREFIX}b": 6, f"{PREFIX}c": 6}
"""Maps the topics at the start to their numbers of partitions."""


def cast(*, third_party: bool, spark: bool = False) -> tuple[Part, ...]:
    """Returns the consumers at the start. Their groups cover all options of consumers, and one group has a Spark
    query."""
    a, b, c = (f"{PREFIX}{letter}" for letter in "abc")
    parts = [
        *(Part(f"auto-{n}", "auto", (a,), rejoin_grace_ms=8_000 if n == 3 else 0, iterates=n == 2) for n in (1, 2, 3)),
        *(Part(f"manual-{n}", "manual", (a, b), commit_every=150) for n in (1, 2, 3)),
        *(Part(f"pattern-{n}", "pattern", pattern=f"{PREFIX}.*", streams=2) for n in (1, 2)),
        Part("slow-1", "slow", (c,), work_s=1.2, batch=300),
        Part("slow-2", "slow", (c,)),
        *(Part(f"eager-{n}", EAGER_GROUP, (b,), mode="eager") for n in (1, 2)),
        Part("mixed-1", "mixed", (c,), iterates=True),
        Part("mixed-2", "mixed", (c,), kind="third-party" if third_party else "library"),
    ]
    parts += [
        # These exceed twice the instances' session timeout, so the consumers survive the death of a coordinator.
        Part("socket-1", "socket", (b,), socket=True, session_timeout_ms=SOCKET_SESSION_MS),
        Part("socket-2", "socket", (b,), socket=True, session_timeout_ms=SOCKET_SESSION_MS, commit_every=150),
        Part("socket-3", "socket", (b,)),
    ]
    if spark:
        parts += [Part("spark-1", "spark", (b,), kind="spark"), Part("spark-2", "spark", (b,))]
    return tuple(parts)


def stock_cast() -> tuple[Part, ...]:
    """Returns stock clients, with a group for each kind of rebalance, commit and membership."""
    a, b, c = (f"{PREFIX}{letter}" for letter in "abc")

    def member(name: str, group: str, topic: str, **more: Any) -> Part:
        return Part(name, group, (topic,), kind=CONFLUENT, **more)

    cooperative = {"strategy": "cooperative-sticky", "commit_every": 50}
    return (
        *(member(f"eager-{n}", EAGER_GROUP, b, commit_every=100) for n in (1, 2)),
        *(member(f"cooperative-{n}", "cooperative", a, static=n == 3, **cooperative) for n in (1, 2, 3)),
        *(member(f"auto-{n}", "auto", c, strategy="roundrobin") for n in (1, 2)),
        *(member(f"busy-{n}", "busy", c, commit_every=5, batch=10, static=n == 2) for n in (1, 2)),
    )


def mixed_cast() -> tuple[Part, ...]:
    """Returns two managed groups with members of every kind. In the second group, stock clients are static members."""
    a, b, c = (f"{PREFIX}{letter}" for letter in "abc")
    return (*_of_every_kind("every", (a,)), *_of_every_kind("static", (b, c), static=True))


def _of_every_kind(group: str, topics: tuple[str, ...], *, static: bool = False) -> tuple[Part, ...]:
    def stock(name: str, **more: Any) -> Part:
        return Part(f"{group}-{name}", group, topics, kind=CONFLUENT, static=static, **more)

    kip_848 = {"protocol": CONSUMER_PROTOCOL, "strategy": "uniform"}
    return (
        Part(f"{group}-zookeeper", group, topics, commit_every=150 if static else 0),
        Part(f"{group}-socket", group, topics, socket=True, session_timeout_ms=SOCKET_SESSION_MS),
        stock("commits", commit_every=50, **kip_848),
        stock("auto", **kip_848),
        stock("cooperative", strategy="cooperative-sticky", commit_every=50),
        stock("eager", session_timeout_ms=SOCKET_SESSION_MS),
    )


def groups_of(parts: tuple[Part, ...]) -> tuple[Group, ...]:
    """Returns the groups of these consumers."""
    names = dict.fromkeys(part.group for part in parts)
    return tuple(_group(name, [part for part in parts if part.group == name]) for name in names)


def another(like: Part, number: int) -> Part:
    """Returns another consumer for the same group."""
    kind = "library" if like.kind == "spark" else like.kind  # the machine has no room for a second Spark
    return replace(like, name=f"{like.group}-x{number}", kind=kind, static=False)


def _group(name: str, parts: list[Part]) -> Group:
    first = parts[0]
    return Group(name, first.topics, first.pattern, tuple(part.described() for part in parts))
