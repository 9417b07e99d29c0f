"""An instance (``kafka-coord serve``) that runs on the odd cluster, while the tree becomes odder."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any
from unittest import mock

from kafka_coord.channel.frames import encode
from kafka_coord.cli.serve import run_service
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.errors import BadVersion, KafkaCoordError, NodeExists, NoNode
from kafka_coord.model import RequestType
from kafka_coord.settings import ServeSettings, Settings, load_settings
from kafka_coord.zk import layout
from tests.fuzzing.kafka_targets import FRAMES as KAFKA_FRAMES
from tests.fuzzing.mutations import Form, spoilt
from tests.fuzzing.odd_cluster import GROUP, OddCluster
from tests.fuzzing.odd_values import odd_json
from tests.fuzzing.targets import FRAMES
from tests.simulation.store import SimulatedStore

_BROKER_ID = 1
_STEP_S = 0.05
_FRAMES = [encode(frame) for frame in FRAMES]
_OURS = "kafka_coord"


class _Defects(logging.Handler):
    """Keeps what an instance logs about its own defects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        is_defect = error is not None and not isinstance(error, KafkaCoordError | OSError)
        if is_defect or record.levelno >= logging.CRITICAL or "this is a bug" in record.getMessage():
            written = logging.Formatter().format(record)[-3_000:]
            if written not in self.found:
                self.found.append(written)


@contextmanager
def _noted() -> Iterator[_Defects]:
    """Collects what threads and log records say of defects."""
    defects, logger = _Defects(), logging.getLogger(_OURS)
    disabled, propagates = logging.root.manager.disable, logger.propagate
    logging.disable(logging.NOTSET)
    logger.addHandler(defects)
    logger.propagate = False

    def died(what: threading.ExceptHookArgs) -> None:
        defects.found.append("".join(traceback.format_exception(what.exc_value))[-3_000:])

    try:
        with mock.patch.object(threading, "excepthook", died):
            yield defects
    finally:
        logger.removeHandler(defects)
        logger.propagate = propagates
        logging.disable(disabled)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _settings(cluster: OddCluster) -> Settings:
    flags = {
        "zookeeper.hosts": "127.0.0.1:1",
        "serve.broker_id": _BROKER_ID,
        **{f"serve.listen_{name}": f"127.0.0.1:{_free_port()}" for name in ("http", "channel", "kafka")},
        "serve.broker_listener": f"127.0.0.1:{cluster.broker.port}",
        "serve.lag_metrics_interval_ms": 1_000,
    }
    return load_settings(flags, environ={})


def _request(cluster: OddCluster) -> None:
    """Sends a request as an operator would, mostly an odd one."""
    chance = cluster.chance
    kind = chance.choice(list(RequestType))
    value: dict[str, Any] = {
        "group": GROUP,
        "consumer": "c1",
        "by": "a",
        "reason": "b",
        "offsets": {"flights": {"0": 1}},
    }
    value |= {"partitions": {"flights": "0"}, "timestamp_ms": 1_732_060_800_000}
    value |= {"version": 1, "type": str(kind)}
    data = json.dumps(odd_json(value, chance) if chance.random() < 0.7 else value).encode()
    with suppress(NodeExists):
        cluster.tree.store.create(f"{layout.REQUESTS}/request-{chance.randrange(10**9):010}", data)
        cluster.told.append(f"request: {data[:1_000]!r}")


def _client(settings: ServeSettings, chance: Random) -> None:
    """Sends a few requests, damaged or not, to one of the instance's ports."""
    to_kafka = chance.random() < 0.7
    address = (settings.listen_kafka if to_kafka else settings.listen_channel) or ""
    samples = KAFKA_FRAMES if to_kafka else _FRAMES
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 0.2) as one:
        for _ in range(chance.randrange(1, 4)):
            raw = chance.choice(samples)
            one.sendall(raw if chance.random() < 0.7 else spoilt(chance, (raw,), Form.BINARY))
        one.settimeout(0.05)
        one.recv(1_000)


def serve_trial(cluster: OddCluster, seconds: float = 3.0) -> Iterator[tuple[str, str]]:
    """Runs an instance for so long, and yields its fault or ``""``. While it runs, the tree changes, and operators and
    clients send requests. Only for a main thread, because it ends the instance by SIGTERM."""
    for path in (layout.COORDINATOR, layout.instance(_BROKER_ID)):
        with suppress(NoNode):
            cluster.tree.store.delete(path)
    running: list[CoordinatorService] = []
    led = set[bool]()
    stores: list[SimulatedStore] = []

    def connected(*_: object, **__: object) -> SimulatedStore:
        stores.append(cluster.connected())  # type: ignore[arg-type]
        return stores[-1]

    start = CoordinatorService.start

    def started(service: CoordinatorService) -> None:
        running.append(service)
        start(service)

    def notifies() -> None:
        while not ended.wait(0.01):
            for store in list(stores):
                with suppress(KafkaCoordError):
                    store.heartbeat()
                    store.deliver()

    def trouble() -> None:
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds:
                time.sleep(_STEP_S)
                led.update(True for one in running if one.leads)
                with suppress(NoNode, BadVersion):
                    kind = cluster.chance.randrange(8)
                    if kind == 0:
                        cluster.spoil_tree(1)
                    elif kind == 1:
                        _request(cluster)
                    else:
                        _client(settings.serve, cluster.chance)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    fault, settings = "", _settings(cluster)
    ended = threading.Event()
    threads = [threading.Thread(target=one, name=one.__name__, daemon=True) for one in (trouble, notifies)]
    with (
        _noted() as defects,
        mock.patch.object(CoordinatorService, "start", started),
        mock.patch("kafka_coord.cli.serve.connect_with", connected),
        mock.patch("kafka_coord.cli.dashboard.connect_with", connected),
    ):
        for thread in threads:
            thread.start()
        try:
            run_service(settings, _BROKER_ID)
        except Exception:  # noqa: BLE001  whatever it is, it is what is looked for
            fault = traceback.format_exc()[-3_000:]
        ended.set()
        for thread in threads:
            thread.join()
    yield f"serve, which was {'' if led else 'not '}elected", fault or "\n".join(defects.found)
