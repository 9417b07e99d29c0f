"""Scenarios that hold for an election on any ZooKeeper. They run on a single server, and on the ensemble in containers.

Each scenario gets a way to open stores below an empty chroot.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kafka_coord.errors import Fenced, MultiFailed, NodeExists, StoreUnavailable
from kafka_coord.model.json_fields import load
from kafka_coord.zk import layout
from kafka_coord.zk.election import Leadership, ZkElection
from kafka_coord.zk.fencing import write_fenced
from kafka_coord.zk.instance import InstanceRegistration
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Create, SessionState, SetData
from tests.waiting import eventually
from tests.zk.losing_replies import LosingReplies
from tests.zk.sessions import OpenStore, expire


class Candidate:
    """One instance that stands for election, and the store below it."""

    def __init__(self, open_store: OpenStore, broker_id: int, **arguments: Any) -> None:
        self.store: KazooStore = open_store(**arguments)
        self.store.ensure_path(layout.GROUPS)
        self.store.ensure_path(layout.COORDINATORS)
        self.lossy = LosingReplies(self.store)
        self.woken = threading.Event()
        self.broker_id = broker_id
        asked = (self.lossy, broker_id, {"channel": f"host-{broker_id}:9100"}, self.woken.set)
        self.instance = InstanceRegistration(*asked)  # type: ignore[arg-type]
        self.election = ZkElection(*asked)  # type: ignore[arg-type]

    def wins(self) -> Leadership:
        """Stands for election until it is elected."""
        return eventually(self.election.elect)

    def sees_no_leader(self) -> bool:
        """Reads the leader when woken, as an instance does, and returns whether there is none. The election itself may
        also wake a candidate, if the candidate's server lagged behind."""
        if not self.woken.wait(0.1):
            return False
        self.woken.clear()
        return self.election.leader() is None

    def writes(self, leadership: Leadership, path: str) -> None:
        write_fenced(self.store, leadership.fence, [[Create(path)]])

    def has_written(self, leadership: Leadership, path: str) -> bool:
        """Tries to write while connections break. Returns ``True`` once the znode is written."""
        try:
            self.writes(leadership, path)
        except StoreUnavailable:
            return False
        except MultiFailed as error:
            if not isinstance(error.cause, NodeExists):
                raise
        return True


def candidates(open_store: OpenStore, count: int = 3) -> list[Candidate]:
    return [Candidate(open_store, broker_id) for broker_id in range(1, count + 1)]


def one_of_three_candidates_is_elected_and_the_others_know_it(open_store: OpenStore) -> None:
    three = candidates(open_store)

    won = [candidate.election.elect() for candidate in three]

    assert [leadership is not None for leadership in won] == [True, False, False]
    assert [candidate.election.still_leads() for candidate in three] == [True, False, False]
    for candidate in three:
        leader = eventually(candidate.election.leader)
        assert (leader.broker_id, leader.epoch, leader.endpoints) == (1, 1, {"channel": "host-1:9100"})
    written = load(three[0].store.get(layout.COORDINATOR).data, layout.COORDINATOR)
    assert sorted(written) == ["brokerid", "endpoints", "epoch", "timestamp", "version"]
    assert three[0].store.get(layout.COORDINATOR_EPOCH).data == b"1"


def of_many_simultaneous_candidates_exactly_one_is_elected(open_store: OpenStore) -> None:
    many = candidates(open_store, 6)
    start = threading.Barrier(len(many))
    won: list[Leadership | None] = []

    def stand(candidate: Candidate) -> None:
        start.wait()
        won.append(candidate.election.elect())

    threads = [threading.Thread(target=stand, args=(candidate,)) for candidate in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len([leadership for leadership in won if leadership]) == 1
    assert len([candidate for candidate in many if candidate.election.still_leads()]) == 1


def a_resignation_wakes_the_others_and_the_next_is_elected_at_once(open_store: OpenStore) -> None:
    first, second, _ = three = candidates(open_store)
    old = first.wins()
    for candidate in three[1:]:
        assert candidate.election.elect() is None
    session_id = first.store.session.session_id

    first.election.resign()

    for candidate in three[1:]:
        eventually(candidate.sees_no_leader, within_s=20)
    new = second.wins()
    assert first.store.session.session_id == session_id, "a resignation must not end the session"
    assert new.epoch == old.epoch + 1
    assert not first.election.still_leads()
    with pytest.raises(Fenced):
        first.writes(old, "/consumers/by-the-old-one")
    second.writes(new, "/consumers/by-the-new-one")


def a_leader_whose_session_ends_is_replaced_and_notices(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    old = first.wins()
    assert second.election.elect() is None

    expire(first.store)

    new = second.wins()
    assert new.epoch == old.epoch + 1
    assert not first.election.still_leads()
    eventually(lambda: first.store.session.state is SessionState.CONNECTED)
    assert not first.election.still_leads()
    assert not first.election.is_mine()
    first.election.step()
    assert first.election.elect() is None
    leader = first.election.leader()
    assert leader is not None
    assert leader.broker_id == 2


def an_election_whose_reply_was_lost_is_confirmed_by_reading(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    first.lossy.lose_after("multi")
    with pytest.raises(StoreUnavailable):
        first.election.elect()
    assert not first.election.still_leads()

    found = first.election.elect()

    assert found is not None
    assert found.epoch == 1
    assert first.election.still_leads()
    assert second.election.elect() is None
    first.writes(found, "/consumers/by-the-winner")


def a_candidate_whose_request_was_lost_tries_again(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    first.lossy.lose_before("multi")
    with pytest.raises(StoreUnavailable):
        first.election.elect()

    won = second.wins()

    assert won.epoch == 1
    assert first.election.elect() is None
    second.election.resign()
    assert first.wins().epoch == 2


def a_lost_reply_is_resolved_even_if_reading_back_fails_first(open_store: OpenStore) -> None:
    (first,) = candidates(open_store, 1)
    first.lossy.lose_after("multi")
    with pytest.raises(StoreUnavailable):
        first.election.elect()
    for read in ("sync", "get"):
        first.lossy.lose_before(read)
        with pytest.raises(StoreUnavailable):
            first.election.elect()

    assert first.wins().epoch == 1


def a_resignation_whose_reply_was_lost_is_completed(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    for lose in (first.lossy.lose_after, first.lossy.lose_before):
        first.wins()
        lose("multi")
        first.election.resign()
        second.store.sync()  # in an ensemble, the candidates may be connected to different servers
        assert second.store.exists(layout.COORDINATOR) is None
        assert first.election.leader() is None


def a_resignation_never_deletes_a_successor(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    first.wins()
    second.store.delete(layout.COORDINATOR)  # as an operator would, by hand
    new = second.wins()

    first.election.resign()

    assert second.election.is_mine()
    second.writes(new, "/consumers/still-mine")


def a_successor_elected_between_a_resignations_read_and_its_delete_keeps_the_leadership(open_store: OpenStore) -> None:
    """The successor's znode has the same path and version as the one that was read. Only the epoch differs."""
    first, second = candidates(open_store, 2)
    old = first.wins()

    def is_replaced() -> None:
        second.store.delete(layout.COORDINATOR)
        second.wins()

    for known in (None, old):  # without and with knowledge of the own leadership
        first.lossy.delay("multi", is_replaced)

        first.election.resign(known)

        second.store.sync()
        assert second.election.is_mine()
        second.election.resign()
        old = first.wins()


def a_successor_elected_while_an_unconfirmed_election_is_given_up_keeps_the_leadership(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)

    def is_replaced() -> None:
        second.store.delete(layout.COORDINATOR)
        second.wins()

    for at in ("get", "multi"):  # before the epoch is read, and before the delete
        first.wins()
        # now the znode of this session contains an epoch that is not the stored one
        first.store.set(layout.COORDINATOR_EPOCH, b"9")
        first.election.forget()
        first.lossy.delay(at, is_replaced)

        assert first.election.elect() is None

        second.store.sync()
        assert second.election.is_mine()
        second.election.resign()


def a_restarted_instance_is_elected_after_its_old_session_ends(open_store: OpenStore) -> None:
    before = Candidate(open_store, 1)
    before.wins()
    after = Candidate(open_store, 1)  # the same broker after a restart, while its old session still exists

    assert after.election.elect() is None
    assert not after.election.still_leads()
    before.store.close()

    eventually(after.sees_no_leader)
    assert after.wins().epoch == 2


def epochs_grow_by_one_and_never_repeat(open_store: OpenStore) -> None:
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    three = candidates(open_store)
    epochs: list[int] = []
    for _ in range(12):
        candidate = dice.choice(three)
        match dice.choice(["win", "lose reply", "lose request"]):
            case "lose reply":
                candidate.lossy.lose_after("multi")
            case "lose request":
                candidate.lossy.lose_before("multi")
        leadership = None
        while leadership is None:
            try:
                leadership = candidate.election.elect()
            except StoreUnavailable:
                continue
        epochs.append(leadership.epoch)
        assert [c.election.still_leads() for c in three].count(True) == 1, f"seed {seed}"
        candidate.election.resign()
    assert epochs == list(range(1, 13)), f"seed {seed}"


def deleting_the_leaders_znode_ends_its_leadership(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    first.wins()
    second.store.delete(layout.COORDINATOR)

    def noticed() -> bool:
        first.election.step()
        return not first.election.still_leads()

    eventually(noticed)
    assert not first.election.is_mine()


def an_earlier_election_of_the_same_session_is_resumed(open_store: OpenStore) -> None:
    (first,) = candidates(open_store, 1)
    won = first.wins()
    first.election.forget()
    assert not first.election.still_leads()
    assert first.election.elect() == won


def an_own_znode_with_another_epoch_than_the_stored_one_is_given_up(open_store: OpenStore) -> None:
    (first,) = candidates(open_store, 1)
    first.wins()
    first.store.set(layout.COORDINATOR_EPOCH, b"9")  # as if an operator had increased it
    first.election.forget()

    assert first.wins().epoch == 10


def no_candidate_is_elected_while_the_epoch_is_unreadable(open_store: OpenStore) -> None:
    (first,) = candidates(open_store, 1)
    for garbage in (b"", b"seven", b"-1", b"1e9", b"99999999999", b"\xff\xfe", b"\xd9\xa1"):
        first.store.ensure_path(layout.COORDINATOR_EPOCH)
        first.store.set(layout.COORDINATOR_EPOCH, garbage)
        assert first.election.elect() is None
        assert first.store.exists(layout.COORDINATOR) is None
        assert first.store.get(layout.COORDINATOR_EPOCH).data == garbage  # the znode is left unchanged

    first.store.set(layout.COORDINATOR_EPOCH, b"41\n")

    assert first.wins().epoch == 42


def a_missing_epoch_continues_from_the_highest_written_one(open_store: OpenStore) -> None:
    (first,) = candidates(open_store, 1)
    for group, assignment in (("a", b'{"version":1,"epoch":7}'), ("b", b"garbage"), ("c", b'{"version":1,"epoch":3}')):
        first.store.ensure_path(layout.assignment(group))
        first.store.set(layout.assignment(group), assignment)
    first.store.ensure_path(layout.group("none-written"))

    assert first.wins().epoch == 8


def an_unreadable_leader_is_reported_and_replaced_after_its_session_ends(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    second.store.create(layout.COORDINATOR, b'{"version":99}', ephemeral=True)

    assert first.election.elect() is None
    assert first.election.leader() is None
    second.store.delete(layout.COORDINATOR)

    assert first.wins().epoch == 1


def a_persistent_coordinator_znode_is_reported_and_left_unchanged(open_store: OpenStore) -> None:
    (first,) = candidates(open_store, 1)
    first.store.create(layout.COORDINATOR, b"")
    assert first.election.elect() is None
    assert first.election.elect() is None
    assert first.store.exists(layout.COORDINATOR) is not None
    first.store.delete(layout.COORDINATOR)
    assert first.wins().epoch == 1


def writes_of_an_earlier_epoch_are_refused(open_store: OpenStore) -> None:
    first, second = candidates(open_store, 2)
    old = first.wins()
    first.writes(old, "/consumers/before")
    expire(first.store)
    second.wins()

    def is_written() -> bool:
        with suppress(StoreUnavailable):  # while the first one connects again
            write_fenced(first.store, old.fence, [[SetData("/consumers/before", b"too late")]])
            return True
        return False

    with pytest.raises(Fenced):
        eventually(is_written)

    assert second.store.get("/consumers/before").data == b""


SCENARIOS: tuple[Callable[[OpenStore], None], ...] = (
    one_of_three_candidates_is_elected_and_the_others_know_it,
    of_many_simultaneous_candidates_exactly_one_is_elected,
    a_resignation_wakes_the_others_and_the_next_is_elected_at_once,
    a_leader_whose_session_ends_is_replaced_and_notices,
    an_election_whose_reply_was_lost_is_confirmed_by_reading,
    a_candidate_whose_request_was_lost_tries_again,
    a_lost_reply_is_resolved_even_if_reading_back_fails_first,
    a_resignation_whose_reply_was_lost_is_completed,
    a_resignation_never_deletes_a_successor,
    a_successor_elected_between_a_resignations_read_and_its_delete_keeps_the_leadership,
    a_successor_elected_while_an_unconfirmed_election_is_given_up_keeps_the_leadership,
    a_restarted_instance_is_elected_after_its_old_session_ends,
    epochs_grow_by_one_and_never_repeat,
    deleting_the_leaders_znode_ends_its_leadership,
    an_earlier_election_of_the_same_session_is_resumed,
    an_own_znode_with_another_epoch_than_the_stored_one_is_given_up,
    no_candidate_is_elected_while_the_epoch_is_unreadable,
    a_missing_epoch_continues_from_the_highest_written_one,
    an_unreadable_leader_is_reported_and_replaced_after_its_session_ends,
    a_persistent_coordinator_znode_is_reported_and_left_unchanged,
    writes_of_an_earlier_epoch_are_refused,
)
