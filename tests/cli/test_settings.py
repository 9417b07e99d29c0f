"""Tests of settings: which source has priority, and the messages for mistakes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kafka_coord.cli.serve import endpoints
from kafka_coord.errors import SettingsError
from kafka_coord.settings import Secret, ServeSettings, Settings, keys, load_settings, variable_of
from tests.cli.running import run


def written(tmp_path: Path, toml: str) -> Path:
    path = tmp_path / "coord.toml"
    path.write_text(toml)
    return path


def test_options_override_variables_which_override_the_file_and_the_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, '[zookeeper]\nhosts = "file:1"\nsession_timeout_ms = 7000\n[serve]\nbroker_id = 3\n')
    variables = {"KAFKA_COORD_ZOOKEEPER": "variable:1", "KAFKA_COORD_SERVE_BROKER_ID": "4"}

    found = load_settings({"serve.broker_id": "5"}, environ=variables, file=file)

    assert found.serve.broker_id == 5
    assert found.zookeeper.hosts == "variable:1"
    assert found.zookeeper.session_timeout_ms == 7000
    assert found.zookeeper.connect_timeout_ms == 10_000
    assert found.origin == {
        "serve.broker_id": "flag --broker-id",
        "zookeeper.hosts": "variable KAFKA_COORD_ZOOKEEPER",
        "zookeeper.session_timeout_ms": str(file),
    }


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[zookeeper]\nhosts = "file:1"\n')
    assert load_settings(environ={"KAFKA_COORD_CONFIG": str(file)}).zookeeper.hosts == "file:1"


ANY_TEXT = ("password", "username", "hosts", "secret", "managed_groups", "new_groups")


@pytest.mark.parametrize("key", sorted(key for key in keys() if not key.endswith(ANY_TEXT)))
def test_every_key_has_a_variable_and_the_error_for_an_invalid_value_names_it(key: str) -> None:
    variable = variable_of(key)
    with pytest.raises(SettingsError) as refused:
        load_settings(environ={variable: "\x00 nonsense"})
    assert key in str(refused.value)
    assert variable in str(refused.value)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[zookeeper]\nsession_timeout = 5", "did you mean zookeeper.session_timeout_ms?"),
        ("[zookeper]\nhosts = 'x'", "did you mean [zookeeper]?"),
        ("[zookeeper]\nsession_timeout_ms = 3", "out of range"),
        ("[zookeeper]\nsession_timeout_ms = true", "a bool"),
        ("[serve]\nlog_level = 'LOUD'", "DEBUG, INFO, WARNING or ERROR"),
        ("[serve]\nlisten_http = 'host'", "no port"),
        ("zookeeper = 3", "must be a table"),
        ("[kafka]\n'security.protocol' = ['SSL']", "librdkafka takes text or numbers"),
        ("[zookeeper", "is not TOML"),
        ("[zookeeper]\ntls_ca_file = '/no/such.pem'", "No such file"),
        ("[zookeeper]\nacl = 'creator-only'", "does not authenticate"),
        ("[zookeeper]\nsasl_mechanism = 'digest-md5'", "needs zookeeper.sasl_username"),
    ],
)
def test_the_error_for_a_mistake_in_the_file_names_it(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(environ={}, file=written(tmp_path, toml))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("x = " + "[" * 5_000 + "]" * 5_000, "is not TOML"),
        ("x = " + "9" * 5_000, "is not TOML"),
        ("kafka." + "a." * 5_000 + "a = 1", "nests tables deeper"),
        ("a." * 400_000 + "a = 1", "nests tables deeper"),  # tomllib would take hours
        ('"a".' * 100_000 + "a = 1", "nests tables deeper"),
        ("kafka = " + "{a = " * 100 + "1" + "}" * 100, "nests tables deeper"),
        ("serve." + "a." * 5_000 + "a = 1", "nests tables deeper"),
        ("#" * 1_000_001, "is longer than"),
        ('zookeeper.tls_ca_file = "~nobody-of-that-name/x"', "zookeeper.tls_ca_file"),
        ('zookeeper.tls_ca_file = "\\u0000"', "zookeeper.tls_ca_file"),
    ],
    ids=lambda written: written[:20],
)
def test_the_error_for_a_hostile_file_is_one_sentence(tmp_path: Path, toml: str, said: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(toml)
    with pytest.raises(SettingsError, match=said) as refused:
        load_settings(environ={}, file=file)
    assert len(str(refused.value)) < 1_000


def test_the_error_for_a_missing_file_names_it() -> None:
    with pytest.raises(SettingsError, match=r"/no/such\.toml cannot be read: No such file"):
        load_settings(environ={}, file="/no/such.toml")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("KAFKA_COORD_ZOOKEEPER_HOST", "KAFKA_COORD_ZOOKEEPER_HOSTS"),
        ("KAFKA_COORD_ZOOKEPER", "KAFKA_COORD_ZOOKEEPER"),
        ("KAFKA_COORD_ZOOKEPER_SESSION_TIMEOUT_MS", "KAFKA_COORD_ZOOKEEPER_SESSION_TIMEOUT_MS"),
        ("KAFKA_COORD_SERVE_BROKR_ID", "KAFKA_COORD_SERVE_BROKER_ID"),
        ("KAFKA_COORD_SOCKT_BOOTSTRAP", "KAFKA_COORD_SOCKET_BOOTSTRAP"),
        ("KAFKA_COORD_CONFG", "KAFKA_COORD_CONFIG"),
    ],
)
def test_the_error_for_a_misspelt_variable_names_the_right_one(written: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=rf"{written} in the environment .* did you mean {meant}\?"):
        load_settings(environ={written: "zk"})


@pytest.mark.parametrize(
    "variable",
    [
        "KAFKA_COORD_OUTPUT",
        "KAFKA_COORD_DEBUG",
        "KAFKA_COORD_SERVE_SESSION_TIMEOUT_MS",
        "KAFKA_COORD_CONSUME_BOOTSTRAP",
        "KAFKA_COORD_WATCH_INTERVAL",
        "KAFKA_COORD_GROUPS_LIST_OUTPUT",
        "KAFKA_COORD_CACHE",
    ],
)
def test_a_variable_for_a_commands_option_does_not_count_as_misspelt(variable: str) -> None:
    assert load_settings(environ={variable: "x"}).origin == {}


def test_librdkafka_properties_can_be_set_in_the_file_by_variables_and_by_options(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '[kafka]\nsecurity.protocol = "SSL"\n"ssl.ca.location" = "/ca.pem"\nsocket.keepalive.enable = true\n',
    )
    found = load_settings(
        environ={"KAFKA_COORD_KAFKA_SASL_MECHANISM": "PLAIN", "KAFKA_COORD_KAFKA_SECURITY_PROTOCOL": "SASL_SSL"},
        file=file,
        kafka_properties={"client.id": "me"},
    )
    assert dict(found.kafka.properties) == {
        "client.id": "me",
        "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_SSL",
        "socket.keepalive.enable": "true",
        "ssl.ca.location": "/ca.pem",
    }


def with_secrets() -> Settings:
    return load_settings(
        environ={
            "KAFKA_COORD_ZOOKEEPER_DIGEST": "alice:hunter2",
            "KAFKA_COORD_ZOOKEEPER_TLS_KEY_PASSWORD": "hunter2",
            "KAFKA_COORD_KAFKA_SASL_PASSWORD": "hunter2",
            "KAFKA_COORD_KAFKA_SSL_KEY_PASSWORD": "hunter2",
        }
    )


def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    found = with_secrets()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("settings %s %r", found, found)
    assert "hunter2" not in caplog.text
    assert found.zookeeper.digest == Secret("alice:hunter2")
    assert found.zookeeper.digest is not None
    assert found.zookeeper.digest.reveal() == "alice:hunter2"
    assert found.kafka.properties["sasl.password"] == "hunter2"


def test_every_setting_is_shown_with_its_source_and_no_secret(tmp_path: Path) -> None:
    file = written(tmp_path, '[kafka]\nsasl.password = "hunter2"\n[serve]\nbroker_id = 3\n')
    variables = {"KAFKA_COORD_ZOOKEEPER_DIGEST": "alice:hunter2", "KAFKA_COORD_CONFIG": str(file)}

    ran = run("settings", "show", "-z", "zk1:1", "-o", "json", **variables)

    found = {row["setting"]: (row["value"], row["origin"]) for row in ran.json()}
    assert found.keys() == {*keys(), "kafka.sasl.password"}
    assert {key: one for key, one in found.items() if one[1] != "default"} == {
        "zookeeper.hosts": ("zk1:1", "flag --zookeeper"),
        "zookeeper.digest": ("Secret(…)", "variable KAFKA_COORD_ZOOKEEPER_DIGEST"),
        "serve.broker_id": (3, str(file)),
        "kafka.sasl.password": ("Secret(…)", str(file)),
    }
    assert found["serve.look_interval_ms"] == (60_000, "default")


def test_the_error_for_an_invalid_secret_does_not_contain_it() -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(environ={"KAFKA_COORD_ZOOKEEPER_DIGEST": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert "user:password" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sasl.usernam", "did you mean 'sasl.username'?"),
        ("ssl.ca.locaton", "did you mean 'ssl.ca.location'?"),
        ("ssl.truststore.location", "ssl.ca.location"),
        ("sasl.jaas.config", "not supported"),
        ("security_protocol", "did you mean 'security.protocol'?"),
        ("colour", "No such configuration property"),
        ("error_cb", "a function"),
    ],
)
def test_a_property_that_librdkafka_does_not_know_is_refused_wherever_it_is_given(
    tmp_path: Path, name: str, hint: str
) -> None:
    file = written(tmp_path, f'[kafka]\n"{name}" = "x"\n')
    variable = "KAFKA_COORD_KAFKA_" + name.replace(".", "_").upper()
    show = ("settings", "show", "--zookeeper", "h:1")
    given = {
        str(file): run(*show, "--config", str(file)),
        "flag --kafka-property": run(*show, "--kafka-property", f"{name}=x"),
    }
    if name.count("_") == 0:
        given[f"variable {variable}"] = run(*show, **{variable: "x"})
    for origin, ran in given.items():
        assert ran.code == 2, ran.out
        assert f"kafka.{name} from {origin} is invalid" in ran.err
        assert hint in ran.err


@pytest.mark.parametrize(
    "command", ["watch", "doctor", "groups list --lag", "groups describe g", "consume --group g --topic t"]
)
def test_every_command_refuses_such_a_property_before_it_connects(command: str) -> None:
    ran = run(*command.split(), "--zookeeper", "127.0.0.1:1", "--kafka-property", "ssl.ca.locaton=x")
    assert ran.code == 2
    assert "did you mean 'ssl.ca.location'?" in ran.err


def test_every_property_of_librdkafka_and_values_that_it_refuses_pass_the_check_of_names() -> None:
    for name, value in {"security.protocol": "ssl", "isolation.level": "x", "acks": "1", "plugin.library.paths": "/no",
                        "enable.ssl.certificate.verification": "false", "ssl.ca.location": "/no"}.items():  # fmt: skip
        assert run("settings", "show", "--zookeeper", "h:1", "--kafka-property", f"{name}={value}").code == 0, name


@pytest.mark.parametrize("pattern", ["etl-[", "etl-(?!prod)", "delays,etl"])
def test_an_operators_expression_that_would_make_the_file_unusable_is_refused(pattern: str) -> None:
    ran = run("settings", "operator", "alice", "--groups", pattern)
    assert (ran.code, ran.out) == (2, "")
    assert pattern in ran.err


def test_the_advertised_page_is_published_and_its_name_is_one_that_browsers_may_use() -> None:
    behind = ServeSettings(listen_http="0.0.0.0:9404", advertise_http="page.example.com:443", http_host_names="other")
    assert endpoints(behind) == {"http": "page.example.com:443"}
    assert behind.host_names == ["other", "page.example.com"]
    assert endpoints(ServeSettings(listen_http="10.0.0.1:9404")) == {"http": "10.0.0.1:9404"}
    with pytest.raises(SettingsError, match=r"advertise_http"):
        ServeSettings(advertise_http="page.example.com:443")
