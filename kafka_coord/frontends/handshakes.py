"""TLS handshakes of a listener: limits their number and their duration."""

from __future__ import annotations

import asyncio
import ssl

HANDSHAKE_S = 5.0
"""For a TLS handshake, from the moment it begins."""
MAX_HANDSHAKES = 128
"""TLS handshakes under way; whoever comes beyond that waits for a place, and costs little until it has one."""


class Handshakes:
    """Event loop only."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._places = asyncio.Semaphore(MAX_HANDSHAKES)

    async def secure(self, raw: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport | None:
        """The transport that ``protocol`` speaks over from now on; ``None`` where the connection was closed meanwhile.
        ``raw`` is one whose reading is paused. Raises :class:`OSError` where there is no handshake."""
        async with self._places:
            return await asyncio.get_running_loop().start_tls(
                raw, protocol, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
