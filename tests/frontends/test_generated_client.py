"""Tests with a real gateway and a client generated from the schema alone: a consumer's whole life, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_coord.frontends.socket.access import GatewayOptions
from kafka_coord.zk import layout
from tests.coordinator.harness import World
from tests.frontends.generated_client import SCHEMA, Fields, GeneratedClient
from tests.frontends.harness import SocketInstance

pytestmark = pytest.mark.zookeeper

Instances = Callable[..., SocketInstance]
REGISTER = {"group": "delays", "subscription": {"flights": 1}, "session_timeout_ms": 9_000}


class Reader:
    """Answers like a consumer that reads ten records of each partition that it starts."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.commands: list[str] = []

    def __call__(self, kind: str, frame: Fields) -> Fields:
        if kind == "ping":
            return {"offsets": {"flights": dict(self.offsets)} if self.offsets else {}}
        self.commands.append(frame["command"])
        if kind == "start-fetcher":
            self.offsets |= dict.fromkeys(frame["partitions"]["flights"], 10)
            return {"offsets": {"flights": dict.fromkeys(frame["partitions"]["flights"], 0)}}
        stopped = {str(number): self.offsets.pop(str(number)) for number in frame["partitions"]["flights"]}
        return {"offsets": {"flights": stopped}}


@pytest.fixture
def client() -> Iterator[Callable[..., GeneratedClient]]:
    made: list[GeneratedClient] = []

    def make(instance: SocketInstance, answers: Callable[[str, Fields], Fields] | None = None) -> GeneratedClient:
        made.append(GeneratedClient(instance.server.address, answers or Reader()))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_generated_client_finds_the_coordinator_registers_commits_resumes_hands_over_and_leaves(
    world: World, instance: Instances, client: Callable[..., GeneratedClient]
) -> None:
    coordinator = instance().start_elected()
    reader, other_reader = Reader(), Reader()
    one = client(coordinator, reader)
    metadata = one.ask("cluster-metadata", wait_ms=2_000)
    assert metadata["coordinator"]["endpoint"] == coordinator.server.address
    registered = one.ask("register", consumer_id="c1", resume_key="k", client="generated/1", **REGISTER)
    assert registered["consumer_id"] == "c1"
    one.step_until(lambda: len(reader.offsets) == 4)
    one.step_until(lambda: any(kind == "ping" and frame["done"] for kind, frame in one.asked))
    assert one.ask("commit", offsets={"flights": {"0": 7}})["refused"] == []
    assert one.ask("committed", offsets={"flights": {"0": 0}})["offsets"] == {"flights": {"0": 7}}
    assert one.ask("unresolved", awaited={}, offsets={}, refused={})["type"] == "answer"
    one.step_until(lambda: any(kind == "ping" and frame["heard"] for kind, frame in one.asked))

    one.close()
    again = client(coordinator, reader)
    resume = {"group": "delays", "consumer_id": "c1", "incarnation": registered["incarnation"], "resume_key": "k"}
    assert again.ask("resume", **resume)["outstanding"] == []

    other = client(coordinator, other_reader)
    assert other.ask("register", consumer_id="c2", **REGISTER)["type"] == "answer"
    again.step_until(lambda: len(reader.offsets) == 2)
    other.step_until(lambda: len(other_reader.offsets) == 2)
    assert not reader.offsets.keys() & other_reader.offsets.keys()

    left = again.ask("leave", offsets={"flights": reader.offsets}, for_good=True)
    assert left["refused"] == []
    for number in reader.offsets:
        assert world.store.get(layout.offset("delays", "flights", int(number))).data == b"10"
    answers = {rule["x-answer"] for rule in SCHEMA["$defs"].values() if rule.get("x-sender") == "consumer"}
    asked = {name for name, rule in SCHEMA["$defs"].items() if rule.get("x-sender") == "coordinator"}
    assert one.seen | again.seen | other.seen >= answers | asked, "every message of the schema must be exchanged"


@pytest.mark.parametrize(
    ("message", "fields", "code"),
    [
        ("register", {"group": "delays", "consumer_id": "taken"}, "duplicate-consumer"),
        ("register", {"session_timeout_ms": 999_999_999}, "timeout-out-of-range"),
        ("register", {"subscription": {"(": 1}, "pattern": "white_list"}, "bad-subscription"),
        ("register", {"rejoin_grace_ms": 1 << 60}, "bad-value"),
        ("register", {"group": "full", "consumer_id": "one-more"}, "too-many-consumers"),
        ("register", {"group": "flood", "consumer_id": "early"}, "slow-down"),
        ("resume", {"incarnation": 5}, "unknown-membership"),
        ("commit", {"offsets": {}}, "unexpected-message"),
    ],
)
def test_each_refusal_leaves_the_connection_as_the_schema_says(
    instance: Instances, client: Callable[..., GeneratedClient], message: str, fields: dict[str, Any], code: str
) -> None:
    limits = {
        "too-many-consumers": GatewayOptions(most_consumers=1),
        "slow-down": GatewayOptions(registrations_per_s=1),
    }
    coordinator = instance(1, limits.get(code)).start_elected()
    first = client(coordinator)
    assert first.ask("register", consumer_id="taken", **REGISTER)["type"] == "answer"
    refused = client(coordinator)
    base = {
        "register": REGISTER,
        "resume": {"group": "delays", "consumer_id": "nobody", "resume_key": "k"},
        "commit": {},
    }[message]
    while (error := refused.ask(message, **(base | fields)))["type"] != "error":
        refused = client(coordinator)  # it was admitted with an unused place of the last second
        fields = fields | {"consumer_id": f"{fields['consumer_id']}-again"}
    assert error["code"] == code
    assert refused.closed_after(error)


def test_an_instance_that_is_not_the_coordinator_names_the_coordinator(
    instance: Instances, client: Callable[..., GeneratedClient]
) -> None:
    elected = instance(1).start_elected()
    other = client(instance(2).start())
    assert other.ask("cluster-metadata")["coordinator"]["endpoint"] == elected.server.address
    error = other.ask("register", **REGISTER)
    assert (error["code"], error["coordinator"]["endpoint"]) == ("not-coordinator", elected.server.address)
    assert other.closed_after(error)
