"""The wheel with each extra, installed in an empty environment, does there what the extra is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.kafka import KafkaBroker
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.kafka.librdkafka import produce
from tests.packaging import proofs
from tests.packaging.build import ROOT, Built, build, build_from_sdist
from tests.packaging.environments import Environment, empty, install_without_index


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    def make(extra: str) -> Environment:
        environment = empty(tmp_path_factory.mktemp(f"environment-{extra}"))
        install_without_index(environment, extra, built.wheel, *([built.dev_wheel] if extra in {"dev", "demo"} else []))
        return environment

    return make


@pytest.fixture
def servers(zk_hosts: str, tmp_path: Path) -> Iterator[proofs.Servers]:
    with KafkaBroker(tmp_path, 1, zk_hosts) as broker:
        TopicAdmin(broker.address).create("flights", 2)
        produce(broker.address, "flights", [(None, b"{}")] * proofs.RECORDS)
        yield proofs.Servers(zk_hosts, "flights")


@pytest.mark.long
def test_a_commit_gives_the_same_bytes_twice_and_its_sdist_gives_its_wheel(built: Built, tmp_path: Path) -> None:
    again = build(tmp_path / "elsewhere", tmp_path / "dist")
    assert again.bytes() == built.bytes()
    from_sdist = build_from_sdist(built.sdist, tmp_path / "sdist", tmp_path / "from-sdist")
    assert from_sdist.read_bytes() == built.wheel.read_bytes()


@pytest.mark.kafka
def test_a_cluster_on_a_laptop_needs_neither_spark_nor_pandas_and_the_demo_brings_them(
    installed: Callable[[str], Environment],
) -> None:
    proofs.cluster(installed("dev"))
    proofs.demo(installed("demo"))


@pytest.mark.kafka
@pytest.mark.spark
def test_extras_do_their_job_in_empty_environments(
    installed: Callable[[str], Environment], servers: proofs.Servers
) -> None:
    def consume() -> None:
        consumer = installed("")
        assert {path.name for path in consumer.site.iterdir() if path.is_symlink()} & {"kazoo", "re2", "click"} == {
            "kazoo",
            "re2",
        }
        proofs.consumer(consumer, servers)

    proofs.traces(installed("otel"), servers, consume)

    def command_and_query() -> None:
        proofs.commands(installed("cli"), servers)
        proofs.query(installed("spark"), servers)

    proofs.daemon(installed("serve"), servers, meanwhile=command_and_query)


@pytest.mark.zookeeper
def test_a_consumers_session_authenticates_with_its_extra_alone(installed: Callable[[str], Environment]) -> None:
    proofs.sasl(installed("sasl"))


def test_no_extra_of_users_is_left_out() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    of_checkouts = {"dev-requirements", "demo-requirements", "package", "test", "lint"}
    installed = re.findall(r'installed\("(\w+)"\)', Path(__file__).read_text())
    assert set(installed) == set(setup["options.extras_require"]) - of_checkouts
