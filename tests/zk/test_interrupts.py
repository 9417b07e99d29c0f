"""Ctrl-C while requests are being sent."""

from __future__ import annotations

import contextlib
import random
import signal
import threading

import pytest

from kafka_coord.zk import connect
from kafka_coord.zk.store import Store


def ask_until_interrupted(store: Store, timer: threading.Timer) -> None:
    timer.start()
    for _ in range(20_000):
        store.exists("/")


def test_an_interrupt_ends_a_program_that_is_busy_asking_zookeeper(zk_hosts: str) -> None:
    delays = random.Random(1)
    main = threading.main_thread().ident
    assert main is not None
    with contextlib.closing(connect(zk_hosts)) as store:
        for _ in range(150):
            timer = threading.Timer(delays.uniform(0, 0.01), signal.pthread_kill, (main, signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                ask_until_interrupted(store, timer)
            timer.join()
        assert store.exists("/") is not None
