"""Child processes: how they start and end, and that they do not outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.dev.cluster.identity import ProcessIdentity
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.errors import DevClusterError
from tests.waiting import eventually

SLEEPER = (sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)")
DEAF = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
)


def started(command: tuple[str, ...], directory: Path) -> ChildProcess:
    child = ChildProcess("child", command, directory / "child.log")
    child.start()
    child.wait_until(lambda: "ready" in child.log_since_start(), 15)
    return child


def test_a_child_that_obeys_ends_in_time_and_can_be_started_again(tmp_path: Path) -> None:
    child = started(SLEEPER, tmp_path)
    first = child.identity
    assert first is not None
    assert first.alive()

    assert child.stop()
    assert not first.alive()
    assert child.pid is None

    child.start()
    assert child.identity not in {None, first}
    child.kill()
    assert child.exit_code == -signal.SIGKILL


def test_a_child_that_ignores_sigterm_is_killed_after_the_bound(tmp_path: Path) -> None:
    child = started(DEAF, tmp_path)
    assert child.stop(timeout_s=0.3) is False
    assert not child.running


def test_a_paused_child_is_resumed_to_obey_a_stop(tmp_path: Path) -> None:
    child = started(SLEEPER, tmp_path)
    child.pause()
    assert child.identity is not None
    assert child.identity.paused()
    assert child.stop()


def test_a_child_that_ends_before_it_is_ready_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    child = ChildProcess("server", (sys.executable, "-c", "print('no such disk'); raise SystemExit(3)"), tmp_path / "l")
    child.start()
    with pytest.raises(DevClusterError, match=r"(?s)server ended with exit code 3 .*no such disk"):
        child.wait_until(lambda: False, 15)


def test_a_child_that_is_not_ready_in_time_is_reported(tmp_path: Path) -> None:
    child = started(SLEEPER, tmp_path)
    with pytest.raises(DevClusterError, match="child was not ready within 0 s"):
        child.wait_until(lambda: False, 0.1)
    child.kill()


def test_a_program_that_does_not_exist_is_an_error_of_this_project(tmp_path: Path) -> None:
    child = ChildProcess("server", ("/no/such/java",), tmp_path / "log")
    with pytest.raises(DevClusterError, match=r"server cannot be started: .*/no/such/java"):
        child.start()


def test_a_process_that_does_not_run_cannot_be_paused(tmp_path: Path) -> None:
    child = ChildProcess("server", SLEEPER, tmp_path / "log")
    with pytest.raises(DevClusterError, match="cannot pause server: it is not running"):
        child.pause()


def test_another_process_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    child = started(SLEEPER, tmp_path)
    assert child.identity is not None
    earlier = ProcessIdentity(child.identity.pid, child.identity.started - 1)

    assert not earlier.alive()
    assert earlier.signal(signal.SIGKILL) is False
    assert child.running
    child.kill()


@pytest.mark.parametrize("end", ["killed", "exits"])
def test_a_child_ends_with_its_parent_even_if_the_thread_that_started_it_ended_long_before(
    tmp_path: Path, end: str
) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import sys, threading
                from pathlib import Path
                from kafka_coord.dev.cluster.process import ChildProcess
                child = ChildProcess("child", {SLEEPER!r}, Path({str(tmp_path)!r}, "log"))
                starter = threading.Thread(target=child.start)
                starter.start()
                starter.join()
                print(child.pid, flush=True)
                sys.stdin.read()
            """),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = ProcessIdentity.of(int(parent.stdout.readline()))
    assert child is not None

    if end == "killed":
        os.kill(parent.pid, signal.SIGKILL)
    parent.stdin.close()
    parent.wait(15)
    parent.stdout.close()

    eventually(lambda: not child.alive())


def test_ctrl_c_while_a_child_is_made_leaves_one_that_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            signal.raise_signal(signal.SIGINT)

    child = ChildProcess("child", SLEEPER, tmp_path / "child.log")
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            child.start()
    assert child.running
    child.kill()
    assert not child.running
    with pytest.raises(KeyboardInterrupt):  # and it is received at once again
        signal.raise_signal(signal.SIGINT)


def test_a_process_of_an_earlier_run_is_taken_over_and_left_alone(tmp_path: Path) -> None:
    earlier = ChildProcess("earlier", ("sleep", "600"), tmp_path / "log")
    earlier.start()
    assert earlier.identity is not None
    running = earlier.identity
    eventually(lambda: running.command() == ("sleep", "600"))  # right after its exec it has no command line yet
    later = ChildProcess("later", ("false",), tmp_path / "log")
    later.adopt(running)
    later.start()
    assert (later.running, later.identity) == (True, running), "it runs, so nothing was started"
    later.stop()
    later.kill()
    assert earlier.running
    earlier.kill()
    assert not later.running
