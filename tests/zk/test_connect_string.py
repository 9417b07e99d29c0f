"""Tests of valid and invalid connect strings."""

from __future__ import annotations

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.zk.options import Acl, Digest, Sasl, Tls, ZkOptions, parse_connect_string


@pytest.mark.parametrize(
    ("written", "servers", "chroot"),
    [
        ("zk1:2181", ("zk1:2181",), ""),
        ("zk1", ("zk1:2181",), ""),
        ("zk1:1, zk2:2/kafka", ("zk1:1", "zk2:2"), "/kafka"),
        ("[::1]:2181/a/b/", ("[::1]:2181",), "/a/b"),
        ("zk1:2181/", ("zk1:2181",), ""),
    ],
)
def test_servers_and_chroot_are_separated(written: str, servers: tuple[str, ...], chroot: str) -> None:
    found = parse_connect_string(written)
    assert (found.servers, found.chroot) == (servers, chroot)
    assert parse_connect_string(str(found)) == found


@pytest.mark.parametrize(
    "written", ["", ",", "zk1:port", "zk1:99999", "zk1:2181,,zk2", "zk1//a", "zk1/a/../b", "u:p@zk1:2181", "/kafka"]
)
def test_the_error_for_an_invalid_connect_string_has_an_example(written: str) -> None:
    with pytest.raises(SettingsError, match="zk1:2181,zk2:2181/kafka"):
        parse_connect_string(written)


def test_the_error_for_a_very_long_connect_string_does_not_repeat_it() -> None:
    for written in ("h:1," * 100_000, "x" * 9_000 + ":y"):
        with pytest.raises(SettingsError) as refused:
            parse_connect_string(written)
        assert len(str(refused.value)) < 700


def test_paths_are_converted_to_absolute_ones_and_back() -> None:
    where = parse_connect_string("zk/kafka")
    for path in ("/", "/brokers", "/kafka", "/kafka/kafka"):
        assert where.relative(where.absolute(path)) == path
    assert where.absolute("/") == "/kafka"


def test_an_acl_for_the_creator_requires_credentials() -> None:
    with pytest.raises(SettingsError, match="credentials"):
        ZkOptions(acl=Acl.CREATOR_WORLD_READ).client_arguments()


def test_the_error_for_sasl_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_coord.zk.options.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'kafka-coord\[sasl\]'"):
        ZkOptions(sasl=Sasl(username="u", password="p")).client_arguments()  # noqa: S106 - not a secret


def test_tls_is_turned_on_and_no_password_is_shown() -> None:
    options = ZkOptions(tls=Tls(ca="ca.pem", cert="c.pem", key="k.pem"), digest=Digest("u", "hidden"))
    arguments = options.client_arguments()
    assert arguments["use_ssl"] is True
    assert "hidden" not in repr(options)
