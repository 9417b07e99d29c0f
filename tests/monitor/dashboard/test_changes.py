"""Tests of the changes of documents, applied like the page applies them."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Struct, UnsetType, json

from kafka_coord.monitor.dashboard.live import changes
from tests.monitor.dashboard.served import applied

VALUES = st.recursive(
    st.none() | st.integers(2, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(VALUES, VALUES)
def test_the_changes_turn_the_old_document_into_the_new_one(old: Any, new: Any) -> None:
    assert applied(copy.deepcopy(old), copy.deepcopy(changes(old, new))) == new


class Span(Struct, array_like=True):
    start: int


class Node(Struct):
    value: int | UnsetType
    spans: list[Span]
    children: list[Node]


NODES = st.recursive(
    st.builds(Node, st.just(UNSET), st.just([]), st.just([])),
    lambda inner: st.builds(
        Node,
        st.integers(2, 4) | st.just(UNSET),
        st.lists(st.builds(Span, st.integers(2, 4)), max_size=2),
        st.lists(inner, max_size=3),
    ),
    max_leaves=8,
)


@given(NODES, NODES)
def test_the_changes_of_a_typed_document_are_those_of_what_is_encoded(old: Node, new: Node) -> None:
    before, after, told = (json.decode(json.encode(one)) for one in (old, new, changes(old, new)))
    assert applied(before, told) == after


def test_one_changed_number_in_a_large_document_is_one_small_change() -> None:
    old = {"rows": [{"group": f"g{at}", "lag": 0} for at in range(1_000)], "samples": [[1, 2]]}
    new = copy.deepcopy(old)
    new["rows"][7]["lag"] = 5
    new["samples"].append([3, 4])
    assert changes(old, new) == [[["rows", 7, "lag"], 5], [["samples"], [[3, 4]], "append"]]
    assert changes(old, old) == []
