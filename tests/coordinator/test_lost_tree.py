"""Tests of a world whose tree is lost and restored, and that it finds what is planted in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from kafka_coord.groups import restore
from kafka_coord.model import Hold
from tests.coordinator.lost_tree import broken

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_nothing_is_skipped_read_by_two_or_read_again_though_committed() -> None:
    assert next(broken(range(40)), "") == ""


def name_ends_a_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hold, "is_over", lambda _self, member: member is not None)


def nothing_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restore, "held_in_the_end", lambda _ledgers, _earlier: {})


def backup_from_under_an_instance_counts_as_the_end(patch: pytest.MonkeyPatch) -> None:
    original = restore.plan_restore

    def plan(backup: Any, *args: Any, **more: Any) -> Any:
        return original(backup._replace(header=structs.replace(backup.header, is_still=True)), *args, **more)

    patch.setattr("tests.coordinator.lost_tree.plan_restore", plan)


def czxid_counts_as_an_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restore, "is_topic_id", bool)


def newer_offset(patch: pytest.MonkeyPatch) -> None:
    original = restore._group

    def group(*args: Any) -> Any:
        found = original(*args)
        newer = {
            path: str(int(data) + 1).encode() if restore.is_offset(path) else data for path, data in found[1].items()
        }
        return found._replace(znodes=newer)

    patch.setattr(restore, "_group", group)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (name_ends_a_hold, "is read by"),
        (nothing_is_held, "is read by"),
        (backup_from_under_an_instance_counts_as_the_end, "is read by"),
        (czxid_counts_as_an_id, "nobody knows of which topic"),
        (newer_offset, "and skips"),
    ],
)
def test_what_is_planted_is_found(plant: Plant, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    assert rule in next(broken(range(300)), "")
