"""What operators get under ``zk-docker/``: the Compose file, the systemd unit, the rolling restart, the chart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kafka_coord.dev.cluster.jars import KAFKA_4_VERSION, KAFKA_VERSION
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.model import Process
from kafka_coord.settings import Settings, load_settings
from kafka_coord.zk import connect, layout
from kafka_coord.zk.instance import InstanceRegistration
from tests.cli.running import environment
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = ROOT / "zk-docker"


def settings_of(variables: dict[str, Any]) -> Settings:
    """Fails for a variable that no setting has."""
    return load_settings(environ={name: str(value) for name, value in variables.items()})


def composed(*files: str) -> dict[str, Any]:
    """The services of Compose files, of which a later one adds to an earlier one, as ``docker compose -f … -f …``."""
    services: dict[str, Any] = {}
    for file in files:
        for name, more in yaml.safe_load((DEPLOYMENT / file).read_text())["services"].items():
            before = services.get(name, {})
            merged = {key: before[key] | more[key] for key in before.keys() & more.keys() if key != "image"}
            services[name] = before | more | merged
    return services


def properties(*files: str) -> dict[str, str]:
    lines = "".join((DEPLOYMENT / "broker" / f"{file}.properties").read_text() for file in files)
    return dict(re.findall(r"^([\w.]+)=(.+)$", lines, re.MULTILINE))


@pytest.mark.parametrize(
    ("files", "mode", "version"),
    [
        pytest.param(["cluster.yml"], "zookeeper", KAFKA_VERSION, id="zookeeper"),
        pytest.param(["cluster.yml", "kraft.yml"], "kraft", KAFKA_4_VERSION, id="kraft"),
    ],
)
def test_the_compose_files_instances_have_settings_that_fit_their_brokers(
    files: list[str], mode: str, version: str
) -> None:
    services, in_image = composed(*files), properties("server", mode)
    voters = in_image.get("controller.quorum.voters", "")
    for number in (1, 2, 3):
        service = services[f"broker-{number}"]
        broker = in_image | dict(line.split("=", 1) for line in service["command"])
        settings = settings_of(services[f"coordinator-{number}"]["environment"])
        assert settings.serve.broker_id == int(broker["node.id"]) == number
        assert settings.zookeeper.hosts == broker.get("zookeeper.connect", "zookeeper:2181")
        assert str(settings.serve.broker_listener) == f"broker-{number}:9094"
        assert "COORD://0.0.0.0:9094" in broker["listeners"].split(",")
        assert broker["advertised.listeners"].endswith(f"COORD://coordinator-{number}:9192")
        assert (f"{number}@broker-{number}:9093" in voters.split(",")) is (mode == "kraft")
        assert (f"broker-{number}:9092" in (settings.serve.bootstrap or "")) is (mode == "kraft")
        assert ("KAFKA_CLUSTER_ID" in service.get("environment", {})) is (mode == "kraft")
        dockerfile = (DEPLOYMENT / "broker" / "Dockerfile").read_text()
        assert version == service["build"].get("args", {}).get("KAFKA", re.findall(r"ARG KAFKA=(.+)", dockerfile)[0])
    if mode == "kraft":
        first = services["init"]
        assert settings_of(first["environment"]).serve.bootstrap == settings.serve.bootstrap
        assert first["command"] == ["init"]
        assert services["coordinator-1"]["depends_on"]["init"] == {"condition": "service_completed_successfully"}
    assert settings_of(services["dashboard"]["environment"]).zookeeper.hosts == "zookeeper:2181"
    assert "healthcheck" in services["dashboard"], "that of the image asks an instance"


def test_the_image_is_not_roots_and_is_healthy_only_if_the_instance_is_ready() -> None:
    lines = (DEPLOYMENT / "coordinator" / "Dockerfile").read_text()
    variables = dict(re.findall(r"(KAFKA_COORD_\w+)=(\S+)", lines))
    assert str(settings_of(variables).serve.listen_http) == "0.0.0.0:9404"
    assert re.search(r"^USER 10001:10001$", lines, re.MULTILINE)
    assert "http://127.0.0.1:9404/ready" in lines


def test_everyone_may_read_the_images_root_also_on_a_base_that_was_made_here() -> None:
    for image in ("Dockerfile", "broker/Dockerfile", "coordinator/Dockerfile"):
        final = (DEPLOYMENT / image).read_text().rpartition("\nFROM ")[2]
        assert "chmod 755 /\n" in final, image
    assert 'chmod 755 "$1" && tar' in (ROOT / "scripts" / "container-engine").read_text(), "mktemp makes it 0700"


SCHEMA = json.loads((DEPLOYMENT / "chart" / "values.schema.json").read_text())


def test_the_charts_schema_knows_each_value_and_no_other() -> None:
    values = yaml.safe_load((DEPLOYMENT / "chart" / "values.yaml").read_text())
    jsonschema.validate(values, SCHEMA)
    used = "".join(file.read_text() for file in (DEPLOYMENT / "chart" / "templates").iterdir())
    for path in re.findall(r"\.Values\.([\w.]+)", used):
        at: Any = SCHEMA
        for part in path.split("."):
            at = at["properties"][part]
    assert SCHEMA["properties"].keys() - {"global"} == values.keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"broker": 3},
        {"brokers": "three"},
        {"kafka": {"enable": True}},
        {"kafka": {"brokerListener": "kafka-%d"}},
        {"image": {"pullPolicy": "always"}},
        {"env": {"COORD_LISTEN": "x"}},
        {"dashboard": {"enabled": "yes"}},
    ],
    ids=str,
)
def test_the_chart_refuses_what_it_does_not_know(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_rates_the_unit_as_confined() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=15"]
    rated = subprocess.run(
        [*command, str(DEPLOYMENT / "systemd" / "kafka-coord.service")], capture_output=True, text=True, check=False
    )
    assert rated.returncode == 0, rated.stdout.splitlines()[-1]


@pytest.fixture
def supervised(zk_hosts: str, tmp_path: Path) -> Iterator[Path]:
    """Two instances that ``restart HOST BROKER_ID`` in the returned directory restarts, as a service manager would."""
    restart = tmp_path / "restart"
    restart.write_text(
        f"""#!/bin/bash
cd {tmp_path}
echo "$1 $2" >>restarted
if [ -e "$2.pid" ]; then
    status=/proc/$(cat "$2.pid")/status
    kill "$(cat "$2.pid")"
    while grep -q '^State:.[^Z]' "$status" 2>/dev/null; do sleep 0.1; done  # nobody may fetch an orphan's exit code
fi
kafka-coord serve --broker-id "$2" >>"$2.log" 2>&1 &
echo $! >"$2.pid"
"""
    )
    program = tmp_path / "kafka-coord"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kafka_coord.cli.main "$@"\n')
    for file in (restart, program):
        file.chmod(0o755)
    variables = _variables(tmp_path, zk_hosts)
    store = connect(zk_hosts)
    store.ensure_path(layout.BROKER_IDS)  # an instance begins a tree by itself only beside Kafka's own znodes
    store.close()
    for number in ("1", "2"):
        subprocess.run([restart, "first", number], env=variables, check=True, timeout=60)
    yield tmp_path
    for file in tmp_path.glob("*.pid"):
        subprocess.run(["bash", "-c", 'kill "$0"; tail --pid="$0" -f /dev/null', file.read_text().strip()], check=False)


def _variables(directory: Path, zookeeper: str) -> dict[str, str]:
    found = environment(PYTHONPATH=str(ROOT), KAFKA_COORD_ZOOKEEPER=zookeeper)
    restart = {"KAFKA_COORD_RESTART": str(directory / "restart"), "KAFKA_COORD_BROKER_UNIT": ""}
    return found | {"PATH": f"{directory}:{found['PATH']}"} | restart


def test_a_rolling_restart_waits_for_what_an_instance_waits_for_and_then_gives_up(
    supervised: Path, zk_hosts: str
) -> None:
    """A third instance is registered that waits for its clients for ever."""
    store = connect(zk_hosts)
    registration = InstanceRegistration(store, 3, {}, lambda: None, Process("here", 1, "test", 0))
    try:
        eventually(lambda: len(read_cluster(store).instances) == 2 and read_cluster(store).coordinator)
        registration.tell(ready=True, waiting_for="members that have not been heard")
        registration.register()
        done = subprocess.run(
            [DEPLOYMENT / "systemd" / "rolling-restart", "1=one", "2=two", "3=three"],
            env=_variables(supervised, zk_hosts) | {"KAFKA_COORD_WAIT_S": "4"},
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
    finally:
        store.close()
    what = "instance 3, which waits for members that have not been heard"
    assert done.returncode == 1
    assert f"waiting for {what}" in done.stdout
    assert f"waited 4 s for {what}" in done.stderr
    assert len((supervised / "restarted").read_text().splitlines()) == 2, "nothing was restarted"


def test_a_rolling_restart_restarts_each_instance_and_the_elected_one_last(supervised: Path, zk_hosts: str) -> None:
    before = {file.name: file.read_text() for file in supervised.glob("*.pid")}
    done = subprocess.run(
        [DEPLOYMENT / "systemd" / "rolling-restart", "1=one.example.com", "2=two.example.com"],
        env=_variables(supervised, zk_hosts),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    first, second, last = (line for line in done.stdout.splitlines() if not line.startswith("waiting for "))
    assert (first.startswith("restarting "), second.endswith(", the elected one)")) == (True, True), done.stdout
    assert "elected" not in first
    assert last == "every host was restarted"
    assert "waiting for " in done.stdout, "the script says what it waits for"
    restarted = (supervised / "restarted").read_text().splitlines()
    assert sorted(restarted[2:]) == ["one.example.com 1", "two.example.com 2"]
    assert all(file.read_text() != before[file.name] for file in supervised.glob("*.pid"))


@pytest.mark.parametrize(
    "values", ["", "kafka.enabled=true,dashboard.enabled=true,secretName=s,filesSecretName=f,bootstrap=kafka-0:9092"]
)
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_the_chart_renders(values: str) -> None:
    chart = str(DEPLOYMENT / "chart")
    subprocess.run(["helm", "lint", "--strict", chart, "--set", values], check=True, timeout=60)
    rendered = subprocess.run(
        ["helm", "template", "delays", chart, "--set", values, "--kube-version", "1.29.0"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    objects = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(rendered.stdout) if one}
    assert {("StatefulSet", "delays"), ("Service", "delays"), ("PodDisruptionBudget", "delays")} <= set(objects)
    pod = objects["StatefulSet", "delays"]["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False, "a Service named kafka-coord would give the pods variables of that name"
    (container,) = pod["containers"]
    set_in_shell = dict.fromkeys(re.findall(r"KAFKA_COORD_[A-Z_]+(?==)", container["args"][0]), "127.0.0.1:1")
    settings_of(set_in_shell | {"KAFKA_COORD_SERVE_BROKER_ID": "1"})
    assert (("Job", "delays-init") in objects) is ("bootstrap" in values)
