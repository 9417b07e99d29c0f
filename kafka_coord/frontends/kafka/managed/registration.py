"""The registration of a stock Kafka client, of either protocol, as a member of a managed group."""

from __future__ import annotations

import secrets
import time

from kafka_coord.channel.messages import Register
from kafka_coord.frontends.kafka.calls import Caller
from kafka_coord.frontends.members.registering import registration_value
from kafka_coord.model import Member, Subscription


def registration(
    broker_id: int,
    key: tuple[str, str],
    member_id: str,
    subscription: Subscription,
    client: Caller,
    client_id: str | None,
    *,
    protocol: str,
    is_static: bool,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    rack: str | None,
    assignor: str | None = None,
) -> bytes:
    """Returns the value of the registration. ``key`` is the group and the member's consumer name."""
    group, consumer = key
    member = Member(
        consumer,
        0,
        subscription,
        assignor=assignor,
        rack=rack or None,
        session_timeout_ms=session_timeout_ms,
        rejoin_grace_ms=session_timeout_ms if is_static else 0,
        client=client_id or None,
        host=client.host,
        protocol=protocol,
        software=client.software or None,
        rebalance_timeout_ms=max(0, rebalance_timeout_ms),
    )
    register = Register(group, member, auto_commit=False, resume_key=member_id)
    now_ms, nonce = time.time_ns() // 1_000_000, secrets.token_hex(8)
    return registration_value(register, broker_id, client.address, now_ms, nonce)
