"""The users of a run, and the brokers' listeners. Pure.

The instances and all consumers log in with SASL, and do so again every few seconds (KIP-368). The brokers themselves
and the testbed use a listener without logins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INSTANCE, OPERATOR, MEMBER, OTHER_MEMBER = "instance", "operator", "member", "other"
"""The users. Scenes forbid things to :data:`OTHER_MEMBER` alone. An operator has all rights, and so does who does not
log in."""
USERS = (INSTANCE, OPERATOR, MEMBER, OTHER_MEMBER)
REAUTHENTICATED_MS = 10_000
"""How long a login is valid."""

OF_BROKERS, OF_MEMBERS, OF_INSTANCES = "PLAINTEXT", "MEMBERS", "COORD"
"""The listeners, in this order: who looks up a broker takes the first that speaks its protocol."""
_PROTOCOLS = {OF_BROKERS: "PLAINTEXT", OF_MEMBERS: "SASL_PLAINTEXT", OF_INSTANCES: "SASL_PLAINTEXT"}
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def login(user: str) -> dict[str, str]:
    """Returns the user's properties for librdkafka and for the instances, and none for no user."""
    if not user:
        return {}
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }


def as_options(user: str) -> list[str]:
    """Returns the options with which a command logs in."""
    return [word for key, value in login(user).items() for word in ("--kafka-property", f"{key}={value}")]


def as_variables(user: str) -> dict[str, str]:
    """Returns the environment variables with which a command logs in."""
    return {f"KAFKA_COORD_KAFKA_{key.replace('.', '_').upper()}": value for key, value in login(user).items()}


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener of a broker: the address that it listens on, and the one that it advertises."""

    name: str
    address: str
    advertised: str


def broker_properties(listeners: tuple[Listener, ...]) -> Mapping[str, str]:
    """Returns the lines of ``server.properties`` for a broker with these listeners."""
    users = " ".join(f'user_{user}="{login(user)["sasl.password"]}"' for user in USERS)
    lines = {
        "listeners": ",".join(f"{one.name}://{one.address}" for one in listeners),
        "advertised.listeners": ",".join(f"{one.name}://{one.advertised}" for one in listeners),
        "listener.security.protocol.map": ",".join(f"{one.name}:{_PROTOCOLS[one.name]}" for one in listeners),
        "inter.broker.listener.name": OF_BROKERS,
        "super.users": f"User:ANONYMOUS;User:{OPERATOR}",
    }
    for one in listeners:
        if _PROTOCOLS[one.name] != "PLAINTEXT":
            of_listener = f"listener.name.{one.name.lower()}"
            lines |= {
                f"{of_listener}.sasl.enabled.mechanisms": "PLAIN",
                f"{of_listener}.plain.sasl.jaas.config": f"{_MODULE} {users};",
                f"{of_listener}.plain.connections.max.reauth.ms": str(REAUTHENTICATED_MS),
            }
    return lines
