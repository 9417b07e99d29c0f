"""Asks an instance over HTTP, such as when it last heard from each consumer that it serves."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields

PRESENCES = "/socket-consumers"
"""The path on an instance's HTTP server."""

_TIMEOUT_S = 2.0
_MAX_BYTES = 16 << 20


class Presence(NamedTuple):
    """What an instance knows about one member. ``heard_ms_ago`` is the time since the instance last heard from the
    member. ``epoch`` (the member epoch) and ``held_ms`` (how long the instance has held the heartbeat) are known only
    for Kafka clients."""

    heard_ms_ago: int
    epoch: int | None = None
    held_ms: int | None = None


def read_page(url: str, path: str, tls: ssl.SSLContext | None = None) -> bytes:
    """Returns a page of an instance's HTTP server, whose URL is ``url``. Without ``tls``, this host must trust the CA
    of an HTTPS server. Raises ``OSError`` and :class:`MalformedValue`."""
    scheme, _, address = url.partition("://")
    if scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(address, timeout=_TIMEOUT_S, context=tls)
    else:
        connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        raw = response.read(_MAX_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise MalformedValue(f"{url}{path}", f"the HTTP status is {response.status}")
    return raw


def read_presences(url: str) -> Mapping[tuple[str, str], Presence]:
    """Returns the presence of each (group, consumer) that the instance serves. ``url`` is the URL of its HTTP server.
    For HTTPS, this host must trust the server's CA. Raises ``OSError`` and :class:`MalformedValue`.
    """
    raw, where = read_page(url, PRESENCES), f"{url}{PRESENCES}"
    try:
        rows = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedValue(where, f"not JSON ({error})") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedValue(where, "not an array of objects")
    return {
        (fields.text(row, "group", where), fields.text(row, "consumer", where)): Presence(
            fields.number(row, "heard_ms_ago", where, at_least=0),
            fields.optional_number(row, "epoch", where),
            fields.optional_number(row, "held_ms", where),
        )
        for row in rows
    }
