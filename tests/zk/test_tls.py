"""Tests of TLS with a real ZooKeeper, with and without a check of the certificate."""

from __future__ import annotations

import gc
import sys

import pytest

from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk import connect
from kafka_coord.zk.options import Tls, ZkOptions
from tests.zk.sessions import OpenStore
from tests.zk.tls import TlsServer, tls_server

__all__ = ["tls_server"]

pytestmark = pytest.mark.zookeeper


def test_a_connection_over_tls_works_if_the_servers_certificate_is_trusted(
    tls_server: TlsServer, open_store: OpenStore
) -> None:
    over_tls = open_store(tls_server.hosts, options=ZkOptions(tls=Tls(ca=tls_server.ca)))
    over_tls.create("/written", b"over TLS")
    assert open_store(tls_server.server.connect_string).get("/written").data == b"over TLS"


def test_the_error_after_a_failed_tls_handshake_mentions_the_tls_settings(
    tls_server: TlsServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # kazoo leaves refused TLS sockets to the garbage collector
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for options in (
        ZkOptions(tls=Tls()),
        ZkOptions(),
    ):  # first with a certificate that no known CA has signed, then without TLS
        with pytest.raises(StoreUnavailable, match="TLS settings"):
            connect(tls_server.hosts, connect_timeout_s=1, options=options)
    caplog.clear()  # the log records refer to the sockets
    gc.collect()

    unverified = open_store(tls_server.hosts, options=ZkOptions(tls=Tls(verify=False)))
    assert unverified.children("/zookeeper") == ("config", "quota")
