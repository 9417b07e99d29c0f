"""Tests a process whose wall clock jumps, and sessions that are ended from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk.session import connect
from kafka_coord.zk.store import Store
from tests.chaos.force_expire import expire, session_password
from tests.chaos.skewed import set_skew
from tests.waiting import eventually

_PROGRAM = """
import sys, time
print(time.time(), flush=True)
for _ in sys.stdin:
    print(time.time(), time.time_ns() / 1e9, time.monotonic(), flush=True)
"""


def test_the_clock_of_a_running_process_jumps_and_returns(tmp_path: Path) -> None:
    (tmp_path / "ticking.py").write_text(_PROGRAM)
    skew = tmp_path / "skew"
    set_skew(skew, 0.0)
    command = [sys.executable, "-m", "tests.chaos.skewed", str(skew), "ticking"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(tmp_path)}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> list[float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("?\n")
            process.stdin.flush()
            return [float(word) for word in process.stdout.readline().split()]

        assert abs(float(process.stdout.readline()) - time.time()) < 60
        set_skew(skew, 86_400.0)
        wall, wall_ns, monotonic = ask()
        assert abs(wall - 86_400 - time.time()) < 60
        assert abs(wall_ns - wall) < 60
        assert abs(monotonic - time.monotonic()) < 60
        set_skew(skew, 0.0)
        assert abs(ask()[0] - time.time()) < 60
        process.stdin.close()


def _is_gone(store: Store, path: str) -> bool:
    with suppress(StoreUnavailable):  # the end of the session breaks its connection
        return store.exists(path) is None
    return False


def test_the_session_of_another_client_can_be_ended(zk_hosts: str) -> None:
    with closing(connect(zk_hosts, session_timeout_ms=60_000)) as store:  # it does not end by itself while we wait
        store.create("/mine", ephemeral=True)
        owner = store.exists("/mine")
        assert owner is not None
        expire(zk_hosts, owner.ephemeral_owner)
        eventually(lambda: _is_gone(store, "/mine"))


def test_the_password_of_a_session_is_computed_from_its_id() -> None:
    assert session_password(0x10001234ABCD0001) != session_password(0x10001234ABCD0002)
    assert len(session_password(-1)) == 16
