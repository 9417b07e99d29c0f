"""TLS handshakes of a listener: limits their number and their duration."""

from __future__ import annotations

import asyncio
import ssl

HANDSHAKE_S = 5.0
"""Seconds for a TLS handshake, from its beginning."""
MAX_HANDSHAKES = 128
"""The most TLS handshakes at a time. Further connections wait for a place, which costs little."""


class Handshakes:
    """The handshakes of one listener. Use it on the event loop only."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._places = asyncio.Semaphore(MAX_HANDSHAKES)

    async def secure(self, raw: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport | None:
        """The transport that ``protocol`` uses from now on; ``None`` if the connection was closed meanwhile. Start this
        as a task in ``connection_made`` of ``raw``. Raises :class:`OSError` if the handshake fails."""
        # Pausing in connection_made is too early for Python 3.11.2: its transport starts to read right after that call.
        raw.pause_reading()
        async with self._places:
            return await asyncio.get_running_loop().start_tls(
                raw, protocol, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
