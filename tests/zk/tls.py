"""A ZooKeeper with TLS, and a certificate made for one test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.spark.java import find_java

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
