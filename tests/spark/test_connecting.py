"""Tests of how a query authenticates to ZooKeeper, and of where its secrets are used."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kafka_coord.errors import SettingsError, StoreUnavailable
from kafka_coord.spark.member import QueryMember
from kafka_coord.spark.options import SourceOptions
from kafka_coord.spark.source import GroupStreamReader, RangesReader
from kafka_coord.zk import layout
from tests.waiting import eventually
from tests.zk.tls import TlsServer, tls_server

__all__ = ["tls_server"]

QUERY = {"zookeeper": "zk:2181", "group": "delays", "topics": "flights"}


def given(**more: str) -> SourceOptions:
    return SourceOptions.of({**QUERY, **{name.replace("__", "."): value for name, value in more.items()}})


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "coord.toml"
    file.write_text(
        '[zookeeper]\nhosts = "filed:2181"\ndigest = "delays:hidden-one"\nacl = "creator-only"\n\n'
        '[kafka]\nsecurity.protocol = "SASL_PLAINTEXT"\nsasl.username = "filed"\n'
    )
    return file


def test_options_override_the_environment_which_overrides_the_file(settings: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KAFKA_COORD_ZOOKEEPER_CONNECT_TIMEOUT_MS", "4000")
    monkeypatch.setenv("KAFKA_COORD_ZOOKEEPER_DIGEST", "delays:hidden-two")
    found = given(config=str(settings), zookeeper__connect_timeout_ms="5000", kafka__sasl__username="given")
    assert found.zookeeper.hosts == "zk:2181"
    assert found.zookeeper.connect_timeout_ms == 5_000
    assert found.zookeeper.acl == "creator-only"
    assert found.zookeeper.digest is not None
    assert found.zookeeper.digest.reveal() == "delays:hidden-two"
    assert found.kafka == {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "given"}


def test_zookeepers_address_may_come_from_the_file(settings: Path):
    options = {name: value for name, value in QUERY.items() if name != "zookeeper"}
    assert SourceOptions.of(options | {"config": str(settings)}).zookeeper.hosts == "filed:2181"
    with pytest.raises(SettingsError, match="option 'zookeeper' of format kafka_coord is missing"):
        SourceOptions.of(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"zookeeper__tsl": "true"}, r"zookeeper\.tsl in the query's options is not a setting; did you mean"),
        ({"zookeeper__tls": "perhaps"}, r"zookeeper\.tls: 'perhaps' from the query's options is invalid"),
        ({"zookeeper__tls_ca_file": "/nowhere"}, "No such file or directory"),
        ({"zookeeper__acl": "creator-only"}, "does not authenticate"),
        ({"zookeeper__digest": "hidden"}, "the value given from the query's options is invalid"),
        ({"config": "/nowhere.toml"}, "settings file /nowhere.toml cannot be read"),
        ({"sessionTimeoutMs": "soon"}, r"zookeeper\.session_timeout_ms: 'soon' from the query's options"),
    ],
)
def test_invalid_options_are_refused_without_showing_secrets(options: dict[str, str], says: str):
    with pytest.raises(SettingsError, match=says) as refused:
        given(**options)
    assert "hidden" not in str(refused.value)


def test_no_zookeeper_credentials_are_sent_to_executors(settings: Path):
    options = {"config": str(settings), "zookeeper.sasl_password": "hidden-three"}
    readers: list[Any] = [
        GroupStreamReader(SourceOptions.of(QUERY | options)),
        RangesReader(QUERY | options | {"ranges": '{"flights": {"0": [[0, 5]]}}'}),
    ]
    for reader in readers:
        assert b"hidden" not in pickle.dumps(reader)
        assert "hidden" not in repr(reader._options)


@pytest.mark.zookeeper
def test_a_query_is_a_member_over_tls(tls_server: TlsServer, tmp_path: Path):
    file = tmp_path / "coord.toml"
    file.write_text(f'[zookeeper]\ntls = true\ntls_ca_file = "{tls_server.ca}"\n')
    options = {**QUERY, "zookeeper": tls_server.hosts, "consumerId": "one"}
    member = QueryMember(SourceOptions.of(options | {"config": str(file)}))
    try:
        with KazooOver(tls_server.server.connect_string) as plain:
            eventually(lambda: plain.exists(layout.registration("delays", "one")))
    finally:
        member.close()
    with pytest.raises(StoreUnavailable):
        QueryMember(SourceOptions.of(options | {"zookeeper.connect_timeout_ms": "1000"}))


@pytest.mark.zookeeper
def test_a_query_creates_its_znodes_with_its_own_acl(zk_hosts: str, settings: Path):
    options = {**QUERY, "zookeeper": zk_hosts, "consumerId": "one", "config": str(settings)}
    options["zookeeper.acl"] = "creator-world-read"  # overrides the file's setting, so the test sees which one is used
    member = QueryMember(SourceOptions.of(options))
    try:
        with KazooOver(zk_hosts) as anybody:
            eventually(lambda: anybody.exists(layout.registration("delays", "one")))
            acl, _ = anybody.get_acls(layout.registration("delays", "one"))
        identities = {(one.id.scheme, one.id.id.partition(":")[0]) for one in acl}
        assert identities == {("digest", "delays"), ("world", "anyone")}
    finally:
        member.close()


class KazooOver(KazooClient):
    """A kazoo client that is open until the end of the block."""

    def __enter__(self) -> KazooClient:
        self.start(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.close()
