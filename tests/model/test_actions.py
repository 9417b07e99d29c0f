"""Tests of how the histories tell what was done: one command is one line, and unchanged offsets are no news."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.errors import RequestRefused
from kafka_coord.groups.group import ActionDocument
from kafka_coord.groups.reset import offsets_to_undo
from kafka_coord.model import Action, TopicPartition
from kafka_coord.model.histories import (
    MAX_ACTIONS,
    MAX_CLUSTER_ACTIONS_BYTES,
    ONE_COMMAND_MS,
    about_group,
    changes_nothing,
    encoded_actions,
    kept,
    offsets_before,
    offsets_change,
)

NOON_MS = 1_769_860_800_000


def reset(group: str, at_ms: int = NOON_MS, reason: str = "bug 17") -> Action:
    return Action("reset-offsets", "alice@host", at_ms, reason, about_group(group, "to-latest: flights 0: 8 → 9"))


def test_unchanged_offsets_are_only_counted() -> None:
    flights = [TopicPartition("flights", number) for number in range(4)]
    before = {flights[0]: 8, flights[1]: 5, flights[2]: 5}
    after = {flights[0]: 0, flights[1]: 5, flights[2]: 5, flights[3]: 0}
    assert offsets_change(before, after) == "flights 0: 8 → 0, 3: - → 0; 2 unchanged"
    same = offsets_change(before, before)
    assert (same, changes_nothing(f"to-current: {same}")) == ("3 unchanged", True)
    assert not changes_nothing(offsets_change(before, after))
    assert not changes_nothing("")


Offsets = st.dictionaries(
    st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,9}", fullmatch=True), st.integers(0, 20)),
    st.integers(0, 1 << 62),
    max_size=9,
)


@pytest.mark.parametrize("rule", ["", "to-earliest: ", "from-group x: flights 0: 1 → 2; a: "])
@given(before=Offsets, changed=Offsets)
def test_the_offsets_before_a_change_are_read_back(
    rule: str, before: dict[TopicPartition, int], changed: dict[TopicPartition, int]
) -> None:
    differ = {tp: before.get(tp) for tp, offset in changed.items() if before.get(tp) != offset}
    assert offsets_before(rule + offsets_change(before, changed)) == differ or not changed


def test_a_change_that_is_cut_does_not_tell_the_offsets_before() -> None:
    many = {TopicPartition("flights", number): 1_000_000 + number for number in range(200)}
    change = Action("reset-offsets", change=offsets_change(many, dict.fromkeys(many, 0))).change
    assert offsets_before(change) is None
    with pytest.raises(RequestRefused, match="does not tell all offsets before the reset-offsets by alice"):
        offsets_to_undo("delays", [reset("delays"), Action("reset-offsets", "alice", NOON_MS + 1, change=change)])


def test_the_last_change_that_changed_an_offset_is_undone() -> None:
    def act(at_ms: int, kind: str, change: str) -> Action:
        return Action(kind, "alice", at_ms, change=change)

    done = [
        act(1, "reset-offsets", "to-earliest: flights 0: 8 → 0, 1: - → 0"),
        act(2, "reset-offsets", "to-current: 2 unchanged"),
        act(3, "pause", ""),
    ]
    assert offsets_to_undo("delays", done) == {TopicPartition("flights", 0): 8}
    done.append(act(4, "delete-offsets", "flights 1: 7 → -"))
    assert offsets_to_undo("delays", done) == {TopicPartition("flights", 1): 7}
    with pytest.raises(RequestRefused, match="has no change to its offsets"):
        offsets_to_undo("delays", done[1:3])
    with pytest.raises(RequestRefused, match="had no offsets before"):
        offsets_to_undo("delays", [act(5, "reset-offsets", "to-latest: flights 0: - → 5")])


def test_one_command_on_many_groups_is_one_line_that_unfolds() -> None:
    actions = [reset(f"g {n}", NOON_MS + n * 300) for n in range(200)]
    actions.insert(100, Action("pause --all", "bob@host", NOON_MS + 30_050, "upgrade"))
    one, other = ActionDocument.of_cluster(actions)
    assert (one.action, one.change) == ("reset-offsets", "200 groups: g 0, g 1, g 2, g 3, g 4 and 195 more")
    assert [(part.group, part.change) for part in one.unfolded[:2]] == [
        ("g 0", "to-latest: flights 0: 8 → 9"),
        ("g 1", "to-latest: flights 0: 8 → 9"),
    ]
    assert len(one.unfolded) == 200
    assert (other.action, other.unfolded) == ("pause --all", [other])


def test_two_commands_are_two_lines() -> None:
    for actions in (
        [reset("a"), reset("a", NOON_MS + 1)],
        [reset("a"), reset("b", NOON_MS + ONE_COMMAND_MS + 1)],
        [reset("a"), reset("b", reason="bug 18")],
        [Action("resign", "alice@host", NOON_MS), Action("resign", "alice@host", NOON_MS + 1)],
    ):
        assert len(ActionDocument.of_cluster(actions)) == 2


def test_a_command_on_many_groups_does_not_push_others_out_of_the_history() -> None:
    first = Action("resign", "bob@host", NOON_MS - 1)
    many = [reset(f"group-{n}", NOON_MS + n) for n in range(500)]
    assert kept([first, *many]) == (first, *many)
    alone = [Action("resign", "bob@host", NOON_MS + n) for n in range(MAX_ACTIONS + 1)]
    assert kept(alone) == tuple(alone[1:])
    long = [reset("g" * 400 + str(n), NOON_MS + n) for n in range(1_000)]
    last = kept(long)
    assert sum(map(len, encoded_actions(last))) <= MAX_CLUSTER_ACTIONS_BYTES < 2 * sum(map(len, encoded_actions(last)))
    assert last[-1] == long[-1]
