"""Tests that take native groups over, and give them back, while their members run."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from kafka_coord.dev.cluster.kafka import KafkaCluster, KafkaSettings
from kafka_coord.frontends.kafka.instances import Node
from kafka_coord.frontends.kafka.moving import MoveRefused, Moves
from kafka_coord.frontends.kafka.native import NativeGroups
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import GroupRecord, read_kinds
from tests.cli.running import Run, run
from tests.conftest import brokers_of_a_run
from tests.frontends.kafka.conftest import Front, elected, end_term, published, started
from tests.frontends.kafka.records import (
    Worker,
    consumed,
    filled,
    flowing,
    have_all,
    kind,
    member,
    members,
    never_lost,
    stored,
    working,
)
from tests.frontends.kafka.tried.contenders import MEMBERS
from tests.monitor.dashboard.served import operators_file, serving
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
KIP_848 = {"group.protocol": "consumer"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topic(front: Front, service: object) -> str:
    del service
    return filled(front)


@pytest.fixture
def group() -> str:
    return f"moving-{next(_numbers)}"


def done(coord: Run, verb: str, group: str, *more: str) -> bool:
    """Whether the group was moved. A refused move may be tried again."""
    ran = coord("groups", verb, group, "--execute", *more)
    logging.warning("%s", ran.err)
    return ran.code == 0


def _taken_over(coord: Run, group: str, workers: list[Worker], *more: str) -> list[int]:
    """Takes the group over, and returns how often the members had rebalanced before. After an attempt that was undone,
    they join again."""
    before: list[int] = []

    def is_done() -> bool:
        before[:] = [one.rebalances for one in workers]
        return done(coord, "take-over", group, *more)

    eventually(is_done, within_s=120)
    return before


def is_fenced(front: Front, group: str) -> bool:
    (only,) = members(front.brokers, group) or [""]
    return only.startswith("kafka-coord")


def test_a_group_is_taken_over_and_given_back_under_load(front: Front, topic: str, group: str, coord: Run) -> None:
    consumed(front.brokers, group, topic, 100)
    with flowing(front, topic), working(front.bootstrap, group, topic, 3, "static-1") as workers:
        eventually(lambda: kind(front, group) is GroupKind.NATIVE)
        before = _taken_over(coord, group, workers)
        assert kind(front, group) is GroupKind.CLIENT_ASSIGNED
        known = [dict(one.committed) for one in workers]
        eventually(lambda: all(one.committed != then for one, then in zip(workers, known, strict=True)), within_s=30)
        assert [one.rebalances for one in workers] == before, "the members go on with their partitions"
        assert is_fenced(front, group), "the fence stays"
        never_lost(workers, front.bootstrap, group, topic)

        eventually(lambda: done(coord, "give-back", group), within_s=60)
        assert kind(front, group) is GroupKind.NATIVE
        eventually(lambda: members(front.brokers, group) == ["worker-0", "worker-1", "worker-2"], within_s=60)
        known = [dict(one.committed) for one in workers]
        eventually(lambda: all(one.committed != then for one, then in zip(workers, known, strict=True)), within_s=60)
        never_lost(workers, front.brokers, group, topic)


@contextmanager
def one_that_dies(front: Front, topic: str, group: str) -> Iterator[None]:
    """Runs a member until it is killed. Its session lasts 6 s, and its rebalances may take five minutes."""
    command = [sys.executable, MEMBERS / "member.py", "confluent-kafka", front.bootstrap, topic, group, "dies"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_member_that_dies_delays_a_give_back_until_its_session_has_ended(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    consumed(front.brokers, group, topic, 10)
    with flowing(front, topic), working(front.bootstrap, group, topic, 1) as workers:
        with one_that_dies(front, topic, group):
            eventually(lambda: not have_all(workers), within_s=60)
            _taken_over(coord, group, workers)
        eventually(lambda: done(coord, "give-back", group), within_s=60)
        eventually(lambda: have_all(workers), within_s=30)
        never_lost(workers, front.brokers, group, topic)


def test_kip_848_members_are_taken_over_and_given_back_under_load(
    front: Front, topic: str, group: str, coord: Run, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.config.option.kraft:
        pytest.skip("Kafka 3.9 has no KIP-848")
    _kip_848_members_move(front, topic, group, coord, monkeypatch)


def _kip_848_members_move(front: Front, topic: str, group: str, coord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    consumed(front.brokers, group, topic, 100, **KIP_848)
    with flowing(front, topic), working(front.bootstrap, group, topic, 3, "static-1", **KIP_848) as workers:

        def goes_on(servers: str) -> None:
            known = [dict(one.committed) for one in workers]
            eventually(lambda: have_all(workers) and _go_on(workers, known), within_s=60)
            never_lost(workers, servers, group, topic)

        assert kind(front, group) is GroupKind.NATIVE
        ran = coord("groups", "take-over", group, "--execute")
        assert "its members use KIP-848, which only managed groups have here: use --managed" in ran.err
        before = _taken_over(coord, group, workers, "--managed")
        assert kind(front, group) is GroupKind.MANAGED
        goes_on(front.bootstrap)
        assert [one.rebalances for one in workers] == before, "the members go on with their partitions"
        assert is_fenced(front, group), "the fence stays"
        late = member(front.brokers, group, topic, **KIP_848)
        try:
            assert not any(late.poll(0.5) or late.assignment() for _ in range(4)), "nobody can join the namesake"
        finally:
            late.close()

        eventually(lambda: done(coord, "give-back", group), within_s=60)
        assert kind(front, group) is GroupKind.NATIVE
        eventually(lambda: not read_kinds(front.store, [group])[group].fenced, within_s=60)
        goes_on(front.brokers)
        assert front.store.exists(layout.group(group)) is None, "nothing is left in ZooKeeper"

        async def fails(*_what: object) -> None:
            raise MoveRefused("a test wants it")

        with monkeypatch.context() as patched:
            patched.setattr(Moves, "_admitted", fails)
            assert not done(coord, "take-over", group, "--managed")
        eventually(lambda: kind(front, group) is GroupKind.NATIVE)
        eventually(lambda: read_kinds(front.store, [group])[group] == GroupRecord(GroupKind.NATIVE), within_s=60)
        goes_on(front.brokers)


@contextmanager
def with_policy(directory: Path, policy: str) -> Iterator[tuple[Front, Run]]:
    """Brokers of their own with a policy for groups of both protocols."""

    def brokers(
        place: Path, zookeeper: str, count: int, settings: KafkaSettings
    ) -> AbstractContextManager[KafkaCluster]:
        properties = {"group.consumer.migration.policy": policy}
        return brokers_of_a_run(place, zookeeper, count, dataclasses.replace(settings, properties=properties))

    with started(directory, brokers) as front, elected(front, {}) as service, published(front.store, front.listeners):
        eventually(lambda: service.leads)
        yield front, partial(run, zookeeper=front.cluster.zookeeper)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", ["disabled", "upgrade", "downgrade", "bidirectional"])
def test_kip_848_members_move_whichever_protocols_the_brokers_let_members_mix(
    tmp_path: Path, policy: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.config.option.kraft:
        pytest.skip("Kafka 3.9 has no KIP-848")
    with with_policy(tmp_path, policy) as (front, coord):
        topic = filled(front)
        _kip_848_members_move(front, topic, "of-kip-848", coord, monkeypatch)
        if policy in {"upgrade", "bidirectional"}:
            _groups_of_both_protocols_stay(front, topic, "of-both", coord, policy)


def _groups_of_both_protocols_stay(front: Front, topic: str, group: str, coord: Run, policy: str) -> None:
    """A group with members of both protocols is refused, at the brokers and here, and nothing is changed."""
    protocols: list[dict[str, Any]] = [{}, KIP_848]
    consumed(front.brokers, group, topic, 10)
    with flowing(front, topic), ExitStack() as ends:
        working_with = {bool(one): ends.enter_context(ExitStack()) for one in protocols}
        workers: list[Worker] = []

        def join(protocol: dict[str, Any]) -> None:
            came = working(front.bootstrap, group, topic, 1, beside=workers, **protocol)
            workers.extend(working_with[bool(protocol)].enter_context(came))

        def leave() -> None:
            working_with[True].close()
            workers[:] = [one for one in workers if not one.is_closed]
            eventually(lambda: have_all(workers), within_s=60)

        def stays(why: str, *commands: str) -> None:
            eventually(lambda: have_all(workers), within_s=60)
            record, before = read_kinds(front.store, [group])[group], [one.rebalances for one in workers]
            for command in commands:
                ran = coord("groups", *command.split(), group, "--execute")
                assert (ran.code, why in ran.err) == (6, True), ran.err
            known = [dict(one.committed) for one in workers]
            eventually(lambda: _go_on(workers, known), within_s=60)
            assert read_kinds(front.store, [group])[group] == record
            assert [one.rebalances for one in workers] == before

        for protocol in protocols:
            join(protocol)
        stays("not all of its members use KIP-848; switch all of them first", "take-over", "take-over --managed")
        if policy == "upgrade":  # the group stays one of KIP-848
            return
        leave()
        _taken_over(coord, group, workers, "--managed")
        join(KIP_848)
        stays("stop them first: only classic members can go on", "give-back")
        leave()
        eventually(lambda: done(coord, "give-back", group), within_s=60)
        eventually(lambda: have_all(workers), within_s=60)
        never_lost(workers, front.brokers, group, topic)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_is_converted_and_converted_back_under_load(
    front: Front, topic: str, group: str, coord: Run, assignor: str
) -> None:
    strategy = {"partition.assignment.strategy": assignor}
    with flowing(front, topic), working(front.bootstrap, group, topic, 3, "static-1", **strategy) as workers:
        eventually(lambda: kind(front, group) is GroupKind.CLIENT_ASSIGNED)
        rounds = 1 if assignor == "range" else 4  # a cooperative client joins again after each in which one gives up
        for to, most in ((GroupKind.MANAGED, 1), (GroupKind.CLIENT_ASSIGNED, rounds), (GroupKind.MANAGED, 1)):
            eventually(lambda: _is_stable(coord, group), within_s=60)
            before, known = [one.rebalances for one in workers], [dict(one.committed) for one in workers]
            eventually(lambda to=to: done(coord, "convert", group, "--to", str(to)), within_s=60)
            assert kind(front, group) is to
            eventually(lambda known=known: _go_on(workers, known), within_s=60)
            eventually(lambda: _is_stable(coord, group) and have_all(workers), within_s=60)
            more = [one.rebalances - then for one, then in zip(workers, before, strict=True)]
            assert max(more) <= most, f"{to}: {more}"
            never_lost(workers, front.bootstrap, group, topic)


def _is_stable(coord: Run, group: str) -> bool:
    return coord("groups", "describe", group, "-o", "json").json()["state"] == "Stable"  # type: ignore[no-any-return]


def _go_on(workers: list[Worker], known: list[dict[TopicPartition, int]]) -> bool:
    return all(one.committed != then for one, then in zip(workers, known, strict=True))


def test_a_member_behind_the_brokers_own_listener_is_named_and_nothing_is_changed(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    consumed(front.brokers, group, topic, 10)
    with working(front.bootstrap, group, topic, 1) as (worker,):
        stranger = member(front.brokers, group, topic, **{"client.id": "stranger"})
        try:
            eventually(lambda: stranger.poll(0.05) or stranger.assignment(), within_s=30)
            before = worker.rebalances

            def refused() -> bool:
                ran = coord("groups", "take-over", group, "--execute")
                assert ran.code == 6
                return "stranger at 127.0.0.1" in ran.err

            eventually(refused, within_s=60)
            assert kind(front, group) is GroupKind.NATIVE
            assert not read_kinds(front.store, [group])[group].moving
            eventually(lambda: members(front.brokers, group) == ["stranger", "worker-0"])
            assert worker.rebalances <= before + 1
        finally:
            stranger.close()


def test_a_member_that_comes_while_the_fence_enters_is_given_nothing(
    front: Front, topic: str, group: str, coord: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, came = NativeGroups.leave, list[Consumer]()

    async def after_somebody_came(self: NativeGroups, node: Node, name: str, leaving: Any) -> None:
        if name == group and not came:
            came.append(member(front.brokers, group, topic, **{"client.id": "stranger"}))
            await asyncio.to_thread(lambda: [came[0].poll(0.1) for _ in range(10)])
        await leave(self, node, name, leaving)

    consumed(front.brokers, group, topic, 10)
    with working(front.bootstrap, group, topic, 2) as workers:
        eventually(lambda: len(members(front.brokers, group)) == len(workers))
        with monkeypatch.context() as patched:
            patched.setattr(NativeGroups, "leave", after_somebody_came)
            eventually(lambda: done(coord, "take-over", group) or came, within_s=60)
            (stranger,) = came
            stranger.poll(0.1)
            assert not stranger.assignment()
            stranger.close()
        eventually(lambda: done(coord, "take-over", group), within_s=60)
        known = [dict(one.committed) for one in workers]
        eventually(lambda: _go_on(workers, known), within_s=60)
        never_lost(workers, front.bootstrap, group, topic)


def test_nobody_can_join_the_namesake_of_a_group_that_was_taken_over(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    found = consumed(front.brokers, group, topic, 50)
    eventually(lambda: done(coord, "take-over", group), within_s=60)
    eventually(lambda: is_fenced(front, group))
    assert sum(offset for offset in stored(front.bootstrap, group, topic).values() if offset > 0) == len(found)
    late = member(front.brokers, group, topic)
    try:
        assert not any(late.poll(0.5) and not late.poll(0).error() for _ in range(4) if late.assignment())
        assert not late.assignment()
    finally:
        late.close()
    end_term(front, partition_of(group))
    eventually(lambda: is_fenced(front, group))

    gone = next(at for at, offset in stored(front.bootstrap, group, topic).items() if offset >= 0)
    eventually(lambda: coord("groups", "delete-offsets", group, "--topic", f"{topic}:{gone}", "--yes").code == 0)
    left = {at: offset for at, offset in stored(front.bootstrap, group, topic).items() if at != gone and offset >= 0}
    eventually(lambda: done(coord, "give-back", group), within_s=60)
    assert {at: one for at, one in stored(front.brokers, group, topic).items() if one >= 0} == left


def test_operators_move_groups_over_http(front: Front, topic: str, group: str, coord: Run, tmp_path: Path) -> None:
    other = f"{group}-other"
    for one in (group, other):
        consumed(front.brokers, one, topic, 10)
        consumed(front.bootstrap, one, topic, 0)
    with serving(front.cluster.zookeeper, operators_file(tmp_path, alice="a long token")) as served:

        def act(path: str, **body: object) -> tuple[int, Any]:
            headers = {"Authorization": "Bearer a long token", "Content-Type": "application/json"}
            asked = json.dumps({"reason": "as planned", **body})
            status, _, answer = served.ask(f"/api/v1/{path}", "POST", asked, headers)
            return status, json.loads(answer)

        shown = act(f"groups/{group}/convert", to="managed", dry_run=True)[1]
        (effect,) = shown["effects"]
        assert effect.startswith(f"group {group} is native; ")
        assert effect.endswith(" and 0 members (none) go on in a managed group")
        assert kind(front, group) is GroupKind.NATIVE
        assert act(f"groups/{group}/convert")[0] == 400
        eventually(lambda: act(f"groups/{group}/convert", confirm=shown["confirm"])[0] == 200)
        assert kind(front, group) is GroupKind.MANAGED
        assert "as planned" in coord("groups", "history", group, "--actions").out

        groups = [group, other, f"{group}-none"]
        shown = act("actions/convert", to="client-assigned", groups=groups, dry_run=True)[1]
        assert [one.split(";")[0] for one in shown["effects"][:2]] == [
            f"group {group} is managed",
            f"group {other} is native",
        ]
        told = act("actions/convert", confirm=shown["confirm"], groups=groups)[1]["answers"]
        assert [one["result"] for one in told] == ["done", "done", "refused"], told
        assert {kind(front, one) for one in (group, other)} == {GroupKind.CLIENT_ASSIGNED}
        assert "as planned" in coord("groups", "history", other, "--actions").out


def test_the_dry_run_and_a_group_that_does_not_exist(front: Front, topic: str, group: str, coord: Run) -> None:
    consumed(front.brokers, group, topic, 50)
    consumed(front.bootstrap, group, topic, 0)
    ran = coord("groups", "take-over", group)
    assert ran.code == 0
    assert f"group {group} is native; " in ran.out
    assert "and 0 members (none) go on in a client-assigned group" in ran.out
    assert "nothing was changed" in ran.err
    assert kind(front, group) is GroupKind.NATIVE
    assert coord("groups", "take-over", f"{group}-none", "--execute").code != 0
