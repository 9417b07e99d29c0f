"""Tests that assignors are found by entry point, and that one that cannot be loaded does not affect the others."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint

import pytest

from kafka_coord.coordinator import assignors as loading
from kafka_coord.coordinator.assignors import Assignor, StickyAssignor, load_assignors


class Working:
    def assign(self, inputs):
        raise NotImplementedError


class Failing:
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class NotOne:
    pass


def offered(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    found = [EntryPoint(name, value, loading.ENTRY_POINTS) for name, value in values.items()]
    monkeypatch.setattr(loading, "entry_points", lambda group: found if group == loading.ENTRY_POINTS else [])


def test_the_installed_package_has_entry_points_for_its_own_assignors():
    assert {"range", "roundrobin", "sticky", "weighted"} <= load_assignors().keys()
    assert all(isinstance(assignor, Assignor) for assignor in load_assignors().values())


def test_built_in_assignors_are_available_without_entry_points(monkeypatch):
    offered(monkeypatch)

    assert sorted(load_assignors()) == ["range", "roundrobin", "sticky", "weighted"]


def test_a_plug_in_is_found_by_its_entry_point(monkeypatch):
    offered(monkeypatch, mine=f"{__name__}:Working")

    assert isinstance(load_assignors()["mine"], Working)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no.such.module:Thing", "No module named"),
        (f"{__name__}:Nothing", "Nothing"),
        (f"{__name__}:Failing", "no licence"),
        (f"{__name__}:NotOne", "no assign()"),
    ],
)
def test_an_assignor_that_cannot_be_loaded_is_reported_and_left_out(monkeypatch, caplog, value, why):
    offered(monkeypatch, broken=value, mine=f"{__name__}:Working")

    with caplog.at_level(logging.WARNING):
        found = load_assignors()

    assert "broken" not in found
    assert "mine" in found
    assert "name=broken" in caplog.text
    assert why in caplog.text


def test_no_plug_in_replaces_a_built_in_assignor(monkeypatch, caplog):
    offered(monkeypatch, sticky=f"{__name__}:Working")

    with caplog.at_level(logging.WARNING):
        assert isinstance(load_assignors()["sticky"], StickyAssignor)
    assert "the name is taken" in caplog.text
