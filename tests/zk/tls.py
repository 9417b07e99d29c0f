"""A ZooKeeper with TLS, and certificates made for one test module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings


@dataclass(frozen=True)
class TlsServer:
    """``ca`` is the file with the CA that clients trust."""

    server: ZooKeeperServer
    hosts: str
    ca: str


def pem_key_store(authority: trustme.CA) -> bytes:
    """A new key and its certificate for a Java server on loopback. Java reads keys only in PKCS #8."""
    certificate = authority.issue_cert(LOOPBACK)
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form) + b"".join(one.bytes() for one in certificate.cert_chain_pems)


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    directory, authority, port = tmp_path_factory.mktemp("tls"), trustme.CA(), free_port()
    ca, key_store = directory / "ca.pem", directory / "server.pem"
    authority.cert_pem.write_to_path(ca)
    key_store.write_bytes(pem_key_store(authority))
    properties = {
        "secureClientPort": str(port),
        "secureClientPortAddress": LOOPBACK,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(key_store),
        "ssl.clientAuth": "none",
    }
    with ZooKeeperServer(directory, settings=ZooKeeperSettings(tick_ms=200, properties=properties)) as server:
        yield TlsServer(server, f"{LOOPBACK}:{port}", str(ca))
