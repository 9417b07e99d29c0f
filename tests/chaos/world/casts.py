"""The members of scenes, by the kinds of consumers of the run."""

from __future__ import annotations

from typing import Any

from tests.chaos.journal.consumers import CONFLUENT
from tests.chaos.parts import CONSUMER_PROTOCOL, SOCKET_SESSION_MS, Part


def own(name: str, *topics: str, **more: Any) -> Part:
    """Returns a consumer of the library over ZooKeeper."""
    return Part(f"{name}-zookeeper", name, topics, **more)


def over_socket(name: str, *topics: str, **more: Any) -> Part:
    return Part(f"{name}-socket", name, topics, socket=True, session_timeout_ms=SOCKET_SESSION_MS, **more)


def classic(name: str, *topics: str, **more: Any) -> Part:
    """Returns a stock client with the classic protocol."""
    return Part(f"{name}-classic", name, topics, kind=CONFLUENT, **{"strategy": "cooperative-sticky"} | more)


def kip_848(name: str, *topics: str, **more: Any) -> Part:
    return Part(f"{name}-kip848", name, topics, kind=CONFLUENT, protocol=CONSUMER_PROTOCOL, strategy="uniform", **more)


def of_all_kinds(clients: str, name: str, *topics: str) -> tuple[Part, ...]:
    """Returns a member of each kind that the run (``Run.clients``) has."""
    match clients:
        case "kafka":
            return (classic(name, *topics),)
        case "mixed":
            return (own(name, *topics), kip_848(name, *topics), classic(name, *topics))
        case _:
            return (own(name, *topics), over_socket(name, *topics))
