"""TLS to a real ZooKeeper, with and without a check of the certificate."""

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


def test_a_server_whose_certificate_is_trusted_is_used_over_tls(tls_server: TlsServer, open_store: OpenStore) -> None:
    over_tls = open_store(tls_server.hosts, options=ZkOptions(tls=Tls(ca=tls_server.ca)))
    over_tls.create("/written", b"over TLS")
    assert open_store(tls_server.server.connect_string).get("/written").data == b"over TLS"


def test_what_cannot_agree_on_tls_is_told_to_look_at_the_tls_settings(
    tls_server: TlsServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # kazoo leaves refused TLS sockets to the garbage collector
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for options in (ZkOptions(tls=Tls()), ZkOptions()):  # a certificate that no known CA has signed; no TLS at all
        with pytest.raises(StoreUnavailable, match="TLS settings"):
            connect(tls_server.hosts, connect_timeout_s=1, options=options)
    caplog.clear()  # the log records keep references to them
    gc.collect()

    unverified = open_store(tls_server.hosts, options=ZkOptions(tls=Tls(verify=False)))
    assert unverified.children("/zookeeper") == ("config", "quota")
