"""Tests of how the histories tell what was done: one command is one line, and unchanged offsets are no news."""

from __future__ import annotations

from kafka_coord.groups.group import ActionDocument
from kafka_coord.model import Action, TopicPartition
from kafka_coord.model.histories import (
    MAX_ACTIONS,
    MAX_CLUSTER_ACTIONS_BYTES,
    ONE_COMMAND_MS,
    about_group,
    changes_nothing,
    encoded_actions,
    kept,
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
