"""Tests of the input that waits for the gateway's thread, without I/O."""

from __future__ import annotations

from kafka_coord.frontends.socket.peer import ALLOWANCES, LARGE_BYTES, Inbox, Lane, Sender

SMALL, LARGE = 100, LARGE_BYTES + 1


def test_a_member_does_not_wait_behind_a_flood_of_strangers() -> None:
    inbox: Inbox[str] = Inbox()
    for number in range(5_000):
        inbox.put(Sender(), f"stranger {number}", SMALL, member=False)
    inbox.put(Sender(), "member", SMALL, member=True)
    taken = list(inbox.take())
    assert taken[0] == "member"
    assert len(taken) == 1 + ALLOWANCES[Lane.STRANGERS].items


def test_a_members_small_frames_do_not_wait_behind_large_ones() -> None:
    inbox: Inbox[str] = Inbox()
    for number in range(50):
        inbox.put(Sender(), f"stranger {number}", 1 << 20, member=False)
    inbox.put(Sender(), "member's large one", LARGE, member=True)
    inbox.put(Sender(), "member", SMALL, member=True)
    assert list(inbox.take()) == ["member", "member's large one", "stranger 0"]


def test_a_connections_input_keeps_its_order_when_it_becomes_a_member() -> None:
    inbox: Inbox[str] = Inbox()
    one = Sender()
    for _ in range(ALLOWANCES[Lane.STRANGERS].items):
        inbox.put(Sender(), "another", SMALL, member=False)
    inbox.put(one, "first", SMALL, member=False)
    inbox.put(one, "second", LARGE, member=False)
    inbox.put(one, "third", SMALL, member=True)
    taken = []
    while inbox:
        taken += [arrival for arrival in inbox.take() if arrival != "another"]
    assert taken == ["first", "second", "third"]
    inbox.put(one, "fourth", SMALL, member=True)
    inbox.put(Sender(), "another", SMALL, member=False)
    assert list(inbox.take()) == ["fourth", "another"], (
        "the sender has no waiting input as a stranger, so it is served as a member"
    )


def test_room_is_counted_in_bytes_and_strangers_do_not_use_that_of_members() -> None:
    inbox: Inbox[str] = Inbox()
    one, frames = Sender(), 0
    while inbox.has_room(Sender(), LARGE, member=False):
        inbox.put(Sender(), "large", 1 << 20, member=False)
        frames += 1
    assert frames == ALLOWANCES[Lane.STRANGERS_LARGE].waiting_bytes >> 20
    assert inbox.has_room(one, SMALL, member=False)
    assert inbox.has_room(one, LARGE, member=True)
    assert len(list(inbox.take())) == 1
    assert inbox.has_room(Sender(), LARGE, member=False)
