"""What ``zk-docker/`` deploys, started: the clusters of the Compose files, and the unit under systemd.

Their images are built first, which takes minutes the first time. Without Compose 2, only the unit starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.zk import connect, layout
from tests.packaging.build import copy_sources
from tests.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]  # the first builds take minutes
DEPLOYMENT = Path(__file__).resolve().parents[2] / "zk-docker"
_PROXIES = [name for name in os.environ if name.lower() in {"http_proxy", "https_proxy", "no_proxy"}]
_RIGHTS = [
    *(word for name in ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH") for word in ("--cap-add", name)),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
]
"""What systemd needs in a container. Not --privileged, which an engine without all rights itself refuses."""
_SYSTEMD = """
FROM kafka-coord
USER root
RUN apt-get update \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends procps systemd \\
 && rm -f /usr/sbin/policy-rc.d
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT []
CMD ["/lib/systemd/systemd"]
"""


def docker(*arguments: str, stdin: str | None = None, within_s: float = 120, **variables: str) -> str:
    """Runs the command, and returns what it prints."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "0", **variables}  # Debian's package has no buildx
    ran = subprocess.run(
        ["docker", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
        env=environment,
    )
    assert ran.returncode == 0, f"docker {' '.join(arguments)}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
    return ran.stdout


def build(tag: str, *arguments: str, stdin: str | None = None) -> None:
    given = [word for name in _PROXIES for word in ("--build-arg", name)]
    docker("build", "--network", "host", *given, "-t", tag, *arguments, stdin=stdin, within_s=1200)


@pytest.fixture(scope="module")
def image(zookeeper_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of an instance."""
    sources = tmp_path_factory.mktemp("image") / "sources"
    copy_sources(sources)
    build("kafka-coord", "-f", str(DEPLOYMENT / "coordinator" / "Dockerfile"), str(sources))
    return "kafka-coord"


@pytest.mark.parametrize(
    ("files", "broker", "arguments"),
    [
        pytest.param(["cluster.yml"], "kafka-coord-broker", [], id="zookeeper"),
        pytest.param(
            *(["cluster.yml", "kraft.yml"], "kafka-coord-broker-kraft", ["--build-arg", "KAFKA=4.3.0"]),
            id="kraft",
            marks=pytest.mark.long,
        ),
    ],
)
def test_compose_starts_a_cluster_that_stores_and_reads_records(
    files: list[str], broker: str, arguments: list[str], image: str
) -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose plugin (Compose 2), so the Compose files were not started")
    build(broker, *arguments, str(DEPLOYMENT / "broker"))
    port, project = str(free_port()), f"kafka-coord-test-{os.getpid()}"
    of_project = [word for file in files for word in ("-f", str(DEPLOYMENT / file))]

    def compose(*words: str, **more: Any) -> str:
        return docker("compose", "-p", project, *of_project, *words, DASHBOARD_PORT=port, **more)

    def coordinator(*words: str, **more: Any) -> str:
        return compose("exec", "-T", "coordinator-1", "kafka-coord", *words, **more)

    try:
        compose("up", "-d", "--wait", "--wait-timeout", "400", within_s=500)
        records = "".join(f'{{"n": {number}}}\n' for number in range(60))
        coordinator("load", "-", "--format", "jsonl", "--topic", "numbers", "--partitions", "6", stdin=records)
        read = coordinator(
            "consume", "--group", "sums", "--topic", "numbers", "--from-beginning", "--max-messages", "60"
        )
        assert sorted(json.loads(line)["n"] for line in read.splitlines()) == list(range(60))
        found = json.loads(coordinator("doctor", "-o", "json"))
        assert [one for one in found if one["severity"] == "error"] == []
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/topics") as answer:
            assert "numbers" in {one["topic"] for one in json.load(answer)}
    except AssertionError as failure:
        failure.add_note(compose("logs", "--tail", "20"))
        raise
    finally:
        compose("down", "-v", "--timeout", "30")
    left = docker("ps", "-a", "-q", "--filter", f"label=com.docker.compose.project={project}")
    assert left == ""


@pytest.fixture
def host(image: str, zk_hosts: str, tmp_path: Path) -> Iterator[str]:
    """A container that runs systemd, with the unit installed as zk-docker/README.md says. Its instance's ZooKeeper is
    the test's."""
    build("kafka-coord-systemd-test", "-", stdin=_SYSTEMD)
    settings = tmp_path / "kafka-coord.toml"
    settings.write_text(f'[zookeeper]\nhosts = "{zk_hosts}"\n[serve]\nbroker_id = 1\n')
    store = connect(zk_hosts)
    store.ensure_path(layout.BROKER_IDS)  # an instance begins a tree by itself only beside Kafka's own znodes
    store.close()
    mounts = [word for tree in ("/run", "/run/lock") for word in ("--tmpfs", tree)]
    host = docker(
        *("run", "-d", *_RIGHTS, "--network", "host", "--cgroupns", "host", *mounts),
        *("-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw", "kafka-coord-systemd-test"),
    ).strip()
    try:
        for file in ("kafka-coord.service", "kafka-coord.slice"):
            docker("cp", str(DEPLOYMENT / "systemd" / file), f"{host}:/etc/systemd/system/")
        docker("cp", str(settings), f"{host}:/etc/kafka-coord.toml")
        docker(
            "exec", host, "install", "-m", "640", "-g", "kafka-coord", "/etc/kafka-coord.toml", "/etc/kafka-coord.toml~"
        )
        docker("exec", host, "mv", "/etc/kafka-coord.toml~", "/etc/kafka-coord.toml")
        yield host
    finally:
        docker("rm", "-f", "-v", host)


def test_the_unit_starts_once_ready_restarts_after_a_crash_and_stops_cleanly(host: str, zk_hosts: str) -> None:
    def systemctl(*words: str) -> str:
        return docker("exec", host, "systemctl", *words)

    def shown(name: str) -> str:
        return systemctl("show", "-P", name, "kafka-coord").strip()

    def elected() -> int | None:
        coordinator = read_cluster(store).coordinator
        return coordinator.broker_id if coordinator is not None else None

    store = connect(zk_hosts)
    try:
        eventually(lambda: _answers(host))
        docker("exec", host, "systemd-analyze", "verify", "--man=no", "/etc/systemd/system/kafka-coord.service")
        systemctl("daemon-reload")
        systemctl("enable", "--now", "kafka-coord")  # returns once the instance is ready
        assert (shown("ActiveState"), shown("SubState"), shown("User")) == ("active", "running", "kafka-coord")
        assert shown("Slice") == "kafka-coord.slice"
        assert list(read_cluster(store).instances) == [1]
        eventually(lambda: elected() == 1)
        pid = shown("MainPID")
        systemctl("reload", "kafka-coord")
        assert shown("MainPID") == pid
        systemctl("kill", "-s", "KILL", "kafka-coord")
        eventually(lambda: shown("ActiveState") == "active" and shown("MainPID") not in {pid, "0"}, within_s=60)
        assert shown("NRestarts") == "1"
        eventually(lambda: elected() == 1)
        systemctl("stop", "kafka-coord")
        assert (shown("ActiveState"), shown("Result")) == ("inactive", "success")
        assert not read_cluster(store).instances
    except AssertionError as failure:
        journal = subprocess.run(
            ["docker", "exec", host, "journalctl", "--no-pager", "-n", "40"],
            capture_output=True,
            text=True,
            check=False,
        )
        failure.add_note(journal.stdout)
        raise
    finally:
        store.close()


def _answers(host: str) -> bool:
    """Returns whether systemd has started what there is to start."""
    asked = subprocess.run(
        ["docker", "exec", host, "systemctl", "is-system-running"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() in {"running", "degraded"}
