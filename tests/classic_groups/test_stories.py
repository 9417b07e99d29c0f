"""Plays the stories of the state machine of a client-assigned group."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import stories
from tests.classic_groups.played import Played


@stories.of(*sorted(Path(__file__).parent.glob("*.story")))
def test_the_group_does_what_the_story_says(story: stories.Story, pytestconfig: pytest.Config) -> None:
    story.check(Played(), pytestconfig)
