"""``kafka-coord acl`` and ``doctor`` against a real ZooKeeper, open and closed."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from kafka_coord.zk import layout
from kafka_coord.zk.acl import digest_identity
from tests.cli.running import Run, run
from tests.coordinator.harness import World
from tests.security.conftest import PASSWORDS

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def identities(tmp_path: Path) -> Path:
    who = {user: digest_identity(user, password) for user, password in PASSWORDS.items()}
    file = tmp_path / "identities.toml"
    file.write_text(
        f'coordinators = ["{who["coordinator"]}"]\noperators = ["{who["operator"]}"]\n'
        f'[consumers]\ndelays = ["{who["delays"]}"]\nsales = ["{who["sales"]}"]\n"*" = ["{who["others"]}"]\n'
    )
    return file


@pytest.fixture
def as_(zk_hosts: str, identities: Path):
    """``as_("operator")("acl", "check")``: the command by this user."""

    def command_of(user: str) -> Run:
        return partial(
            run,
            zookeeper=zk_hosts,
            KAFKA_COORD_ZOOKEEPER_DIGEST=f"{user}:{PASSWORDS[user]}",
            KAFKA_COORD_ZOOKEEPER_IDENTITIES=str(identities),
        )

    return command_of


def findings(ran) -> list[tuple[str, str]]:
    return [(one["severity"], one["what"]) for one in ran.json() if one["check"] == "acls"]


def doctor(command: Run, **more: str) -> list[tuple[str, str]]:
    ran = command("doctor", "-o", "json", **more)
    assert ran.code in {0, 10}, ran.err  # there is no broker
    return findings(type(ran)(0, ran.out, ran.err))


def test_check_and_doctor_report_open_znodes_and_apply_closes_them(world: World, as_, zk_hosts: str):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    (told, *_) = doctor(partial(run, zookeeper=zk_hosts))
    assert told == ("info", "anyone who can reach ZooKeeper may change everything below /consumers")
    world.instances[0].stop()
    operator, coordinator = as_("operator"), as_("coordinator")
    # while the znodes are open, the command reports them
    checked = operator("acl", "check")
    assert checked.code == 10
    assert "on znodes that anyone may change" in checked.err
    assert re.search(r"/consumers/groups/delays/assignment +open +world:anyone=cdrwa", checked.out)
    assert any("contrary to the plan" in what for severity, what in doctor(operator) if severity == "warning")
    # without a terminal, --yes is needed; it prints progress, and can be repeated
    assert coordinator("acl", "apply").code == 6
    applied = coordinator("acl", "apply", "--yes")
    assert applied.code == 0, applied.err
    assert " of " in applied.err
    assert applied.out.startswith("changed ")
    assert "nothing to do" in coordinator("acl", "apply", "--yes").out
    # closed: all ACLs match, and one znode that somebody opens is found
    assert operator("acl", "check", "-o", "json").json()["deviations"] == []
    assert [told for told in doctor(operator) if told[0] == "ok"]
    assert (
        "warning",
        "this client sends its ZooKeeper password in clear text, because it uses the digest scheme without TLS",
    ) in (doctor(operator))
    refused = as_("sales")("acl", "apply", "--yes")
    assert "nothing to do" in refused.out
    everybody = doctor(partial(run, zookeeper=zk_hosts))
    assert ("ok", "the znodes below /consumers are closed to unauthorised clients") in everybody


def test_one_open_znode_among_closed_ones_is_a_warning_and_only_the_coordinator_can_close_it(world: World, as_):
    assert as_("coordinator")("acl", "apply", "--yes").code == 0
    client = KazooClient(world.hosts, auth_data=[("digest", f"delays:{PASSWORDS['delays']}")])
    client.start(timeout=15)
    try:  # a careless consumer creates the znodes that it may create, open to all
        client.create(layout.channel("delays", "careless"), acl=OPEN_ACL_UNSAFE)
    finally:
        client.stop()
        client.close()
    told = doctor(as_("operator"))
    path = layout.channel("delays", "careless")
    assert ("warning", f"anyone who can reach ZooKeeper may change {path}, contrary to the plan") in told
    (found,) = as_("operator")("acl", "check", "-o", "tsv").out.splitlines()[1:]
    assert found.startswith(f"{path}\topen\tworld:anyone=cdrwa")
    assert as_("coordinator")("acl", "apply", "--yes").out.startswith("changed 1,")


def test_the_plan_is_printed_with_and_without_identities_and_shows_no_hash(as_, identities: Path):
    bare = run("acl", "plan")
    assert bare.code == 0
    assert "/consumers/groups/<group>/channel/<consumer>" in bare.out
    assert "identities is not set" in bare.err
    full = as_("operator")("acl", "plan")
    assert "digest:delays" in full.out
    assert str(digest_identity("delays", PASSWORDS["delays"])) not in full.out
    one = as_("operator")("acl", "plan", layout.ids("delays"), "-o", "json").json()
    assert one[0]["acl"] == "digest:coordinator=cdrwa digest:delays=cdr digest:operator=r world:anyone=r"
    assert run("acl", "plan", layout.ids("delays")).code == 2
    assert as_("operator")("acl", "plan", "consumers").code == 2


def test_an_identity_is_computed_from_the_setting_or_from_a_password_on_stdin():
    made = run("acl", "identity", KAFKA_COORD_ZOOKEEPER_DIGEST="delays:three")
    assert made.out.strip() == str(digest_identity("delays", "three"))
    assert run("acl", "identity", "delays", stdin="three\n").out == made.out
    assert run("acl", "identity").code == 2
    assert run("acl", "identity", "delays", stdin="\n").code == 2
    assert run("acl", "identity", "a:b", stdin="x\n").code == 2


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("operator", "not-two", "wrong ZooKeeper password for 'operator'"),
        ("mallory", "x", "has no role among the identities"),
    ],
)
def test_a_user_who_is_not_among_the_identities_is_refused_before_any_request(
    as_, user: str, password: str, words: str
):
    ran = as_("operator")("groups", "list", KAFKA_COORD_ZOOKEEPER_DIGEST=f"{user}:{password}")
    assert ran.code == 2
    assert words in ran.err
    assert password not in ran.err


def test_acl_commands_without_identities_say_what_to_set(zk_hosts: str):
    ran = run("acl", "check", zookeeper=zk_hosts)
    assert ran.code == 2
    assert "zookeeper.identities is not set" in ran.err
    both = run("groups", "list", zookeeper=zk_hosts, KAFKA_COORD_ZOOKEEPER_ACL="creator-only", **_some_identities())
    assert both.code == 2
    assert "leave one of them out" in both.err


def _some_identities() -> dict[str, str]:
    return {"KAFKA_COORD_ZOOKEEPER_IDENTITIES": __file__, "KAFKA_COORD_ZOOKEEPER_DIGEST": "a:b"}
