"""Performs a listener's TLS handshakes and limits their number and duration."""

from __future__ import annotations

import asyncio
import ssl

HANDSHAKE_S = 5.0
"""The time limit for a TLS handshake, in seconds."""
MAX_HANDSHAKES = 128
"""The maximum number of concurrent TLS handshakes. Any other connections wait, which costs little."""


class Handshakes:
    """The handshakes of one listener. Use only on the event loop."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._places = asyncio.Semaphore(MAX_HANDSHAKES)

    async def secure(self, raw: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport | None:
        """Performs the handshake. Returns the transport that ``protocol`` must use from then on, or ``None`` if the
        connection has been closed. Run this in a task, as soon as ``raw`` is connected. Raises :class:`OSError` if the
        handshake fails."""
        # connection_made is too early to pause: in Python 3.11.2, the transport starts reading right after it
        raw.pause_reading()
        async with self._places:
            return await asyncio.get_running_loop().start_tls(
                raw, protocol, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
