"""The pictures of the documents show the page as it is."""

from __future__ import annotations

from tests.monitor.dashboard.pictures import outdated


def test_the_pictures_are_current() -> None:
    assert [one.name for one in outdated()] == [], "run scripts/pictures"
