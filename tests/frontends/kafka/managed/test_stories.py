"""Plays the stories of the members of managed groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import stories
from tests.frontends.kafka.managed.played import Managed


@stories.of(*sorted(Path(__file__).parent.glob("*.story")))
def test_the_members_get_what_the_story_says(story: stories.Story, pytestconfig: pytest.Config) -> None:
    story.check(Managed(), pytestconfig)
