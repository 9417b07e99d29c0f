"""A small part of ``scripts/fuzz --tools``: commands and pages, on odd trees and with brokers whose answers are odd."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

import click
import pytest
from click.testing import CliRunner

from kafka_coord.cli.main import cli
from kafka_coord.errors import BrokerError
from kafka_coord.grouplog import trees
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.kafka.connection import BrokerConnection, of_group
from kafka_coord.monitor.dashboard.operating import Operating
from kafka_coord.monitor.dashboard.site import Site
from kafka_coord.wire.frames import RequestHeader, request_frame
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from tests.cli.running import run
from tests.fuzzing.odd_broker import KNOWN, OddBroker
from tests.fuzzing.odd_cluster import ASKING, EMPTY, GROUP, NOT_TRIED, READING, WRITING
from tests.fuzzing.odd_files import OF_FILES
from tests.fuzzing.odd_requests import odd_requests
from tests.fuzzing.odd_serve import serve_trial
from tests.fuzzing.tools import odd_cluster, trial


@pytest.mark.parametrize("seed", range(3))
def test_no_odd_value_or_answer_ends_a_command_or_a_page(seed: int) -> None:
    with odd_cluster(Random(seed)) as cluster:
        for what, fault in trial(cluster, commands=3, pages=seed == 0, requests=20):
            assert not fault, (what, fault, cluster.told, cluster.broker.told, cluster.instance.told)


@pytest.mark.parametrize("seed", range(4))
def test_no_odd_value_in_the_tree_ends_a_command_that_reads_it(seed: int) -> None:
    chance = Random(seed)
    with odd_cluster(chance) as cluster:
        for broker in (cluster.broker, cluster.instance):
            broker.becomes(chance, sane=True)
        for _ in range(5):
            cluster.spoil_tree(3)
            for command in chance.sample(READING, 4):
                fault = cluster.command(command)
                assert not fault, (command, fault, cluster.told)


@pytest.mark.parametrize("seed", range(2))
def test_no_odd_file_or_acl_ends_a_command_that_reads_it(seed: int) -> None:
    chance = Random(seed)
    with odd_cluster(chance) as cluster:
        for broker in (cluster.broker, cluster.instance):
            broker.becomes(chance, sane=True)
        for command in OF_FILES:
            fault = cluster.command(command)
            assert not fault, (command, fault, cluster.told)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_instance_goes_on_whatever_is_in_the_tree_and_whatever_its_broker_answers(seed: int) -> None:
    with odd_cluster(Random(seed)) as cluster:
        cluster.broker.becomes(cluster.chance, sane=seed == 0)
        ((what, fault),) = serve_trial(cluster, seconds=2.0)
        assert not fault, (cluster.told, cluster.broker.told)
        assert seed or what == "serve, which was elected"


def test_an_instance_leaves_partitions_alone_that_the_groups_log_should_not_have() -> None:
    """Nobody uses them. It once tried to claim them, which cannot succeed if a number is very large."""
    with odd_cluster(Random(0)) as cluster:
        cluster.broker.log_partitions = (*range(PARTITIONS), PARTITIONS, 2**31 - 1)
        ((_, fault),) = serve_trial(cluster, seconds=1.0)
        assert not fault


def test_an_audit_says_so_if_the_log_has_nothing_of_what_was_named() -> None:
    """It once said "0 violations, 0 warnings" of a chroot that does not exist."""
    with odd_cluster(Random(1)) as cluster:
        audited = ("audit", str(cluster.folder / "zookeeper"))
        assert "nothing of a coordinator below /nope" in run(*audited, "--chroot", "/nope").out
        assert "the log has nothing about what --group" in run(*audited, "--group", "nope").err
        whole = run(*audited, "--group", GROUP)
        assert "nothing" not in whole.out + whole.err


def test_an_unexpected_error_of_the_dashboards_server_is_found() -> None:
    """Otherwise, the odd requests would find nothing whatever happens."""

    def fails(*_: object) -> None:
        raise KeyError("planted")

    with odd_cluster(Random(1)) as cluster:
        for of, name in ((Site, "_document"), (Operating, "_answer")):
            with mock.patch.object(of, name, fails):
                assert any(fault for _, fault in odd_requests(cluster, 40)), name


def test_most_commands_succeed_while_nothing_is_odd() -> None:
    """Otherwise, the fuzzing would try only refusals."""
    ended = {}
    with odd_cluster(Random(1)) as cluster:
        for broker in (cluster.broker, cluster.instance):
            broker.becomes(Random(1), sane=True)
        for command in (*READING, *ASKING):
            fault = cluster.command(command)
            assert not fault, (command, fault)
            ended[command] = cluster.code
    failed = {command: code for command, code in ended.items() if code}
    assert len(failed) <= 7, failed


def test_every_command_is_tried_or_says_why_it_is_not() -> None:
    def commands(one: click.Command, name: str) -> Iterator[str]:
        if not isinstance(one, click.Group):
            yield name
            return
        context = click.Context(one)
        for child in one.list_commands(context):
            if (found := one.get_command(context, child)) is not None:
                yield from commands(found, f"{name} {child}".strip())

    tried = [*READING, *ASKING, *WRITING, *OF_FILES]
    lacking = {
        name
        for name in commands(cli, "")
        if not any(written == name or written.startswith(f"{name} ") for written in tried)
        and not any(name == one or name.startswith(f"{one} ") for one in NOT_TRIED)
    }
    assert not lacking


def test_a_restore_says_so_if_the_log_has_another_record_in_the_place_of_its_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It once ended with an unexpected error, because that record cannot be decoded."""
    monkeypatch.setattr(trees, "_ATTEMPTS", 2)
    with odd_cluster(Random(1)) as cluster:
        for broker in (cluster.broker, cluster.instance):
            broker.becomes(Random(1), sane=True)
        at_empty = ("--zookeeper", EMPTY, "--bootstrap", f"127.0.0.1:{cluster.broker.port}")
        file = str(cluster.folder / "now.backup")
        assert run("backup", file, zookeeper="127.0.0.1:1").code == 0
        ran = run("restore", file, *at_empty, "--execute", "--stopped")
    assert (ran.code, "claimed by another instance; is every old instance stopped?" in ran.err) == (5, True), ran


def test_a_move_or_pause_of_many_groups_says_which_could_not_be_listed_and_that_no_name_matches() -> None:
    with odd_cluster(Random(1)) as cluster:
        for broker in (cluster.broker, cluster.instance):
            broker.becomes(Random(1), sane=True)
        cluster.tree.value(layout.partition_state(TOPIC, 0), {"leader": 2, "leader_epoch": 1, "isr": [2]})
        for command in (["take-over", "--all"], ["give-back", "--all"], ["pause", "--all", "--dry-run"]):
            ran = run("groups", *command, zookeeper="127.0.0.1:1")
            assert (ran.code, f"NOT SHOWN: the client-assigned groups in {TOPIC}[0]" in ran.err) == (0, True), ran
        ran = run("groups", "take-over", "--matching", "nothing.*", "--execute", zookeeper="127.0.0.1:1")
    assert (ran.code, "no native group matches 'nothing.*'" in ran.err) == (7, True), ran


def test_a_repeated_give_back_waits_for_those_whose_members_have_not_all_rejoined() -> None:
    returning = {"version": 1, "groups": {"given-back": {"kind": "native", "fenced": "a stay"}}}
    with odd_cluster(Random(1)) as cluster:
        for broker in (cluster.broker, cluster.instance):
            broker.becomes(Random(1), sane=True)
        cluster.tree.value(layout.kinds(partition_of("given-back")), returning)
        for which in (["--all"], ["--matching", "given.*"]):
            ran = run("groups", "give-back", *which, "--execute", "--timeout", "0.2", zookeeper="127.0.0.1:1")
            assert "not all members have rejoined after 0.2 s in 1 group (given-back)" in ran.err, ran
        assert run("groups", "give-back", "--matching", "given.*", zookeeper="127.0.0.1:1").code == 0


def test_what_is_exported_of_oddly_named_groups_can_be_imported(tmp_path: Path) -> None:
    names = (
        "a ",
        " a",
        "a\n",
        "a\r",
        "a\r\nb",
        'a"b',
        "a,b",
        "ü💥",
        "x" * 5_000,
        "--help",
        "-",
        "\t",
        "'",
        "#a",
        "\u2028",
    )
    file = tmp_path / "offsets.csv"
    every = ("groups", "reset-offsets", "--all-groups")
    with odd_cluster(Random(1)) as cluster:
        for broker in (cluster.broker, cluster.instance):
            broker.becomes(Random(1), sane=True)
        cluster.instance.names = names
        exported = CliRunner().invoke(cli, [*every, "--all-topics", "--to-current", "--export"])
        assert exported.exit_code == 0, exported.stderr
        file.write_bytes(exported.stdout_bytes)  # the text would have other line breaks
        planned = run(*every, "--from-file", str(file), "-o", "json", zookeeper="127.0.0.1:1")
        assert {row["group"] for row in planned.json()} == {*names, "delays"}
        assert {row["new_offset"] for row in planned.json() if row["group"] in names} == {5, 7}
        piped = CliRunner().invoke(cli, [*every, "--from-file", "-", "-o", "json"], input=exported.stdout_bytes)
        file.write_bytes(codecs.BOM_UTF8 + exported.stdout_bytes)  # as a spreadsheet saves it
        marked = run(*every, "--from-file", str(file), "-o", "json", zookeeper="127.0.0.1:1")
        for rows in (json.loads(piped.stdout), marked.json()):
            assert [(row["group"], row["new_offset"]) for row in rows] == [
                (row["group"], row["new_offset"]) for row in planned.json()
            ]
        for name in names:
            one = run(
                "groups", "reset-offsets", "--from-file", str(file), "-o", "json", "--", name, zookeeper="127.0.0.1:1"
            )
            assert [row["new_offset"] for row in one.json()] == [5, 7], name


@pytest.mark.parametrize("name", KNOWN)
def test_the_broker_answers_every_version_while_it_is_sane(name: str) -> None:
    broker, form = OddBroker(), message(f"{name}Request")
    for version in form.versions:
        header = RequestHeader(form.api_key or 0, version, 1, "x", version in form.flexible)
        answer, goes_on = broker.answer(request_frame(header, form, form())[4:])
        assert answer
        assert goes_on


@pytest.mark.parametrize("pair", [((), "0 groups"), (("a", "a"), "2 groups"), (("b",), "0 groups")])
def test_a_response_about_another_group_or_none_is_a_brokers_error(pair: tuple[tuple[str, ...], str]) -> None:
    names, said = pair
    one = message("DescribeGroupsResponse").struct("DescribedGroup")
    with pytest.raises(BrokerError, match=said):
        of_group([one(group_id=name) for name in names], "a")


@pytest.mark.parametrize(("host", "port"), [("", 9), ("a" * 64, 9), ("x..y", 9), ("\x00", 9), ("127.0.0.1", -1)])
def test_an_address_that_no_resolver_takes_is_a_brokers_error(host: str, port: int) -> None:
    with pytest.raises(BrokerError):
        asyncio.run(BrokerConnection(host, port).open(2.0))
