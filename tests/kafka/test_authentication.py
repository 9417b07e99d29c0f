"""How an instance authenticates to its broker."""

from __future__ import annotations

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.kafka.authentication import BrokerSecurity, answers_to

NONCE = "rOprNGfwEbeRWgbNEkqO"
BOTH = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CHALLENGE = f"r={BOTH},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
USER = BrokerSecurity(None, "SCRAM-SHA-256", "user", "pencil")


def test_scram_gives_the_messages_of_rfc_7677() -> None:
    exchange = answers_to(USER, NONCE)
    assert next(exchange) == b"n,,n=user,r=" + NONCE.encode()
    proof = exchange.send(CHALLENGE)
    assert proof == f"c=biws,r={BOTH},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    exchange = answers_to(USER, NONCE)
    next(exchange)
    exchange.send(CHALLENGE)
    with pytest.raises(ValueError, match="did not prove that it knows the password"):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=")


@pytest.mark.parametrize(
    "challenge",
    [
        CHALLENGE.replace(b"rOpr", b"xOpr"),
        CHALLENGE.replace(b"4096", b"99999999"),
        CHALLENGE.replace(b"4096", b"0"),
        b"x",
    ],
)
def test_an_invalid_challenge_is_not_answered(challenge: bytes) -> None:
    exchange = answers_to(USER, NONCE)
    next(exchange)
    with pytest.raises((ValueError, KeyError)):
        exchange.send(challenge)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"security.protocol": "TLS"}, r"kafka\.security\.protocol must be one of .*, not 'TLS'"),
        ({"security.protocol": "SASL_PLAINTEXT"}, r"kafka\.sasl\.mechanism must be one of .*, not \(none\)"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "password"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "cannot set up TLS to the broker"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(properties: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        BrokerSecurity.of(properties)


def test_properties_that_only_librdkafka_knows_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    properties = {"ssl.ca.pem": "x", "sasl.oauthbearer.method": "oidc", "fetch.min.bytes": "1", "sasl.username": "u"}
    for _ in range(2):
        BrokerSecurity.of(properties)
    (said,) = caplog.records
    assert said.getMessage().startswith("ignoring kafka.sasl.oauthbearer.method, kafka.ssl.ca.pem for connections")


def test_a_password_is_not_shown() -> None:
    assert "pencil" not in repr(USER)
