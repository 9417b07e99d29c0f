"""Tests of the gateway, frame by frame: input that arrives at awkward moments is handled for the right member."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kafka_coord.channel.frames import AnsweredRequest, Asked, Event, RefusedRequest, Rpc
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.frontends.socket.gateway import Gateway
from kafka_coord.model import StartFetcher, StartPoint, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.election import ZkElection
from tests.coordinator.harness import World
from tests.frontends.harness import HandConsumer, SocketInstance
from tests.frontends.simulated import HeldLeadership, Peer
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

Instances = Callable[..., SocketInstance]
Connect = Callable[[SocketInstance], HandConsumer]


class Asking:
    """A gateway, and a client whose frames the test sends one by one."""

    def __init__(self, world: World) -> None:
        self.leadership_view = HeldLeadership()
        self.election = ZkElection(world.store, 1, {"channel": "127.0.0.1:1"}, lambda: None)
        self.gateway = Gateway(world.store, 1, self.leadership_view, lambda: None)
        self.connect()

    def connect(self) -> None:
        """Starts over on a new connection."""
        self.peer = Peer()
        self.rpc = Rpc()
        self.connection = self.gateway.accepted(self.peer)

    def ask(self) -> None:
        wanted = {"subscription": {"flights": 1}, "session_timeout_ms": 10_000, "client": "by hand", "resume_key": "k"}
        _, frame = self.rpc.ask("register", {"group": "delays", "consumer_id": "s1", **wanted})
        self.gateway.received(self.connection, {"v": 1, **frame})

    def heard(self) -> Event:
        """The next frame that the gateway sent."""
        return self.rpc.take({"v": 1, **self.peer.sent.pop(0)})

    def answer(self) -> AnsweredRequest | RefusedRequest:
        event = self.heard()
        assert isinstance(event, (AnsweredRequest, RefusedRequest))
        assert not self.peer.sent
        return event

    def obey(self, asked: Event) -> None:
        self.gateway.received(self.connection, {"v": 1, **self.rpc.answer(asked.id, {"offsets": {}})})

    def step_until_asked(self, wanted: str) -> Asked:
        """Steps until the request ``wanted`` arrives. Leaves pings unanswered."""

        def look() -> Asked | None:
            self.gateway.step()
            events = [self.heard() for _ in range(len(self.peer.sent))]
            return next((e for e in events if isinstance(e, Asked) and e.type == wanted), None)

        return eventually(look)


@pytest.fixture
def asking(world: World) -> Asking:
    for path in layout.PERSISTENT_ROOTS:
        world.store.ensure_path(path)
    return Asking(world)


def test_a_registration_before_the_term_begins_is_answered_once_it_has_begun(asking: Asking) -> None:
    asking.leadership_view.held = asking.election.elect()
    asking.ask()
    assert asking.peer.sent == []
    asking.gateway.step()
    answer = asking.answer()
    assert isinstance(answer, AnsweredRequest)
    assert answer.frame["epoch"] == 1
    assert asking.gateway.consumers == 1


def test_a_registration_is_refused_if_the_term_that_it_waits_for_never_begins(asking: Asking) -> None:
    asking.leadership_view.held = asking.election.elect()
    asking.ask()
    asking.leadership_view.held = None
    asking.gateway.step()
    answer = asking.answer()
    assert isinstance(answer, RefusedRequest)
    assert answer.code == "not-coordinator"
    assert asking.peer.closed


def test_a_client_that_disconnects_before_the_term_begins_is_not_registered(asking: Asking) -> None:
    asking.leadership_view.held = asking.election.elect()
    asking.ask()
    asking.gateway.lost(asking.connection)
    asking.gateway.step()
    assert asking.peer.sent == []
    assert asking.gateway.consumers == 0


def test_a_second_registration_ends_the_connection_even_while_the_first_is_waiting(asking: Asking) -> None:
    asking.leadership_view.held = asking.election.elect()
    asking.ask()
    asking.ask()
    asking.gateway.step()
    assert [frame["code"] for frame in asking.peer.sent] == ["unexpected-message"]
    assert asking.peer.closed
    assert asking.gateway.consumers == 0


def test_an_acknowledgement_of_the_previous_member_does_not_affect_a_registration_in_the_same_step(
    world: World, asking: Asking
) -> None:
    """The acknowledgement of the previous member fails: that member's membership ends, and the new one's continues
    (seed 1028)."""
    asking.leadership_view.held = asking.election.elect()

    def registered() -> int:
        asking.ask()
        asking.gateway.step()
        answer = asking.answer()
        assert isinstance(answer, AnsweredRequest)
        return answer.frame["incarnation"]

    def command(incarnation: int, partition: int) -> None:
        starts = {TopicPartition("flights", partition): StartPoint(0)}
        value = fields.dump(StartFetcher(1, 1, incarnation, starts, "by hand").to_json())
        world.store.create(layout.command("delays", "s1", "start-"), value, sequence=True)

    command(registered(), 0)
    start = asking.step_until_asked("start-fetcher")
    asking.obey(start)
    asking.gateway.lost(asking.connection)
    asking.connect()
    incarnation = registered()
    asking.gateway.step()
    command(incarnation, 1)

    assert asking.step_until_asked("start-fetcher").frame["partitions"] == {
        "flights": {"1": {"offset": 0, "stream": 0}}
    }


def test_consumers_can_register_while_the_coordinator_still_starts(
    instance: Instances, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, startup = threading.Event(), ConsumerCoordinator.coordinator_startup

    def slowly(coordinator: ConsumerCoordinator) -> None:
        assert started.wait(10)
        startup(coordinator)

    monkeypatch.setattr(ConsumerCoordinator, "coordinator_startup", slowly)
    elected = instance()
    elected.start()
    eventually(lambda: elected.service.elected)
    s1 = connect(elected)
    assert isinstance(s1.register(), AnsweredRequest)
    assert not elected.service.leads
    started.set()
    assert s1.next_command().type == "start-fetcher"
