"""Tests of how the program ends: exit codes, one line without a traceback, interrupts and broken pipes."""

from __future__ import annotations

import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from kafka_coord import errors
from kafka_coord.cli.failures import EXIT_CODES
from kafka_coord.cli.options import CONSUMER, MEMBER
from kafka_coord.errors import InvalidName
from tests.cli.running import PROGRAM, Run, environment, run, started
from tests.monitor.written import Tree
from tests.waiting import eventually


def one_line(err: str) -> str:
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("groups", "rebalance", "a/b"), 2, "group name 'a/b' is not legal: use 1 to 249 of"),
        (("groups", "log", "dump", "--group", "x" * 40_000), 2, "is not legal: use 1 to 249 of"),
        (("groups", "rebalance", ".."), 2, "is not legal"),
        (("groups", "evict", "g", "c\x1b[2J"), 2, "consumer name 'c\\x1b[2J' is not legal"),
        (("--zookeeper", "zk:port", "groups", "list"), 2, "zk:port"),
        (("--config", "/no/such.toml", "groups", "list"), 2, "/no/such.toml cannot be read"),
        (("--kafka-property", "nonsense", "groups", "list"), 2, "is not KEY=VALUE"),
        (("serve",), 2, "serve.broker_id is not set"),
        (("serve", "--broker-id", "one"), 2, "serve.broker_id: 'one' from flag --broker-id is invalid"),
        (("groups", "pause"), 2, "name a group, or give --all"),
        (("consume", "--group", "g"), 2, "give one of --topic, --include, --exclude"),
        (("consume", "--group", "g", "--topic", "t", "--formatter", "{secret}"), 2, "{secret} is not one of"),
        (("load", "--topic", "t"), 2, "give a FILE, or --flights"),
        (("load", "/no/such.csv", "--topic", "t"), 2, "is not a file"),
        (("groups", "reset-offsets", "g", "--all-topics"), 2, "no rule given"),
        (("groups", "reset-offsets", "g", "--to-earliest"), 2, "choose topics"),
        (("groups", "reset-offsets", "g", "--to-earliest", "--to-latest", "--all-topics"), 2, "2 rules given"),
        (("groups", "reset-offsets", "g", "--topic", "t:5-1", "--to-earliest"), 2, "is not a range"),
        (("groups", "settings", "g", "--assignor", "magic"), 2, "use one of range, roundrobin, sticky, weighted"),
        (("coordinator", "withdraw", "../brokers"), 7, "is not a request id"),
    ],
)
def test_an_operators_mistake_causes_one_line_and_an_exit_code_before_any_request(
    arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = run(*arguments, zookeeper="127.0.0.1:1")
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert said in one_line(ran.err)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (("groups", "lst"), "Did you mean 'list'?"),
        (("groups", "lag"), "Did you mean 'describe'?"),
        (("lag",), "Did you mean 'groups'?"),
        (("consumer-groups",), "Did you mean 'groups'?"),
        (("dev", "start"), "Did you mean 'up'?"),
        (("groups", "list", "--bootstrap-server", "b:9092"), "'--bootstrap-server': give --zookeeper, the brokers'"),
        (("groups", "describe", "--group", "g"), "'--group': name the group without an option"),
    ],
)
def test_the_error_for_an_unknown_name_says_what_is_meant(given: tuple[str, ...], meant: str) -> None:
    ran = run(*given)
    assert ran.code == 2
    assert meant in ran.err


def test_the_error_for_an_unreachable_zookeeper_says_what_to_do() -> None:
    ran = run("groups", "list", zookeeper="127.0.0.1:1", KAFKA_COORD_ZOOKEEPER_CONNECT_TIMEOUT_MS="500")
    assert ran.code == 4
    assert "127.0.0.1:1" in one_line(ran.err)
    assert "check that it is running" in ran.err


def test_the_error_for_a_missing_group_names_the_existing_ones(tree: Tree, coord: Run) -> None:
    tree.group("delays")
    ran = coord("groups", "describe", "delay")
    assert ran.code == 7
    assert one_line(ran.err) == "kafka-coord: no group 'delay'; existing groups: delays"


def test_existing_groups_are_shown_before_the_error_about_missing_ones(tree: Tree, coord: Run) -> None:
    tree.group("delays")
    for options in ((), ("--kind", "managed")):
        ran = coord("groups", "describe", "delay", "delays", "--state", *options)
        assert ran.code == 7
        assert "delays" in ran.out
        assert one_line(ran.err).startswith("kafka-coord: no group 'delay'")


def test_a_bug_causes_one_line_unless_the_traceback_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("kafka_coord.cli.groups.show.open_cluster", broken)
    ran = run("groups", "list")
    assert ran.code == 1
    assert one_line(ran.err).startswith("kafka-coord: unexpected RuntimeError: broken (this is a bug;")
    assert "Traceback" in run("groups", "list", KAFKA_COORD_DEBUG="1").err


def test_every_exit_code_of_the_error_tree_is_in_the_help() -> None:
    told = {int(code) for code in re.findall(r"^  (\d+) ", EXIT_CODES, re.MULTILINE)}
    codes = {
        found.exit_code
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, errors.KafkaCoordError)
    }
    assert codes <= told


def test_ctrl_c_ends_a_view_cleanly_with_130(tree: Tree, zk_hosts: str) -> None:
    tree.group("delays")
    with started("watch", "--no-lag", "--interval", "0.1", "-z", zk_hosts) as process:
        eventually(process.line)
        ran = process.ended(by=signal.SIGINT)
    assert ran.code == 130
    assert one_line(ran.err) == "interrupted"


def test_a_reader_that_closes_the_pipe_causes_no_error_message(tree: Tree, zk_hosts: str, tmp_path: Path) -> None:
    for number in range(800):
        tree.store.ensure_path(f"/consumers/groups/group-{number:0200d}")
    err = tmp_path / "err"
    with err.open("w") as file:
        pipe = partial(subprocess.Popen, text=True, env=environment())
        listing = pipe([*PROGRAM, "groups", "list", "-z", zk_hosts], stdout=subprocess.PIPE, stderr=file)
        head = pipe(["head", "-1"], stdin=listing.stdout, stdout=subprocess.PIPE)
        assert listing.stdout is not None
        listing.stdout.close()
        out, _ = head.communicate(timeout=60)
        code = listing.wait(60)
    assert out.startswith("GROUP")
    assert code == 141
    assert "Broken" not in err.read_text()
    assert "Traceback" not in err.read_text()


def test_a_members_id_may_contain_whatever_a_client_id_may() -> None:
    assert MEMBER.convert("my app/1-5e1c", None, None) == "my app/1-5e1c"
    with pytest.raises(InvalidName):
        CONSUMER.convert("my app/1-5e1c", None, None)
