"""Every command that reads, on a tree in which others have written odd values: none may end with "this is a bug"."""

from __future__ import annotations

import json
import random

import pytest

from kafka_coord.zk import layout
from tests.cli.running import Run
from tests.monitor.written import Tree

READING = (
    ("groups", "list"),
    ("groups", "describe", "delays"),
    ("groups", "describe", "delays", "--members"),
    ("groups", "history", "delays"),
    ("groups", "history", "delays", "--actions"),
    ("groups", "settings", "delays"),
    ("coordinator", "status"),
    ("coordinator", "history"),
    ("coordinator", "requests"),
)
ODD_TEXTS = ("", " ", "\n", "\x00", "a" * 64, "x..y", "\ud800", "ü" * 300, "-1", "../..", "[::1", "%s", "\x1b[31m")
ODD_NUMBERS = (-1, 0, 2**31, 2**63 - 1, -(2**63), 2**70, 1e308, True, None)
UNEXPECTED = 1
UNKNOWN = 2
"""A command or an option that does not exist."""


@pytest.fixture
def written(tree: Tree) -> Tree:
    tree.value(layout.broker(1), {"version": 5, "endpoints": ["PLAINTEXT://127.0.0.1:9"], "rack": "a"})
    tree.coordinator(1)
    tree.topic("flights", 2)
    tree.group("delays")
    tree.member("delays", "c1")
    tree.put(layout.registration("delays", "c2"), tree.store.get(layout.registration("delays", "c1")).data)
    tree.target("delays", {"c1": "0-1", "c2": ""})
    tree.ledger("delays", "c1", "0-1")
    tree.offset("delays", "flights", 0, 5)
    decision = {
        "generation": 3, "epoch": 7, "causes": ["member-left"], "reason": "x", "assignor": "sticky",
        "decided_at_ms": 1_732_060_800_000, "settled_ms": 5, "moves": {"c1": {"gained": "flights[0]"}},
    }  # fmt: skip
    action = {"kind": "reset-offsets", "by": "a", "at_ms": 1_732_060_800_000, "change": "to-earliest: flights 0: 9 → 0"}
    tree.value(layout.history("delays"), {"version": 1, "decisions": [decision], "actions": [action]})
    tree.value(layout.paused("delays"), {
        "version": 1, "by": "a", "reason": "b", "since_ms": 1_732_060_800_000,
    })  # fmt: skip
    tree.value(f"{layout.REQUESTS}/request-0000000001", {"version": 1, "type": "rebalance", "group": "delays"})
    tree.put(layout.channel("delays", "c2"))
    return tree


def odd(value: object, chance: random.Random) -> object:
    """Returns the value with one part made odd."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        return {**value, name: odd(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], odd(value[at], chance), *value[at + 1 :]]
    if isinstance(value, str) and "://" in value and chance.random() < 0.7:
        return value.replace("127.0.0.1", chance.choice(ODD_TEXTS))
    return chance.choice([*ODD_TEXTS, *ODD_NUMBERS, [], {}, [[]], {"": None}])


def znodes(tree: Tree) -> list[str]:
    found, queue = [], [layout.BROKER_IDS, layout.BROKER_TOPICS, "/consumers"]
    while queue:
        path = queue.pop()
        found.append(path)
        queue += [f"{path}/{name}" for name in tree.store.children(path)]
    return sorted(found)


@pytest.mark.parametrize("seed", range(4))
def test_an_odd_value_ends_no_command(written: Tree, coord: Run, seed: int) -> None:
    chance = random.Random(seed)
    paths = znodes(written)
    told = []
    for turn in range(5):
        for path in chance.sample(paths, 3):
            before = written.store.get(path)
            try:
                made = odd(json.loads(before.data), chance)
                data = json.dumps(made).encode()
            except ValueError:
                data = chance.choice([b"", b"\xff\xfe", b"null", b"[]", b"99999999999999999999", chance.randbytes(40)])
            written.store.set(path, data)
            told.append((path, data))
        for command in chance.sample(READING, 4) if turn else (("doctor",),):
            ran = coord(*command)
            assert ran.code not in {UNEXPECTED, UNKNOWN}, (command, ran.err, told)
            assert "this is a bug" not in ran.err + ran.out, (command, ran.out, told)
