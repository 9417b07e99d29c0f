"""What each extra is installed for, done in an environment that has nothing else, against real servers."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from kafka_coord.dev.cluster.flights import data_directory
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from tests.packaging.environments import Environment
from tests.waiting import eventually

RECORDS = 30

_CONSUMER = """
import sys
from kafka_coord import Consumer

zookeeper, topic, group, records = sys.argv[1:]
with Consumer(zookeeper=zookeeper, group=group, topics=[topic], auto_offset_reset="earliest") as consumer:
    read = 0
    for record in consumer:
        read += 1
        if read == int(records):
            break
print("read", read)
"""

_QUERY = """
import sys
from pyspark.sql import SparkSession
from kafka_coord.spark import register

zookeeper, topic, group, records = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
options = {"zookeeper": zookeeper, "group": group, "topics": topic, "startingOffsets": "earliest"}
read = []
query = (
    spark.readStream.format("kafka_coord").options(**options).load()
    .writeStream.foreachBatch(lambda frame, number: read.append(frame.count())).start()
)
while sum(read) < int(records):
    query.awaitTermination(1)
query.stop()
print("read", sum(read))
"""


_AUTHENTICATED = """
import sys
from kafka_coord.zk import connect
from kafka_coord.zk.options import Acl, Sasl, ZkOptions

hosts, password = sys.argv[1:]
sasl = Sasl(username="delays", password=password)
store = connect(hosts, session_timeout_ms=10_000, options=ZkOptions(sasl=sasl, acl=Acl.CREATOR_ONLY))
store.ensure_path("/of-delays")
(read,) = store.read_acls(["/of-delays"])
store.close()
print(*(entry.identity for entry in read.acl))
"""

_JAAS = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_delays="three";
};
"""


@dataclass(frozen=True, slots=True)
class Servers:
    """A cluster with an elected coordinator, and a topic with :data:`RECORDS` records."""

    zookeeper: str
    topic: str


def consumer(environment: Environment, servers: Servers) -> str:
    refused = environment.run(environment.program, "groups", "list")
    assert refused.returncode == 2, refused
    assert "pip install 'kafka-coord[cli]'" in refused.stderr, refused.stderr
    return _reads(environment, _CONSUMER, servers, "packaging-consumer")


def query(environment: Environment, servers: Servers) -> str:
    return _reads(environment, _QUERY, servers, "packaging-query")


def _reads(environment: Environment, program: str, servers: Servers, group: str) -> str:
    arguments = (servers.zookeeper, servers.topic, group, str(RECORDS))
    done = environment.run(environment.python, "-c", program, *arguments, within_s=120)
    assert done.returncode == 0, done.stderr
    assert f"read {RECORDS}" in done.stdout, done.stdout
    return f"read {RECORDS} records as a member of a group"


def commands(environment: Environment, servers: Servers) -> str:
    """Reads groups, and prints them in every format."""
    for output in ("table", "json", "yaml", "tsv"):
        done = environment.run(environment.program, "groups", "list", "-z", servers.zookeeper, "-o", output)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        if output == "json":
            json.loads(done.stdout)
    refused = environment.run(
        environment.program, "serve", "--broker-id", "999", "-z", servers.zookeeper, "--listen-http", "127.0.0.1:1"
    )
    assert refused.returncode == 2, refused.stderr
    assert "pip install 'kafka-coord[serve]'" in refused.stderr, refused.stderr
    return "listed groups in four formats"


def sasl(environment: Environment) -> str:
    """Creates a znode that only its authenticated creator may read, on a ZooKeeper that knows one user."""
    directory = environment.home / "zookeeper"
    directory.mkdir()
    jaas = directory / "jaas.conf"
    jaas.write_text(_JAAS)
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    settings = ZooKeeperSettings(
        properties={"authProvider.sasl": provider}, jvm_properties={"java.security.auth.login.config": str(jaas)}
    )
    with ZooKeeperServer(directory, settings=settings) as server:
        for password, expected in (("three", "sasl:delays\n"), ("not-three", "")):
            done = environment.run(environment.python, "-c", _AUTHENTICATED, server.connect_string, password)
            assert done.stdout == expected, done
    assert "check the credentials" in done.stderr, done.stderr
    return "authenticated at ZooKeeper, and was refused with a wrong password"


def cluster(environment: Environment) -> str:
    """Starts a cluster in KRaft mode with its dashboard, without Spark and pandas, and reads the first records."""
    brought = {path.name for path in environment.site.iterdir()}
    assert not brought & {"pyspark", "pandas", "numpy", "pyarrow"}, brought
    refused = environment.run(environment.program, "demo")
    assert refused.returncode == 2, refused
    assert "pyspark is not installed" in refused.stderr, refused.stderr
    data_directory()  # the environment has no pip to fetch it
    home = str(environment.home / "cluster")
    up = environment.run(environment.program, "dev", "up", "--kraft", "--brokers", "1", "--dir", home, within_s=240)
    try:
        assert up.returncode == 0, up.stderr
        found = json.loads(environment.run(environment.program, "dev", "status", "--dir", home, "-o", "json").stdout)
        with urllib.request.urlopen(found["dashboards"][0], timeout=30) as page:  # noqa: S310
            assert b"<html" in page.read()
        with_zookeeper = ("-z", found["zookeeper"])
        load = ("load", "--flights", "--limit", str(RECORDS), "--topic", "flights", *with_zookeeper)
        read = ("consume", "--group", "delays", "--topic", "flights", "--from-beginning", "--quiet")
        for command in (load, (*read, "--max-messages", str(RECORDS), *with_zookeeper)):
            done = environment.run(environment.program, *command)
            assert done.returncode == 0, done.stderr
    finally:
        down = environment.run(environment.program, "dev", "down", "--dir", home)
    assert down.returncode == 0, down.stderr
    return f"started a cluster in KRaft mode, and read {RECORDS} records as a member of a group"


def demo(environment: Environment) -> str:
    """Imports what the demo's group of Spark queries needs."""
    done = environment.run(environment.python, "-c", "import pandas, pyspark, kafka_coord.dev.demo.sharing")
    assert done.returncode == 0, done.stderr
    return "imported the demo"


def traces(environment: Environment, servers: Servers, meanwhile: Callable[[], object]) -> str:
    """Runs the only instance, which exports the rebalance that ``meanwhile`` causes."""
    exported: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            exported.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever).start()
        try:
            endpoint = f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{collector.server_port}"
            daemon(environment, servers, "--trace-rebalances", variables=(endpoint,), meanwhile=meanwhile)
        finally:
            collector.shutdown()
    assert any(b"rebalance" in request for request in exported), environment.output()
    return "exported a rebalance"


def daemon(
    environment: Environment,
    servers: Servers,
    *options: str,
    variables: tuple[str, ...] = (),
    meanwhile: Callable[[], object] = lambda: None,
) -> str:
    """Runs an instance until it has served its health, metrics and dashboard, and ``meanwhile`` has returned."""
    address = f"127.0.0.1:{free_port()}"
    arguments = ("serve", "--broker-id", "999", "-z", servers.zookeeper, "--listen-http", address, *options)

    def answers(path: str, *, holding: bytes = b"") -> bool:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(f"http://{address}{path}", timeout=10) as page,
        ):
            return holding in page.read()
        return False

    with environment.started("env", *variables, environment.program, *arguments) as process:
        eventually(lambda: answers("/health") or process.poll() is not None, within_s=60)
        assert answers("/metrics", holding=b"kafka_coord_elected"), environment.output()
        assert answers("/dashboard/", holding=b"<html"), environment.output()
        meanwhile()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, environment.output()
    assert "Traceback" not in environment.output()
    return "served /health, /metrics and /dashboard/, and stopped at SIGTERM"
