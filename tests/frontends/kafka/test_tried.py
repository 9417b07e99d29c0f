"""Runs Java's own client through the scenario of ``scripts/clients``; that script runs all clients."""

from __future__ import annotations

import os

import pytest

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.dev.cluster.jars import KAFKA, KAFKA_VERSION, class_path
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.java import brokers_archive
from tests.frontends.kafka.tried.contenders import Contender, java_program
from tests.frontends.kafka.tried.play import Play

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def java() -> Contender:
    program = java_program(os.pathsep.join(map(str, class_path(KAFKA))), flags=brokers_archive())
    return Contender(f"kafka-clients {KAFKA_VERSION}", lambda: program, static=True)


def test_javas_client_joins_shares_leaves_and_resumes(front: Front, java: Contender) -> None:
    seen = Play(java, "cooperative-sticky", front).run(without={"lose coordinator", "be static"})
    assert not seen.failure, seen
    assert seen.version == f"kafka-clients {KAFKA_VERSION}"
    assert [name for name, _ in seen.steps] == ["join", "share", "leave", "resume", "meet new topic"]


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("strategy", ["range", pytest.param("cooperative-sticky", marks=pytest.mark.long)])
def test_javas_client_joins_shares_leaves_and_resumes_in_a_managed_group(
    front: Front, java: Contender, strategy: str
) -> None:
    play = Play(java, strategy, front)
    ensure_group(front.store, play.group)
    seen = play.run(without={"lose coordinator"})
    assert not seen.failure, seen
    assert [name for name, _ in seen.steps] == ["join", "share", "leave", "resume", "meet new topic", "be static"]
