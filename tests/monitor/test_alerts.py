"""Tests of the alert rules and the dashboard in docs/monitoring that need no running instance."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitor.promtool import RULES, STORIES, dashboard_expressions, promtool

RUNBOOKS = Path(__file__).parents[2] / "docs" / "operations.md"


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def checked(*arguments: str) -> None:
    ran = subprocess.run([promtool(), *arguments], check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_has_a_severity_a_description_and_a_runbook(alert: dict[str, Any]) -> None:
    name, says = alert["alert"], alert["annotations"]
    assert alert["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    assert len(says["summary"]) < 100
    assert says["description"].endswith(".")
    assert says["runbook_url"] == f"docs/operations.md#{name.lower()}"
    assert f"#### {name}\n" in RUNBOOKS.read_text()


def test_the_runbooks_are_those_of_the_alerts() -> None:
    assert re.findall(r"^#### (KafkaCoord\w+)$", RUNBOOKS.read_text(), re.MULTILINE) == [a["alert"] for a in alerts()]


def test_every_alert_fires_in_one_of_the_scenarios() -> None:
    assert set(re.findall(r"alertname=\"(\w+)\"", STORIES.read_text())) == {alert["alert"] for alert in alerts()}


def test_promtool_confirms_every_scenario() -> None:
    checked("test", "rules", str(STORIES))


def test_promtool_accepts_the_rules_and_the_dashboards_expressions(tmp_path: Path) -> None:
    rules = [{"record": f"dashboard:{n}", "expr": one} for n, one in enumerate(dashboard_expressions())]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked("check", "rules", str(RULES), str(file))
