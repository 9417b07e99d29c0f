"""A term serves only the members of its own protocol in its own groups."""

from __future__ import annotations

import pytest

from kafka_coord.channel.messages import Code, Register
from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import Fenced
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions, RegistrationWanted
from kafka_coord.frontends.members.registering import Refusal, Registering, register_all, registration_value
from kafka_coord.frontends.members.term import Term, TermScope
from kafka_coord.model import Member, Subscription
from kafka_coord.zk.store import Check, Store
from tests.coordinator.harness import World

FENCE = "/fence"


def test_the_fenced_store_writes_out_every_method_of_a_store() -> None:
    public = {name for name in vars(Store) if not name.startswith("_")}
    assert public <= vars(FencedStore).keys(), "a method that it only inherits may write past the fence"


def registered(world: World, group: str, consumer: str, protocol: str | None) -> Registration | Refusal:
    """Registers a client with the resume key ``k``, and returns the outcome."""
    member = Member(consumer, 0, Subscription.to(["flights"]), session_timeout_ms=9_000, protocol=protocol)
    value = registration_value(Register(group, member, resume_key="k"), 1, "10.0.0.1:5", 0, f"{group} {protocol}")
    wanted = RegistrationWanted(1, 1, group, consumer, RegistrationOptions(9.0, resume_key="k"), value)
    told: list[Registration | Refusal] = []
    store = FencedStore(world.store, Check(FENCE, 0))
    register_all(store, [Registering(wanted, lambda _one, outcome: told.append(outcome))])
    (outcome,) = told
    return outcome


def members(world: World, scope: TermScope) -> set[tuple[str, str]]:
    """The members that a new term of the scope finds."""
    term = Term(world.store, scope, lambda: None, lambda _said: None)
    try:
        term.begin()
        return set(term.machine.members)
    finally:
        term.close()


def test_a_new_term_finds_the_members_of_its_own_protocol_in_its_own_groups(world: World) -> None:
    world.store.create(FENCE, b"")
    for group, consumer, protocol in (("a", "s1", None), ("a", "k1", "consumer"), ("b", "k2", "consumer")):
        assert isinstance(registered(world, group, consumer, protocol), Registration)

    fence = Check(FENCE, 0)
    assert members(world, TermScope(fence, 1)) == {("a", "s1")}
    assert members(world, TermScope(fence, 1, ("consumer",))) == {("a", "k1"), ("b", "k2")}
    assert members(world, TermScope(fence, 1, ("consumer",), lambda group: group == "b")) == {("b", "k2")}


def test_no_resume_key_takes_over_a_member_of_another_protocol(world: World) -> None:
    world.store.create(FENCE, b"")
    assert isinstance(registered(world, "a", "c1", "consumer"), Registration)
    refused = registered(world, "a", "c1", None)
    assert isinstance(refused, Refusal)
    assert refused.code == Code.DUPLICATE_CONSUMER


def test_an_instance_that_lost_its_term_is_fenced_and_does_not_report_the_member_as_gone(world: World) -> None:
    world.store.create(FENCE, b"")
    found = registered(world, "a", "k1", "consumer")
    assert isinstance(found, Registration)
    channel = ConsumerChannel(FencedStore(world.store, Check(FENCE, 0)), "a", "k1")
    world.store.set(FENCE, b"")
    with pytest.raises(Fenced):
        channel.change_subscription(found, Subscription.to(["fares"]))


def test_an_instance_that_lost_its_term_calls_no_name_taken(world: World) -> None:
    world.store.create(FENCE, b"")
    assert isinstance(registered(world, "a", "c1", "classic"), Registration)  # by the next instance
    world.store.set(FENCE, b"")
    with pytest.raises(Fenced):
        registered(world, "a", "c1", "consumer")
