"""Fixtures of the chaos runs' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.conftest import logged_server
from tests.chaos.night import Night, clean_night, mixed_night, night_of_automatic_commits, night_of_clients

__all__ = ["logged_server"]


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """A clean night, to which the test may add a fault."""
    return clean_night(tmp_path, monkeypatch)


@pytest.fixture
def clients_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """A clean night of stock clients."""
    return night_of_clients(tmp_path, monkeypatch)


@pytest.fixture
def automatic_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """A clean night of a stock client that commits automatically."""
    return night_of_automatic_commits(tmp_path, monkeypatch)


@pytest.fixture
def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """A clean night with a stock client in a managed group."""
    return mixed_night(tmp_path, monkeypatch)
