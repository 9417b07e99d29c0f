"""Prometheus's own checks, if its program is installed, and the files in docs/monitoring that the checks read."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
RULES, DASHBOARD = FOLDER / "alerts.yml", FOLDER / "dashboard.json"
STORIES = Path(__file__).with_name("alerts_test.yml")


def promtool() -> str:
    """The path of promtool. Without it, skips the test, or fails it if ``KAFKA_COORD_REQUIRE_PROMTOOL`` is set."""
    found = shutil.which("promtool")
    if found is None:
        say = pytest.fail if os.environ.get("KAFKA_COORD_REQUIRE_PROMTOOL") else pytest.skip
        say("promtool is not installed: apt-get install prometheus")
    assert found is not None
    return found


def dashboard_expressions() -> list[str]:
    """All queries of the dashboard, with values for Grafana's variables."""
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [one["expr"] for one in dashboard["annotations"]["list"]]
    return [re.sub(r"\$__(rate_)?interval", "2m", one).replace("$job", "kafka-coord") for one in asked]
