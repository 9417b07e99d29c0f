"""CPU and memory of a tree of real processes."""

from __future__ import annotations

import os
import subprocess
import sys

from kafka_coord.dev.bench.usage import Meter, tree

_BURN = """
import subprocess, sys, time
began = time.process_time()
held = bytearray(80_000_000)
while time.process_time() - began < 0.6: pass
print("burnt", flush=True)
sys.stdin.read()
"""
_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_a_meter_counts_what_a_grandchild_uses_also_after_it_has_ended() -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", _PARENT, _BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent,
        Meter(parent.pid) as meter,
    ):
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == "burnt\n"
        assert meter.cpu_s() >= 0.55
        assert meter.peak_bytes >= 80_000_000
        assert len(tree(parent.pid)) == 2
        parent.stdin.close()
        parent.wait(30)
        assert tree(parent.pid) == ()
        assert meter.cpu_s() >= 0.55


def test_what_was_used_before_does_not_count() -> None:
    with Meter(os.getpid()) as meter:
        assert meter.cpu_s() < sum(one.cpu_s for one in tree(os.getpid()))
