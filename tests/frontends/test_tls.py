"""Tests of the socket channel over TLS on real sockets. Secrets and certificates decide which clients may join."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from kafka_coord.channel.frames import AnsweredRequest, RefusedRequest
from kafka_coord.channel.link import SocketClient, SocketLink, ask_cluster_metadata
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.channel.operations import Registration
from kafka_coord.errors import NoAuth, SettingsError, StoreUnavailable
from kafka_coord.frontends import listening
from kafka_coord.frontends.listening import Certificate
from kafka_coord.frontends.socket import server
from kafka_coord.frontends.socket.access import GatewayOptions, SocketAccess, UsersFile
from kafka_coord.model import Member, Subscription, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.doctor import instances
from kafka_coord.zk import SystemClock
from tests.coordinator.harness import World
from tests.frontends.harness import HandConsumer, SocketInstance
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

Instances = Callable[..., SocketInstance]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def served(authority: trustme.CA, tmp_path: Path) -> Callable[[bool], ssl.SSLContext]:
    """Makes the TLS context of ``serve`` from its certificate files. The argument says if clients need certificates."""
    certificate, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(ca)

    def make(mutual: bool) -> ssl.SSLContext:
        return Certificate(certificate, None, ca if mutual else None).context

    return make


def trusting(authority: trustme.CA, name: str | None = None) -> ssl.SSLContext:
    """The TLS context of a consumer. ``name`` is the common name of its certificate, if it has one."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if name is not None:
        authority.issue_cert("127.0.0.1", common_name=name).configure_cert(context)
    return context


@pytest.fixture
def link() -> Iterator[Callable[..., SocketLink]]:
    """Makes consumers' links, each with a client that connects it."""
    clients: list[tuple[SocketLink, SocketClient]] = []

    def make(address: str, tls: ssl.SSLContext, secret: str | None = None, timeout_ms: int = 3_000) -> SocketLink:
        made = SocketLink(
            "delays",
            "c1",
            SystemClock(),
            session_timeout_ms=timeout_ms,
            resume_key="k",
            auto_commit=True,
            wake=lambda: None,
            secret=secret,
            patience_s=5.0,
        )
        client = SocketClient([address], made, tls=tls)
        clients.append((made, client))
        client.start()
        return made

    yield make
    for made, client in clients:
        made.close()
        client.close()


def registered(link: SocketLink) -> Registration:
    value = fields.dump(Member("c1", 0, Subscription.to(["flights"]), session_timeout_ms=link.timeout_ms).to_json())

    def ask() -> Registration | None:
        try:
            found = link.register(value)
        except StoreUnavailable:
            return None
        return found if isinstance(found, Registration) else None

    found: Registration = eventually(ask)
    return found


def test_a_consumer_sends_commits_while_it_answers_pings_over_tls(
    world: World, instance: Instances, authority, served, link
):
    one = instance(tls=served(False)).start_elected()
    made = link(one.server.address, trusting(authority), timeout_ms=1_000)
    registration = registered(made)
    commands = eventually(lambda: made.outstanding()[0])
    made.acknowledge(registration, commands[0], {TopicPartition("flights", 0): 0})
    for offset in range(1, 400):  # the other thread answers pings in the meantime
        made.commit(registration, {TopicPartition("flights", 0): offset, TopicPartition("flights", 1): offset})
    assert made.committed([TopicPartition("flights", 0)]) == {TopicPartition("flights", 0): 399}
    assert made.session_id == registration.session_id, "the membership must not be lost"


def test_a_client_that_does_not_trust_the_instance_ends_the_handshake(
    world: World, instance: Instances, authority, served
):
    one = instance(tls=served(False)).start_elected()
    assert ask_cluster_metadata(one.server.address, tls=trusting(authority)).coordinator is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        ask_cluster_metadata(one.server.address, tls=trusting(trustme.CA()))


def test_a_client_without_tls_is_disconnected_from_a_tls_port_and_affects_no_other(
    world: World, instance: Instances, authority, served
):
    one = instance(tls=served(False)).start_elected()
    with pytest.raises(OSError):  # noqa: PT011  the exact error varies
        ask_cluster_metadata(one.server.address)
    assert ask_cluster_metadata(one.server.address, tls=trusting(authority)).coordinator is not None


def test_a_client_without_a_required_certificate_is_disconnected(world: World, instance: Instances, authority, served):
    one = instance(tls=served(True)).start_elected()
    with pytest.raises(OSError):  # noqa: PT011  the exact error varies
        ask_cluster_metadata(one.server.address, tls=trusting(authority))
    assert ask_cluster_metadata(one.server.address, tls=trusting(authority, "worker")).coordinator is not None


def users(tmp_path: Path) -> SocketAccess:
    path = tmp_path / "users.toml"
    secret = hashlib.sha256(b"sesame").hexdigest()
    path.write_text(
        f"""[users.worker]
        certificate = "worker"
        groups = ["delays"]
        [users.etl]
        secret_sha256 = "{secret}"
        groups = ["etl-.*"]
        """
    )
    return SocketAccess.load(path)


def test_a_certificates_name_or_a_secret_determines_which_groups_a_client_may_join(
    world: World, instance: Instances, authority, served, tmp_path
):
    one = instance(tls=served(True), access=users(tmp_path)).start_elected()

    def joins(name: str, group: str, **more: str) -> AnsweredRequest | RefusedRequest:
        consumer = HandConsumer(one.server.address, tls=trusting(authority, name))
        try:
            return consumer.register(group, f"{name}-{group}", **more)
        finally:
            consumer.close()

    assert isinstance(joins("worker", "delays"), AnsweredRequest)
    assert joins("worker", "etl-1").code == "not-authorised"
    assert joins("stranger", "delays").code == "not-authenticated"
    assert isinstance(joins("stranger", "etl-1", secret="sesame"), AnsweredRequest)  # noqa: S106


def test_a_consumer_with_a_wrong_secret_gets_an_error_and_stops_trying(
    world: World, instance: Instances, authority, served, tmp_path, link, caplog
):
    one = instance(tls=served(False), access=users(tmp_path)).start_elected()
    made = link(one.server.address, trusting(authority), secret="wrong-one")  # noqa: S106
    with pytest.raises(NoAuth, match="not-authenticated"):
        registered(made)
    assert "denied access to socket consumer address=127.0.0.1" in caplog.text
    assert "wrong-one" not in caplog.text


def test_incomplete_handshakes_count_as_connections_and_time_out(
    world: World, instance: Instances, authority, served, monkeypatch
):
    monkeypatch.setattr(server, "SPARE_CONNECTIONS", 2)
    monkeypatch.setattr(listening, "HANDSHAKE_S", 3.0)
    one = instance(tls=served(False), options=GatewayOptions(most_consumers=1)).start_elected()
    host, port = one.server.address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(3)]
    for connection in silent:
        connection.sendall(b"\x16\x03\x01")  # begins a handshake
    with pytest.raises(OSError):  # noqa: PT011  the exact error varies
        ask_cluster_metadata(one.server.address, tls=trusting(authority))
    for connection in silent:
        connection.settimeout(10)
        with connection, suppress(ConnectionError):
            while connection.recv(100):
                pass

    def answers() -> bool:
        with suppress(OSError):
            return ask_cluster_metadata(one.server.address, tls=trusting(authority)).coordinator is not None
        return False

    assert eventually(answers)


def test_a_handshake_beyond_the_limit_waits_and_then_succeeds(
    world: World, instance: Instances, authority, served, monkeypatch
):
    monkeypatch.setattr(listening, "MAX_HANDSHAKES", 1)
    monkeypatch.setattr(listening, "HANDSHAKE_S", 3.0)
    one = instance(tls=served(False)).start_elected()
    host, port = one.server.address.split(":")
    with socket.create_connection((host, int(port))):
        found = ask_cluster_metadata(one.server.address, tls=trusting(authority), timeout_s=10)
    assert found.coordinator is not None


def test_files_that_contain_no_certificate_are_refused_at_startup(tmp_path: Path):
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(SettingsError, match=r"bad\.pem"):
        Certificate(bad, None)


def presented(context: ssl.SSLContext, authority: trustme.CA) -> str:
    """The serial number of the certificate that a server with this context presents. No socket is needed."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(authority).wrap_bio(back, there, server_hostname="127.0.0.1")
    server = context.wrap_bio(there, back, server_side=True)
    for _ in range(5):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return str((client.getpeercert() or {})["serialNumber"])


@pytest.fixture
def renewable(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renewed_at_once: None
) -> Certificate:
    monkeypatch.setattr(listening, "LOOK_S", 0.0)
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "own.pem")
    issued.private_key_pem.write_to_path(tmp_path / "own.key")
    return Certificate(tmp_path / "own.pem", tmp_path / "own.key")


def test_a_renewed_certificate_is_used_for_new_connections(
    renewable: Certificate, authority: trustme.CA, tmp_path: Path
) -> None:
    before = presented(renewable.context, authority)
    assert presented(renewable.context, authority) == before
    renewed = authority.issue_cert("127.0.0.1")
    renewed.private_key_pem.write_to_path(tmp_path / "own.key")
    assert presented(renewable.context, authority) == before, "the pair does not fit yet"
    assert "own.pem" in renewable.problem
    renewed.cert_chain_pems[0].write_to_path(tmp_path / "own.pem")
    assert presented(renewable.context, authority) != before
    assert renewable.problem == ""


@pytest.mark.parametrize("fault", ["half", "gone", "other key", "expired"])
def test_files_that_cannot_be_used_change_nothing(
    renewable: Certificate, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    before, ends_at = presented(renewable.context, authority), renewable.ends_at
    file = tmp_path / "own.pem"
    other = authority.issue_cert("127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC))
    if fault == "half":
        file.write_bytes(file.read_bytes()[:300])
    elif fault == "gone":
        file.unlink()
    elif fault == "other key":
        other.private_key_pem.write_to_path(tmp_path / "own.key")
    else:
        other.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.key")
        other.private_key_and_cert_chain_pem.write_to_path(file)
    for _ in range(3):
        assert presented(renewable.context, authority) == before
    assert renewable.ends_at == ends_at
    assert renewable.problem
    assert [one.levelname for one in caplog.records] == ["WARNING"]


@pytest.mark.usefixtures("renewed_at_once")
def test_changed_users_count_from_the_next_registration_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def of(secret: str) -> str:
        return f'[users.etl]\nsecret_sha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"\ngroups = ["g"]\n'

    file = tmp_path / "users.toml"
    file.write_text(of("old"))
    users = UsersFile(file)
    assert users.why_not("g", "old", None) is None
    file.write_text(of("renewed"))
    assert users.why_not("g", "renewed", None) is None
    assert users.why_not("g", "old", None) is not None
    file.write_text("[users")
    assert users.why_not("g", "renewed", None) is None
    assert users.why_not("g", "renewed", None) is None
    assert [one.levelname for one in caplog.records if one.levelname != "INFO"] == ["WARNING"]


@pytest.mark.parametrize(("mutual", "named"), [(False, True), (True, False)])
def test_the_doctor_asks_a_tls_listener_and_finds_nothing_wrong_with_it(
    world: World, instance: Instances, served, mutual: bool, named: bool
):
    del world
    one = instance(tls=served(mutual)).start_elected()
    answer = instances._ask(one.server.address)
    assert answer is None if not named else isinstance(answer, ClusterMetadata)


def test_the_doctor_reports_a_port_where_no_instance_answers():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "refused" in str(instances._ask(f"127.0.0.1:{port}"))
