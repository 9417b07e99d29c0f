"""Reads the times of decisions on requests from ZooKeeper's own log. The requester learns of a decision later, and the
coordinator does not cause that delay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Request
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.audit.txnlog import CREATE, SET_DATA, find_files, in_order
from kafka_coord.zk import layout

_FILE = "decisions.json"


def write_decisions(directory: Path, logs: Sequence[Path], chroot: str) -> None:
    """Writes the duration of each answered request (s) to a run's directory, from the transaction of the request to
    that of the answer, by the clock of the leading ZooKeeper server. ``logs`` are the servers' directories."""
    below = f"{chroot}{layout.REQUESTS}/"
    asked_ms: dict[str, int] = {}
    decided_s: dict[str, float] = {}
    for txn in in_order(find_files(logs), []):
        for operation in txn.operations:
            if not operation.path.startswith(below):
                continue
            request = operation.path.removeprefix(below)
            if operation.kind == CREATE:
                asked_ms[request] = txn.time_ms
            elif operation.kind == SET_DATA and request in asked_ms and _answered(operation.data, request):
                decided_s[request] = (txn.time_ms - asked_ms.pop(request)) / 1000
    (directory / _FILE).write_text(json.dumps(decided_s, indent=1) + "\n", encoding="utf-8")


def read_decisions(directory: Path) -> dict[str, float]:
    """Reads the file of :func:`write_decisions`. A missing file is empty."""
    path = directory / _FILE
    decided: dict[str, float] = json.loads(path.read_bytes()) if path.exists() else {}
    return decided


def _answered(data: bytes, request: str) -> bool:
    try:
        return Request.from_json(fields.load(data, request), request).answered
    except MalformedValue:
        return False
