"""Ends the ZooKeeper session of another client, as a server does when it believes the client dead."""

from __future__ import annotations

from kazoo.client import KazooClient

from kafka_coord.errors import StoreUnavailable

_SUPER_SECRET = 0xB3415C00
_MULTIPLIER, _MASK = 0x5DEECE66D, (1 << 48) - 1


def session_password(session_id: int) -> bytes:
    """Returns the session's password: the first 16 bytes of ``java.util.Random`` with the session id and a constant as
    its seed (``ZooKeeperServer.generatePasswd``)."""
    seed = ((session_id ^ _SUPER_SECRET) ^ _MULTIPLIER) & _MASK
    password = bytearray()
    for _ in range(4):
        seed = (seed * _MULTIPLIER + 0xB) & _MASK
        password += (seed >> 16).to_bytes(4, "little")
    return bytes(password)


def expire(hosts: str, session_id: int) -> None:
    """Takes the session over and closes it. Its client learns this on its next connection.

    Raises :class:`StoreUnavailable` if no server answers within ten seconds. The session may have ended nevertheless.
    """
    taker = KazooClient(hosts, client_id=(session_id, session_password(session_id)), timeout=10.0)
    try:
        taker.start(timeout=10.0)
    except taker.handler.timeout_exception as error:
        raise StoreUnavailable(f"session {session_id:#x} could not be taken over at {hosts}") from error
    finally:
        taker.stop()
        taker.close()
