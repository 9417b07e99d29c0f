"""Asks an instance over HTTP when it last heard from each consumer that it serves."""

from __future__ import annotations

import http.client
import json
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


def read_presences(url: str) -> Mapping[tuple[str, str], Presence]:
    """Returns the presence of each (group, consumer) that the instance serves. ``url`` is the URL of its HTTP server.
    For HTTPS, this host must trust the server's CA. Raises ``OSError`` and :class:`MalformedValue`.
    """
    scheme, _, address = url.partition("://")
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = kind(address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", PRESENCES)
        response = connection.getresponse()
        raw = response.read(_MAX_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    where = f"{url}{PRESENCES}"
    if response.status != http.client.OK:
        raise MalformedValue(where, f"the HTTP status is {response.status}")
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
