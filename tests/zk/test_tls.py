"""TLS to a real ZooKeeper, with the certificate checked and not."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import StoreUnavailable
from kafka_coord.spark.java import find_java
from kafka_coord.zk import connect
from kafka_coord.zk.options import Tls, ZkOptions
from tests.zk.sessions import OpenStore

pytestmark = pytest.mark.zookeeper

PASSWORD = "of-a-test"  # noqa: S105 - guards a key made for one test


@dataclass(frozen=True)
class TlsServer:
    server: ZooKeeperServer
    hosts: str
    certificate: str


def keytool() -> str:
    beside_java = find_java().executable.parent / "keytool"
    found = str(beside_java) if beside_java.exists() else shutil.which("keytool")
    if found is None:
        pytest.skip("this Java has no keytool, so no certificate can be made for the server")
    return found


@pytest.fixture
def tls_server(tmp_path: Path, zookeeper_server_factory: Callable[..., ZooKeeperServer]) -> TlsServer:
    keystore, truststore, certificate = (tmp_path / name for name in ("server.p12", "trusted.p12", "server.pem"))
    port = free_port()
    store = ["-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", PASSWORD, "-alias", "zookeeper"]
    run = [keytool(), "-genkeypair", *store, "-keyalg", "EC", "-dname", "CN=localhost", "-ext", f"SAN=ip:{LOOPBACK}"]
    subprocess.run(run, check=True, capture_output=True, timeout=60)
    export = [keytool(), "-exportcert", "-rfc", *store, "-file", str(certificate)]
    subprocess.run(export, check=True, capture_output=True, timeout=60)
    trust = [keytool(), "-importcert", "-noprompt", "-file", str(certificate), "-alias", "zookeeper"]
    trust += ["-keystore", str(truststore), "-storetype", "PKCS12", "-storepass", PASSWORD]
    subprocess.run(trust, check=True, capture_output=True, timeout=60)
    server = zookeeper_server_factory(
        settings=ZooKeeperSettings(
            tick_ms=200,
            properties={
                "secureClientPort": str(port),
                "secureClientPortAddress": LOOPBACK,
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(keystore),
                "ssl.keyStore.password": PASSWORD,
                "ssl.trustStore.location": str(truststore),
                "ssl.trustStore.password": PASSWORD,
                "ssl.clientAuth": "none",
            },
        )
    )
    return TlsServer(server, f"{LOOPBACK}:{port}", str(certificate))


def test_a_server_whose_certificate_is_trusted_is_used_over_tls(tls_server: TlsServer, open_store: OpenStore) -> None:
    over_tls = open_store(tls_server.hosts, options=ZkOptions(tls=Tls(ca=tls_server.certificate)))
    over_tls.create("/written", b"over TLS")
    assert open_store(tls_server.server.connect_string).get("/written").data == b"over TLS"


def test_what_cannot_agree_on_tls_is_told_to_look_at_the_tls_settings(
    tls_server: TlsServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # kazoo leaves refused TLS sockets to the collector
    for options in (ZkOptions(tls=Tls()), ZkOptions()):  # a certificate nobody vouches for; no TLS at all
        with pytest.raises(StoreUnavailable, match="TLS settings"):
            connect(tls_server.hosts, connect_timeout_s=1, options=options)
    caplog.clear()  # what was logged holds on to them
    gc.collect()

    unverified = open_store(tls_server.hosts, options=ZkOptions(tls=Tls(verify=False)))
    assert unverified.children("/") == ("zookeeper",)
