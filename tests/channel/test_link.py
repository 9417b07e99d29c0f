"""Tests of the consumer's end of the socket channel with a scripted coordinator: lease, offsets, commands, resuming."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_coord.channel.frames import AnsweredRequest, Asked, BadFrame, Event, Frame, Rpc
from kafka_coord.channel.link import SocketLink
from kafka_coord.channel.membership import SAFETY
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.channel.operations import Holder, Registration
from kafka_coord.errors import MembershipLost, NoAuth, StoreUnavailable
from kafka_coord.model import CommandId, Member, Subscription, TopicPartition, parse_command_id
from kafka_coord.model import json_fields as fields
from kafka_coord.zk.store import SessionState
from tests.simulation.scheduler import VirtualClock

TIMEOUT_S = 10.0
P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
VALUE = fields.dump(Member("c1", 0, Subscription.to(["flights"]), session_timeout_ms=10_000).to_json())


class Other:
    """The coordinator's end of one connection."""

    def __init__(self, link: SocketLink) -> None:
        self.link = link
        self.rpc = Rpc()
        self.said: list[Event] = []
        self.hung_up = self.broken = False
        link.connected(self._hear, self._hang_up)

    def _hear(self, frame: Frame) -> None:
        if self.broken:
            raise OSError("broken pipe")
        self.said.append(self.rpc.take({"v": 1, **frame}))

    def _hang_up(self) -> None:
        self.hung_up = True

    def ask(self, request: str, **more: Any) -> int:
        number, frame = self.rpc.ask(request, more)
        self.link.received({"v": 1, **frame})
        return number

    def answer(self, **more: Any) -> None:
        asked = self.last(Asked)
        self.link.received({"v": 1, **self.rpc.answer(asked.id, more)})

    def refuse(self, code: str, **more: Any) -> None:
        asked = self.last(Asked)
        self.link.received({"v": 1, **self.rpc.refuse(asked.id, code, "for a reason", more)})

    def last(self, kind: type[Any]) -> Any:
        return next(event for event in reversed(self.said) if isinstance(event, kind))

    def start(self, partition: int, name: str = "start-0000000001", offset: int = 7) -> int:
        points = {"flights": {str(partition): {"offset": offset, "stream": 0}}}
        return self.ask("start-fetcher", command=name, generation=1, epoch=1, incarnation=99, partitions=points)

    def stop(self, partition: int, name: str = "stop-0000000002") -> int:
        stops = {"flights": [partition]}
        return self.ask("stop-fetcher", command=name, generation=2, epoch=1, incarnation=99, partitions=stops)


class Party:
    def __init__(self, on_metadata: Callable[[ClusterMetadata], None] = lambda _metadata: None) -> None:
        self.clock = VirtualClock()
        self.link = SocketLink(
            "delays",
            "c1",
            self.clock,
            session_timeout_ms=10_000,
            resume_key="mine",
            auto_commit=True,
            wake=lambda: None,
            on_metadata=on_metadata,
        )
        self.states: list[SessionState] = []
        self.link.on_session(self.states.append)
        self.other = Other(self.link)

    def registered(self) -> Registration:
        with pytest.raises(StoreUnavailable):
            self.link.register(VALUE)
        self.other.answer(consumer_id="c1", incarnation=99, session_timeout_ms=10_000, ping_interval_ms=3_333, epoch=1)
        found = self.link.register(VALUE)
        assert isinstance(found, Registration)
        return found

    def told(self) -> dict[str, dict[str, int]]:
        """The offsets in the consumer's last answer."""
        offsets: dict[str, dict[str, int]] = self.other.last(AnsweredRequest).frame["offsets"]
        return offsets


@pytest.fixture
def party() -> Party:
    return Party()


def command(name: str) -> CommandId:
    found = parse_command_id(name)
    assert found is not None
    return found


def test_repeated_calls_of_register_send_one_request(party: Party) -> None:
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            party.link.register(VALUE)
    registration = party.registered()
    assert [event.type for event in party.other.said] == ["register"]
    frame = party.other.said[0].frame
    assert (frame["group"], frame["consumer_id"], frame["resume_key"]) == ("delays", "c1", "mine")
    assert registration.incarnation == 99
    assert party.link.session_id == registration.session_id


def test_a_name_in_use_returns_its_holder_and_a_missing_right_is_final(party: Party) -> None:
    with pytest.raises(StoreUnavailable):
        party.link.register(VALUE)
    party.other.refuse("duplicate-consumer", incarnation=5)
    assert party.link.register(VALUE) == Holder(5, 0, None)
    with pytest.raises(StoreUnavailable):
        party.link.register(VALUE)
    party.other.refuse("slow-down")
    with pytest.raises(StoreUnavailable):
        party.link.register(VALUE)
    with pytest.raises(StoreUnavailable):
        party.link.register(VALUE)
    party.other.refuse("not-authorised")
    with pytest.raises(NoAuth, match="not-authorised"):
        party.link.register(VALUE)


def test_after_slow_down_the_link_does_not_register_before_the_given_time(party: Party) -> None:
    with pytest.raises(StoreUnavailable):
        party.link.register(VALUE)
    party.other.refuse("slow-down", retry_ms=1_500)
    party.clock.now += 1.4
    with pytest.raises(StoreUnavailable, match="is still registering other consumers"):
        party.link.register(VALUE)
    assert len(party.other.said) == 1
    party.clock.now += 0.2
    with pytest.raises(StoreUnavailable, match="not answered yet"):
        party.link.register(VALUE)
    assert [event.type for event in party.other.said] == ["register", "register"]
    party.other.refuse("slow-down", retry_ms="soon")
    party.registered()


def test_the_lease_begins_when_the_confirmed_frame_was_sent(party: Party) -> None:
    party.clock.now += 1.0
    began = party.clock.monotonic()
    party.registered()
    lives = TIMEOUT_S * (1 - SAFETY)
    assert party.link.lease_deadline() == pytest.approx(began + lives)
    party.clock.now += 3.0
    answered = party.clock.monotonic()
    first = party.other.ask("ping", heard=0, done=0)
    assert party.link.lease_deadline() == pytest.approx(began + lives), "the answer may have been lost"
    party.clock.now += 3.0
    party.other.ask("ping", heard=first, done=0)
    assert party.link.lease_deadline() == pytest.approx(answered + lives)


def test_offsets_in_a_pings_answer_count_as_stored_once_the_answer_is_confirmed(party: Party) -> None:
    registration = party.registered()
    assert party.link.auto_commit(registration, {P0: 5}) == {}
    first = party.other.ask("ping", heard=0, done=0)
    assert party.told() == {"flights": {"0": 5}}
    assert party.link.auto_commit(registration, {P0: 8, P1: 1}) == {}
    party.other.ask("ping", heard=first, done=0)
    assert party.told() == {"flights": {"0": 8, "1": 1}}
    assert party.link.auto_commit(registration, {}) == {P0: 5}


def test_offsets_that_were_committed_or_stopped_are_not_in_later_pings_answers(party: Party) -> None:
    registration = party.registered()
    party.other.start(0)
    with pytest.raises(StoreUnavailable):
        party.link.acknowledge(registration, command("start-0000000001"), {})
    party.link.auto_commit(registration, {P0: 5, P1: 6})
    with pytest.raises(StoreUnavailable):
        party.link.commit(registration, {P0: 9})
    party.other.ask("ping", heard=0, done=0)
    assert party.told() == {"flights": {"1": 6}}
    party.link.auto_commit(registration, {P1: 7})
    party.other.stop(1)
    with pytest.raises(StoreUnavailable):
        party.link.acknowledge(registration, command("stop-0000000002"), {P1: 8})
    assert party.told() == {"flights": {"1": 8}}
    party.other.ask("ping", heard=0, done=0)
    assert party.told() == {}


def test_an_acknowledgement_is_complete_once_a_ping_confirms_it(party: Party) -> None:
    registration = party.registered()
    number = party.other.start(0, offset=-1)
    ((first,), _) = party.link.outstanding()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            party.link.acknowledge(registration, first, {P0: 3})
    assert len([event for event in party.other.said if isinstance(event, AnsweredRequest)]) == 1
    party.other.ask("ping", heard=0, done=number)
    assert party.link.acknowledge(registration, first, {P0: 3}) == frozenset()
    assert party.link.outstanding() == ((), ())


def test_a_lost_connection_suspends_the_session_and_the_next_one_resumes_it(party: Party) -> None:
    registration = party.registered()
    party.other.start(0, "start-0000000001")
    party.other.stop(1, "stop-0000000002")
    with pytest.raises(StoreUnavailable):
        party.link.acknowledge(registration, command("start-0000000001"), {})
    with pytest.raises(StoreUnavailable):
        party.link.acknowledge(registration, command("stop-0000000002"), {P1: 4})
    party.link.auto_commit(registration, {P0: 11})
    party.other.ask("ping", heard=0, done=0)
    party.link.lost()
    assert party.states[-1] is SessionState.SUSPENDED
    assert party.link.lease_deadline() > party.clock.monotonic()
    with pytest.raises(StoreUnavailable):
        party.link.commit(registration, {P0: 12})

    party.other = Other(party.link)
    resume = party.other.last(Asked)
    assert (resume.type, resume.frame["incarnation"], resume.frame["resume_key"]) == ("resume", 99, "mine")
    assert party.link.state is SessionState.SUSPENDED, "until the coordinator answers"
    party.clock.now += 1.0
    asked = party.clock.monotonic() - 1.0
    party.other.answer(outstanding=["stop-0000000002"])
    assert party.link.state is SessionState.CONNECTED
    assert party.link.lease_deadline() == pytest.approx(asked + TIMEOUT_S * (1 - SAFETY)), "since its resume"
    assert party.link.session_id == registration.session_id
    assert party.link.acknowledge(registration, command("start-0000000001"), {}) == frozenset(), "it was stored before"
    number = party.other.stop(1, "stop-0000000002")
    assert party.told() == {"flights": {"1": 4}}, "the answer must be repeated"
    party.other.ask("ping", heard=0, done=number)
    assert party.told() == {"flights": {"0": 11}}, "the earlier answer was not confirmed"
    assert party.link.acknowledge(registration, command("stop-0000000002"), {P1: 4}) == frozenset()


def test_a_command_carried_out_before_it_is_sent_again_is_answered_when_it_arrives(party: Party) -> None:
    registration = party.registered()
    party.other.start(0, "start-0000000001")
    party.link.lost()
    party.other = Other(party.link)
    party.other.answer(outstanding=["start-0000000001"])
    with pytest.raises(StoreUnavailable):
        party.link.acknowledge(registration, command("start-0000000001"), {P0: 3})
    assert not [event for event in party.other.said if isinstance(event, AnsweredRequest)]
    number = party.other.start(0, "start-0000000001")
    assert party.told() == {"flights": {"0": 3}}
    party.other.ask("ping", heard=0, done=number)
    assert party.link.acknowledge(registration, command("start-0000000001"), {P0: 3}) == frozenset()


def test_a_consumer_whose_resume_is_refused_registers_again(party: Party) -> None:
    registration = party.registered()
    party.link.lost()
    party.other = Other(party.link)
    party.other.refuse("membership-lost")
    assert party.states[-2:] == [SessionState.LOST, SessionState.CONNECTED]
    assert party.link.session_id != registration.session_id
    assert party.link.lease_deadline() == 0.0
    with pytest.raises(MembershipLost):
        party.link.commit(registration, {P0: 1})
    with pytest.raises(StoreUnavailable):
        party.link.register(VALUE)
    assert party.other.last(Asked).type == "register"


def test_a_consumer_whose_lease_has_expired_asks_whether_it_still_is_a_member(party: Party) -> None:
    registration = party.registered()
    party.link.lost()
    party.clock.now += TIMEOUT_S
    party.other = Other(party.link)
    assert party.other.last(Asked).type == "resume"
    assert party.link.state is SessionState.SUSPENDED
    assert party.link.session_id == registration.session_id


def test_a_consumer_that_abandons_its_membership_closes_the_connection(party: Party) -> None:
    registration = party.registered()
    party.link.abandon(registration)
    assert party.other.hung_up
    assert not party.link.is_registered(registration)
    party.other.ask("ping", heard=0, done=0)
    assert not any(isinstance(event, AnsweredRequest) for event in party.other.said), (
        "the consumer must send nothing more"
    )


def test_an_evicted_consumer_learns_of_its_eviction(party: Party) -> None:
    registration = party.registered()
    party.link.received({"v": 1, **party.other.rpc.refuse(0, "membership-lost", "evicted")})
    assert SessionState.LOST in party.states
    assert party.link.was_evicted(registration)
    assert not party.link.is_registered(registration)


@pytest.mark.parametrize(
    "frame",
    [
        {"v": 1, "id": 1, "type": "dance"},
        {"v": 1, "id": 2, "type": "ping"},
        {"v": 1, "id": 1, "type": "answer"},
        {"v": 1, "id": 1, "type": "ping", "heard": "yes"},
        {"v": 1, "id": 1, "type": "start-fetcher", "command": "start-1"},
        {"v": 1, "id": 1, "type": "error", "code": 3},
    ],
)
def test_an_invalid_frame_of_the_coordinator_raises_bad_frame(party: Party, frame: Frame) -> None:
    party.registered()
    with pytest.raises(BadFrame):
        party.link.received(frame)


def test_only_one_request_for_the_brokers_is_sent_at_a_time() -> None:
    told: list[int] = []
    party = Party(on_metadata=lambda metadata: told.append(metadata.instance))
    party.registered()
    party.link.ask_metadata()
    party.link.ask_metadata()
    assert [event.type for event in party.other.said] == ["register", "cluster-metadata"]
    party.other.answer(instance=3, brokers=[], instances=[], protocols={}, coordinator=None)
    assert told == [3]
    party.link.ask_metadata()
    party.other.refuse("unavailable")
    party.link.ask_metadata()
    assert [event.type for event in party.other.said].count("cluster-metadata") == 3


def test_a_ping_that_cannot_be_answered_ends_the_connection_without_an_error(party: Party) -> None:
    registration = party.registered()
    party.other.broken = True
    party.other.ask("ping", heard=0, done=0)
    assert party.other.hung_up
    with pytest.raises(StoreUnavailable, match="cannot send"):
        party.link.commit(registration, {P0: 1})
    party.link.lost()
    assert party.link.is_registered(registration)
