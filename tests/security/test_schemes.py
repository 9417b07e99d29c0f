"""SASL and TLS client certificates as identities, on one real ZooKeeper that knows both."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import NoAuth, StoreUnavailable
from kafka_coord.spark.session import find_java
from kafka_coord.zk import connect, kazoo_private, layout
from kafka_coord.zk.acl import AclPlan, Identity
from kafka_coord.zk.acl_tree import apply, compare
from kafka_coord.zk.options import Sasl, Tls, ZkOptions
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import SessionState
from tests.waiting import eventually
from tests.zk.sessions import create_chroot

pytestmark = pytest.mark.zookeeper

PASSWORD = "of-a-test"  # noqa: S105 - guards keys made for one test

JAAS = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_coordinator="one" user_delays="three";
};
"""


@dataclass(frozen=True)
class Server:
    plain: str
    secure: str
    directory: Path

    def certificate_of(self, user: str, plan: AclPlan | None = None) -> ZkOptions:
        directory = self.directory
        tls = Tls(
            ca=str(directory / "server.pem"), cert=str(directory / f"{user}.pem"), key=str(directory / f"{user}.key")
        )
        return ZkOptions(tls=tls, plan=plan)


def sasl(user: str, password: str, plan: AclPlan | None = None) -> ZkOptions:
    return ZkOptions(sasl=Sasl(username=user, password=password), plan=plan)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    beside_java = find_java().executable.parent / "keytool"
    keytool, openssl = str(beside_java) if beside_java.exists() else shutil.which("keytool"), shutil.which("openssl")
    if keytool is None or openssl is None:
        pytest.skip("no keytool or no openssl here, so no certificates can be made")
    pytest.importorskip("puresasl")
    directory = tmp_path_factory.mktemp("schemes")

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def certificate(name: str, subject: str, *extensions: str) -> None:
        key, pem = directory / f"{name}.key", directory / f"{name}.pem"
        made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        run(openssl, "req", "-x509", *made, "-keyout", str(key), "-out", str(pem), "-subj", subject, *extensions)

    certificate("server", "/CN=localhost", "-addext", f"subjectAltName=IP:{LOOPBACK}")
    keystore, truststore = directory / "server.p12", directory / "trusted.p12"
    pair = ["-inkey", str(directory / "server.key"), "-in", str(directory / "server.pem")]
    run(openssl, "pkcs12", "-export", *pair, "-out", str(keystore), "-passout", f"pass:{PASSWORD}")
    for user in ("coordinator", "delays"):
        certificate(user, f"/O=Example/CN={user}")
        trust = ["-importcert", "-noprompt", "-file", str(directory / f"{user}.pem"), "-alias", user]
        run(keytool, *trust, "-keystore", str(truststore), "-storetype", "PKCS12", "-storepass", PASSWORD)
    jaas = directory / "jaas.conf"
    jaas.write_text(JAAS)
    port = free_port()
    provider = "org.apache.zookeeper.server.auth"
    properties = {
        "secureClientPort": str(port),
        "secureClientPortAddress": LOOPBACK,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.sasl": f"{provider}.SASLAuthenticationProvider",
        "authProvider.x509": f"{provider}.X509AuthenticationProvider",
        "ssl.keyStore.location": str(keystore),
        "ssl.keyStore.password": PASSWORD,
        "ssl.trustStore.location": str(truststore),
        "ssl.trustStore.password": PASSWORD,
        "ssl.clientAuth": "need",
    }
    settings = ZooKeeperSettings(
        tick_ms=200, properties=properties, jvm_properties={"java.security.auth.login.config": str(jaas)}
    )
    with ZooKeeperServer(directory / "zookeeper", settings=settings) as running:
        yield Server(running.connect_string, f"{LOOPBACK}:{port}", directory)


def works_by_the_plan(hosts: str, plan: AclPlan, coordinator: ZkOptions, consumer: ZkOptions) -> None:
    made = connect(hosts, session_timeout_ms=5_000, options=coordinator)
    other = connect(hosts, session_timeout_ms=5_000, options=consumer)
    try:
        assert not apply(made, plan).refused
        assert not compare(made, plan).deviations
        assert not compare(made, plan).missing
        other.ensure_path(layout.channel("delays", "c1"))
        assert not compare(made, plan).deviations
        assert made.read_acls([layout.channel("delays", "c1")])[0].acl == plan.of(layout.channel("delays", "c1"))
        with pytest.raises(NoAuth):
            other.create(layout.assignment("delays"))
        with pytest.raises(NoAuth):
            other.set(layout.GROUPS, b"")
        made.delete(layout.channel("delays", "c1"))
    finally:
        other.close()
        made.close()


def test_sasl_users_are_identities(server: Server):
    plan = AclPlan((Identity("sasl", "coordinator"),), consumers={"delays": (Identity("sasl", "delays"),)})
    works_by_the_plan(server.plain, plan, sasl("coordinator", "one", plan), sasl("delays", "three", plan))


def test_a_wrong_password_is_reported_before_any_request(server: Server):
    with pytest.raises(StoreUnavailable, match="was reached, but it refused the connection: check the credentials"):
        connect(server.plain, session_timeout_ms=5_000, options=sasl("delays", "not-three"))


def test_a_wrong_password_is_reported_also_if_the_first_request_comes_after_the_refusal(server: Server, monkeypatch):
    at_once = KazooStore._check_tree

    def later(store: KazooStore) -> None:
        eventually(lambda: store.session.state is SessionState.LOST)
        at_once(store)

    monkeypatch.setattr(KazooStore, "_check_tree", later)
    with pytest.raises(StoreUnavailable, match="refused the connection: check the credentials"):
        connect(server.plain, session_timeout_ms=3_000, options=sasl("delays", "not-three"))


def test_subjects_of_client_certificates_are_identities(server: Server):
    plan = AclPlan(
        (Identity.parse("x509:CN=coordinator,O=Example", "here"),),
        consumers={"delays": (Identity.parse("x509:CN=delays,O=Example", "here"),)},
    )
    chroot = create_chroot(server.secure, "/certified", options=server.certificate_of("coordinator"))
    works_by_the_plan(chroot, plan, server.certificate_of("coordinator", plan), server.certificate_of("delays", plan))


def test_a_session_survives_a_reconnection_while_its_certificate_is_half_written(server: Server, caplog):
    files = {name: server.directory / f"renewed.{name}" for name in ("pem", "key")}
    for name, file in files.items():
        file.write_bytes((server.directory / f"coordinator.{name}").read_bytes())
    store = connect(server.secure, session_timeout_ms=5_000, options=server.certificate_of("renewed"))
    try:
        before = store.session.session_id
        files["pem"].write_bytes(files["pem"].read_bytes()[:100])
        kazoo_private.break_connection(store._client)
        eventually(lambda: store.credentials.newest() and store.credentials.problem)
        eventually(lambda: store.session.state is SessionState.CONNECTED)
        assert store.session.session_id == before
        assert [one.levelname for one in caplog.records if "credentials for ZooKeeper" in one.message] == ["WARNING"]
        files["pem"].write_bytes((server.directory / "delays.pem").read_bytes())
        files["key"].write_bytes((server.directory / "delays.key").read_bytes())
        kazoo_private.break_connection(store._client)
        eventually(lambda: store.credentials.newest() and not store.credentials.problem)
    finally:
        store.close()
