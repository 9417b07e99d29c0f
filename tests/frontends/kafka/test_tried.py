"""Runs Java's own client through the scenario of ``scripts/clients``; that script runs all clients."""

from __future__ import annotations

import os

import pytest

from kafka_coord.dev.cluster.jars import KAFKA_VERSION, kafka_class_path
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.tried.contenders import Contender, java_program
from tests.frontends.kafka.tried.play import Play

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


def test_javas_client_joins_shares_leaves_and_resumes(front: Front) -> None:
    class_path = os.pathsep.join(map(str, kafka_class_path()))
    java = Contender(f"kafka-clients {KAFKA_VERSION}", lambda: java_program(class_path))
    seen = Play(java, "cooperative-sticky", front).run(without={"lose coordinator"})
    assert not seen.failure, seen
    assert seen.version == f"kafka-clients {KAFKA_VERSION}"
    assert [name for name, _ in seen.steps] == ["join", "share", "leave", "resume"]
