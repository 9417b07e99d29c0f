"""Builds the registrations of stock Kafka clients, of either protocol, that join managed groups."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from kafka_coord.channel.messages import Register
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.members.registering import Refusal, registration_value, too_large
from kafka_coord.model import Member


def registration(call: Call, broker_id: int, member: Member, member_id: str) -> bytes | Refusal:
    """Returns the value of the registration, including what is known about the client that sent ``call``, or the reason
    for refusing it."""
    client, client_id = call.client, call.header.client_id
    member = replace(member, client=client_id or None, host=client.host, software=client.software or None)
    register = Register(call.request.group_id, member, auto_commit=False, resume_key=member_id)
    now_ms, nonce = time.time_ns() // 1_000_000, secrets.token_hex(8)
    value = registration_value(register, broker_id, client.address, now_ms, nonce)
    return too_large(value) or value
