"""Every decoder handles hostile input as promised, and a decoder that does not is found."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_coord.dev.cluster.identity import cpu_seconds, stat_fields
from kafka_coord.monitor.dashboard.routes import ROUTES, Route
from tests.fuzzing import command_line_targets, kafka_targets, planted
from tests.fuzzing.judge import Judge, case, shortened
from tests.fuzzing.mutations import MAX_INPUT_BYTES, spoilt
from tests.fuzzing.odd_pages import form_of, odd_value
from tests.fuzzing.target import Target
from tests.fuzzing.targets import TARGETS
from tests.waiting import eventually

ALL = (*TARGETS, *command_line_targets.TARGETS, *kafka_targets.TARGETS)
ROOT = Path(__file__).parents[2]

targets = pytest.mark.parametrize("target", ALL, ids=lambda target: target.name)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_odd_documents_of_each_type_of_the_api_end(route: Route):
    chance = Random(1)
    for _ in range(20):
        json.dumps(odd_value(form_of(route.path), chance))


@targets
def test_each_decoder_accepts_its_own_samples(target: Target):
    for sample in target.samples:
        if target.name not in {"log-file", "snapshot-file"}:  # a sample cannot contain its own checksum
            target.decode(sample)
        assert Judge().fault(target, sample) is None


@targets
@settings(max_examples=12)
@given(random=st.randoms(use_true_random=False))
def test_damaged_input_is_decoded_or_refused_as_documented(target: Target, random: Random):
    raw = spoilt(random, target.samples, target.form)
    assert len(raw) <= MAX_INPUT_BYTES
    assert Judge().fault(target, raw) is None, raw[:1_000]


def test_the_same_seed_gives_the_same_input_and_damages_most_of_it():
    for target in ALL:
        made = [case(target, 7, number) for number in range(5)]
        assert made == [case(target, 7, number) for number in range(5)]
        assert len({*made, *target.samples}) > 3


@pytest.mark.parametrize(("name", "number"), [("settled", 3080), ("kafka-broker", 4449), ("topic-option", 3072)])
def test_no_input_needs_much_memory_while_it_is_made(name: str, number: int) -> None:
    """Repetitions of repetitions once needed gigabytes."""
    (target,) = (one for one in ALL if one.name == name)
    tracemalloc.start()
    case(target, 2, number)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * MAX_INPUT_BYTES


def test_a_frame_as_deep_as_can_be_decoded_is_no_fault() -> None:
    """One that can be decoded, but not be encoded again, once was one."""
    (target,) = (one for one in ALL if one.name == "socket-frame")
    for less in range(300):
        depth = sys.getrecursionlimit() - less
        raw = b'{"v":1,"id":1,"type":"ping","x":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
        assert Judge().fault(target, raw) is None, less


def test_the_input_of_a_fault_is_shortened_to_the_necessary_part():
    (target,) = (one for one in planted.TARGETS if one.name == "raises")
    assert shortened(Judge(), target, b"many words, and then 9, and more") == b"9,"


def test_decoders_that_raise_hang_die_hoard_or_talk_too_much_are_found_and_their_input_is_kept(tmp_path: Path):
    wanted = {"raises": "ValueError", "hangs": "hangs for", "dies": "ended the process with 7"}
    wanted |= {"hoards": "grow to", "talks": "message of"}
    limits = ("--hangs-after", "5", "--max-memory-mb", "200")
    ran = fuzz("--minutes", "1", "--jobs", "2", "--failures", str(tmp_path), *limits)
    out, found = "", {}
    assert ran.stdout is not None
    while not found.keys() >= wanted.keys() and (line := ran.stdout.readline()):
        out += line
        found = dict(reversed(re.findall(r"FAULT ([a-z-]+): (.*)", out)))
    ran.send_signal(signal.SIGINT)
    _, err = ran.communicate(timeout=30)
    assert ran.returncode == 130, err
    assert found.keys() == wanted.keys(), out
    for name, said in wanted.items():
        assert said in found[name]
        assert planted.TRIGGERS[name] in next(tmp_path.glob(f"{name}-*")).read_bytes()
    saved = next(tmp_path.glob("raises-*"))
    again = fuzz("--target", "raises", "--replay", str(saved))
    assert "FAULT: ValueError" in again.communicate(timeout=30)[0]
    assert again.returncode == 1


def test_an_interrupted_run_reports_its_progress_and_leaves_no_process_behind(tmp_path: Path):
    ran = fuzz("--minutes", "5", "--jobs", "2", "--target", "is-good", "--failures", str(tmp_path))
    children = Path(f"/proc/{ran.pid}/task/{ran.pid}/children")
    # waits until it works: a starting process that loses its parent prints a traceback
    eventually(lambda: sum(cpu_s(pid) > 1 for pid in children.read_text().split()) >= 2)
    pids = children.read_text().split()
    ran.send_signal(signal.SIGINT)
    out, err = ran.communicate(timeout=30)
    assert ran.returncode == 130, err
    assert "interrupted: " in out
    assert "Traceback" not in err
    eventually(lambda: not any(runs(pid) for pid in pids))
    assert not list(tmp_path.iterdir())


def test_a_bad_frame_behind_a_request_that_waits_ends_its_own_connection_alone():
    """Found by chance: the check of all connections for time limits raised, and no connection was checked any more."""
    request = bytes.fromhex("00000015 0009 0003 00000001 0004") + b"fuzz" + bytes.fromhex("0001 80808080 80808080")
    stream = next(target for target in kafka_targets.TARGETS if target.name == "kafka-stream")
    assert Judge().fault(stream, request + b"a" + bytes.fromhex("ffffffff")) is None


def runs(pid: str) -> bool:
    """Whether the process exists and has not ended: nobody may be there to reap it."""
    fields = stat_fields(int(pid))
    return fields is not None and fields[0] != "Z"


def cpu_s(pid: str) -> float:
    """CPU seconds of a process; 0 if it does not exist (any more)."""
    fields = stat_fields(int(pid))
    return 0.0 if fields is None else cpu_seconds(fields)


def fuzz(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fuzzing.run", "--targets", "tests.fuzzing.planted:TARGETS"]
    return subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
