"""What others renew: when it is read again, and what a file that cannot be used changes."""

from __future__ import annotations

import math
import os
import socket
import ssl
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kafka_coord import renewed as renewing
from kafka_coord.cli.serve import _with_renewed_properties
from kafka_coord.consumer.fetchers import KafkaFetchers
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.errors import SettingsError
from kafka_coord.frontends import listening
from kafka_coord.frontends.listening import Certificate
from kafka_coord.kafka.authentication import SettingsFileProperties, broker_security
from kafka_coord.kafka.client import OwnClient
from kafka_coord.kafka.librdkafka import LibrdkafkaClient
from kafka_coord.kafka.offsets import BrokerLog
from kafka_coord.monitor.metrics import _of_renewed
from kafka_coord.renewed import Lifetime, Renewed
from kafka_coord.settings import load_settings
from kafka_coord.zk import zookeeper_options
from kafka_coord.zk.kazoo_private import KazooHandler
from kafka_coord.zk.options import Credentials, Tls, ZkOptions, renewed_credentials
from kafka_coord.zk.store import Store

pytestmark = pytest.mark.usefixtures("renewed_at_once")


def number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(str(error)) from None


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    file, reads = tmp_path / "number", []
    file.write_text("1")
    renewed = Renewed("number", (file, None), lambda: reads.append(1) or number(file))
    assert [renewed.newest(), renewed.newest(), len(reads)] == [1, 1, 1]
    file.write_text("22")
    assert [renewed.newest(), len(reads)] == [22, 2]


@pytest.mark.parametrize("fault", ["half", "gone", "expired"])
def test_files_that_cannot_be_used_change_nothing_and_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    file = tmp_path / "ends-at"
    file.write_text("9999999999")
    renewed = Renewed(
        "certificate", (file,), lambda: number(file), lifetime=lambda ends_at: Lifetime(0.0, float(ends_at))
    )
    if fault == "gone":
        file.unlink()
    else:
        file.write_text("99x" if fault == "half" else str(int(time.time()) - 1))
    assert [renewed.newest() for _ in range(3)] == [9_999_999_999] * 3
    assert renewed.problem
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    file.write_text("8888888888")
    assert (renewed.newest(), renewed.problem, renewed.ends_at) == (8_888_888_888, "", 8_888_888_888.0)


def test_a_file_that_could_not_be_read_is_read_again_once_its_owner_has_changed(tmp_path: Path) -> None:
    file, may_read = tmp_path / "number", [True, False, True]

    def read() -> int:
        if not may_read.pop(0):
            raise SettingsError("Permission denied")
        return number(file)

    file.write_text("1")
    renewed = Renewed("number", (file,), read)
    file.write_text("22")
    assert (renewed.newest(), renewed.problem) == (1, "Permission denied")
    time.sleep(0.05)  # the kernel's clock moves in steps
    os.chmod(file, file.stat().st_mode)  # like chown, it changes neither content nor time of modification
    assert (renewed.newest(), renewed.problem) == (22, "")


def test_the_first_value_must_be_usable(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        Renewed("number", (tmp_path / "gone",), lambda: number(tmp_path / "gone"))


class Issued:
    """A client's certificate and key on disk, which :meth:`issue` renews."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.cert, self.key = directory / "ca.pem", directory / "own.pem", directory / "own.key"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.issue(2090)

    def issue(self, year: int, *, key: bool = True) -> None:
        issued = self.authority.issue_cert("instance-1", not_after=datetime(year, 1, 1, tzinfo=UTC))
        if key:
            issued.private_key_pem.write_to_path(str(self.key))
        issued.cert_chain_pems[0].write_to_path(str(self.cert))


@pytest.fixture
def issued(tmp_path: Path) -> Issued:
    return Issued(tmp_path)


def client_properties(issued: Issued) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(issued.ca),
        "ssl.certificate.location": str(issued.cert),
        "ssl.key.location": str(issued.key),
    }


def of_brokers(issued: Issued) -> Renewed[object]:
    return broker_security(client_properties(issued))


def of_zookeeper(issued: Issued) -> Renewed[object]:
    return renewed_credentials(ZkOptions(tls=Tls(str(issued.ca), str(issued.cert), str(issued.key))))


@pytest.mark.parametrize("renewed_of", [of_brokers, of_zookeeper])
def test_what_the_instance_presents_is_renewed_for_new_connections(issued: Issued, renewed_of) -> None:
    renewed = renewed_of(issued)
    first = renewed.newest()
    assert isinstance(first.tls, ssl.SSLContext)
    assert renewed.ends_at == datetime(2090, 1, 1, tzinfo=UTC).timestamp()
    issued.issue(2091)
    assert renewed.newest() is not first
    assert renewed.ends_at == datetime(2091, 1, 1, tzinfo=UTC).timestamp()
    second = renewed.newest()
    for fault in (
        lambda: issued.issue(2092, key=False),
        lambda: issued.issue(2020),
        lambda: issued.cert.write_bytes(issued.cert.read_bytes()[:300]),
        lambda: issued.ca.write_text("no certificate"),
        issued.key.unlink,
    ):
        fault()
        assert renewed.newest() is second
        assert renewed.problem


def test_a_consumers_clients_are_made_again_when_their_certificate_is_renewed_and_stay_if_it_cannot_be_used(
    issued: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    made = KafkaFetchers(
        client_properties(issued) | {"group.id": "g", "log_level": 0},
        streams=2,
        reset=OffsetReset.EARLIEST,
        auto_commit=True,
        hands_out_until=lambda: math.inf,
        check=lambda: None,
        wake=lambda: None,
    )
    made.connect(("127.0.0.1:1",))
    first = made.log_offsets.admin
    assert first is not None
    issued.issue(2091, key=False)
    made.connect(("127.0.0.1:1",))
    made._renew(made.streams[0])  # as for a partition of which nothing arrives
    made._brokers_down = True
    made.connect(("127.0.0.1:2",))
    assert made.log_offsets.admin is first
    assert {one.levelname for one in caplog.records} == {"WARNING"}
    issued.issue(2092)
    made._brokers_down = False
    clients = [stream._client._client for stream in made.streams]
    made.connect(("127.0.0.1:1",))
    assert made.log_offsets.admin not in (None, first)
    assert all(stream._client._client not in clients for stream in made.streams)
    made.close()


def test_a_password_for_the_brokers_is_read_from_the_settings_file_again(tmp_path: Path) -> None:
    file = tmp_path / "coord.toml"

    def write(password: str) -> None:
        sasl = f'"sasl.mechanism" = "PLAIN"\n"sasl.username" = "u"\n"sasl.password" = {password}\n'
        file.write_text(f'[kafka]\n"security.protocol" = "SASL_PLAINTEXT"\n{sasl}')
        os.utime(file, ns=(time.time_ns(), time.time_ns()))

    write('"old"')
    settings = load_settings(environ={}, file=file)
    reread = settings.reread
    assert reread is not None
    security = broker_security(SettingsFileProperties(file, lambda: reread().kafka.properties))
    assert security.newest().password == "old"  # noqa: S105
    write('"renewed"')
    assert security.newest().password == "renewed"  # noqa: S105
    write("oops")
    assert security.newest().password == "renewed"  # noqa: S105


def test_a_misspelt_property_in_a_renewed_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "coord.toml"
    file.write_text('[kafka]\n"client.id" = "old"\n')
    settings = _with_renewed_properties(load_settings(environ={}, file=file))
    assert dict(settings.kafka.properties) == {"client.id": "old"}
    file.write_text('[kafka]\n"client.di" = "renewed"\n')
    assert dict(settings.kafka.properties) == {"client.id": "old"}
    file.write_text('[kafka]\n"client.id" = "renewed"\n')
    assert dict(settings.kafka.properties) == {"client.id": "renewed"}


def test_a_password_for_zookeeper_is_read_from_the_settings_file_again(tmp_path: Path) -> None:
    file = tmp_path / "coord.toml"
    file.write_text('[zookeeper]\ndigest = "coord:old"\n')
    settings = load_settings(environ={}, file=file)
    reread = settings.reread
    assert reread is not None
    options = ZkOptions(settings_file=file, reread=lambda: zookeeper_options(reread().zookeeper))
    renewed = renewed_credentials(options)
    assert renewed.newest() == Credentials(None, None, "coord:old", None)
    file.write_text('[zookeeper]\ndigest = "coord:renewed"\n')
    assert renewed.newest().digest == "coord:renewed"
    file.write_text("[zookeeper")
    assert renewed.newest().digest == "coord:renewed"


def test_a_connection_to_zookeeper_uses_the_context_that_is_newest_when_it_is_opened(issued: Issued) -> None:
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(issued.ca))
    server_tls.verify_mode = ssl.CERT_REQUIRED
    issued.authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    renewed, ends = of_zookeeper(issued), []

    def serve(listening: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listening.accept()
            with server_tls.wrap_socket(connection, server_side=True) as secured:
                ends.append((secured.getpeercert() or {})["notAfter"])

    handler = KazooHandler(1, lambda: renewed.newest().tls)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, args=(listening,))
        serving.start()
        for year in (2090, 2091):
            issued.issue(year)
            where = {"address": listening.getsockname(), "hostname": "localhost", "use_ssl": True, "certfile": None}
            handler.create_connection(timeout=10, **where).close()
        serving.join(20)
    assert [one.split()[3] for one in ends] == ["2090", "2091"]


def test_the_readers_of_offsets_use_renewed_files(issued: Issued) -> None:
    properties = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        "ssl.ca.location": str(issued.ca),
        "ssl.certificate.location": str(issued.cert),
        "ssl.key.location": str(issued.key),
    }
    own = BrokerLog(cast(Store, None), properties)._connected()._client
    assert isinstance(own, OwnClient)
    native = LibrdkafkaClient("127.0.0.1:1", properties)
    for in_use in (own._cluster._security, native._admin):
        issued.issue(2090)
        in_use.look()
        first = in_use.newest()
        assert in_use.newest() is first
        issued.issue(2091)
        second = in_use.newest()
        assert second is not first
        issued.issue(2092, key=False)
        assert in_use.newest() is second, "a pair that does not fit is refused"


def test_a_file_that_is_being_written_is_read_once_it_is_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "number"
    file.write_text("1")
    renewed = Renewed("number", (file,), lambda: number(file))
    monkeypatch.setattr(renewing, "STILL_S", 1000.0)
    file.write_text("2")  # the beginning of 22
    assert renewed.newest() == 1
    file.write_text("22")
    assert renewed.newest() == 1
    monkeypatch.setattr(renewing, "STILL_S", 0.0)
    assert renewed.newest() == 22
    monkeypatch.setattr(renewing, "STILL_S", 1000.0)
    file.write_text("x")
    renewed.look(now=True)
    renewed.look(now=True)
    assert [one.levelname for one in caplog.records] == ["WARNING", "WARNING"], "SIGHUP says each time why not"


def test_several_values_from_one_file_that_cannot_be_used_are_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "number"
    file.write_text("1")
    several = [Renewed(what, (file,), lambda: number(file)) for what in ("a", "b", "c")]
    for _ in range(2):
        file.write_text("not a number")
        assert [one.newest() for one in several] == [1, 1, 1]
        file.write_text("1")
        assert [one.newest() for one in several] == [1, 1, 1]
    assert [one.levelname for one in caplog.records if one.levelname != "INFO"] == ["WARNING", "WARNING"]


def test_a_certificate_that_is_not_valid_yet_is_used_once_it_is(tmp_path: Path) -> None:
    file = tmp_path / "valid-from"
    file.write_text("0")
    renewed = Renewed("certificate", (file,), lambda: number(file), lifetime=lambda at: Lifetime(float(at), 1e11))
    starts_at = int(time.time()) + 2
    file.write_text(str(starts_at))
    assert (renewed.newest(), renewed.problem) == (0, "it is not valid yet")
    time.sleep(starts_at - time.time() + 0.01)
    assert (renewed.newest(), renewed.problem) == (starts_at, "")


def test_a_certificate_that_has_expired_at_start_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "ends-at"
    file.write_text("1")
    assert Renewed("certificate", (file,), lambda: number(file), lifetime=lambda at: Lifetime(0.0, float(at))).ends_at
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_the_end_of_a_certificate_is_said_in_time_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ends-at"
    soon = round(time.time()) + renewing.SOON_S
    file.write_text(str(soon + 60))
    renewed = Renewed("certificate x", (file,), lambda: number(file), lifetime=lambda at: Lifetime(0.0, float(at)))
    renewed.say_if_ending()
    assert caplog.records == []
    file.write_text(str(soon - 60))
    renewed.say_if_ending()
    renewed.say_if_ending()
    monkeypatch.setattr(time, "time", lambda: soon + 1.0)
    renewed.say_if_ending()
    renewed.say_if_ending()
    said = [one.getMessage().partition(" at ")[0] for one in caplog.records]
    assert said == [f"the certificate, or its CA, of the certificate x {word}" for word in ("ends", "has ended")]
    file.write_text(str(soon * 2))
    renewed.say_if_ending()
    assert len(caplog.records) == 2


def expired_ca(file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1)
    made = made.not_valid_before(datetime(2000, 1, 1, tzinfo=UTC)).not_valid_after(datetime(2020, 1, 1, tzinfo=UTC))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    file.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize("renewed_of", [of_brokers, of_zookeeper, lambda one: Certificate(one.cert, one.key, one.ca)])
def test_a_ca_that_has_expired_and_a_key_with_a_password_change_nothing(
    issued: Issued, renewed_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "LOOK_S", 0.0)
    renewed = renewed_of(issued)
    first = renewed.newest()
    good = issued.ca.read_bytes()
    expired_ca(issued.ca)
    assert renewed.newest() is first
    assert "expired" in renewed.problem
    issued.ca.write_bytes(issued.ca.read_bytes() + good)
    assert renewed.newest() is not first, "one valid CA is enough"
    second = renewed.newest()
    key = serialization.load_pem_private_key(issued.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    issued.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    assert renewed.newest() is second  # and OpenSSL does not ask at the terminal
    assert renewed.problem


def test_a_settings_file_that_cannot_be_used_is_not_reported_as_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "coord.toml"
    file.write_text('[kafka]\n"client.id" = "old"\n')
    security = broker_security(_with_renewed_properties(load_settings(environ={}, file=file)).kafka.properties)
    caplog.set_level("INFO")
    file.write_text('[kafka]\n"client.di" = "new"\n')
    security.newest()
    assert "client.di" in security.problem
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_the_metrics_tell_when_the_renewed_certificate_ends_although_nobody_connects(issued: Issued) -> None:
    renewed = {"zookeeper": of_zookeeper(issued)}

    def ends() -> list[float]:
        return [one.value for metric in _of_renewed(renewed) if "ends" in metric.name for one in metric.samples]

    issued.issue(2091)
    assert ends() == [datetime(2091, 1, 1, tzinfo=UTC).timestamp()]
