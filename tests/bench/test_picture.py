"""The page of a bench contains all results, and escapes them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from kafka_coord.dev.bench.picture import picture
from kafka_coord.dev.bench.report import Bar, BenchReport, Drawing, Setup, Table
from tests.cli.running import run

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>"


def report(*values: float) -> BenchReport:
    rows = [{"way": f"way {number}", "median_ms": value, "max_ms": 2 * value} for number, value in enumerate(values)]
    table = Table("latency", rows, [Drawing(("way",), "median_ms", "max_ms")])
    bars = [Bar("fast", "at most 5", "4", True), Bar("small", "no", "yes", False), Bar(HOSTILE, "1", "-", None)]
    return BenchReport("some", Setup.here(), {}, [table, Table("empty", [])], bars, [HOSTILE])


def widths(page: str) -> list[float]:
    svg = re.search(r"<svg.*?</svg>", page, re.DOTALL)
    assert svg is not None
    return [float(rect.attrib["width"]) for rect in ET.fromstring(svg[0]).iter("rect")]  # noqa: S314  our own


def test_bars_are_as_long_as_what_they_show():
    two, four = widths(picture(report(2, 4)))
    assert four == 2 * two
    small, middle, large = widths(picture(report(1, 10, 1_000)))
    assert 0 < small < middle < large < 10 * middle, "logarithms where lengths would vanish"


def test_the_page_contains_every_result_and_escapes_text():
    page = picture(report(2, 4))
    for told in ("latency", "way 1", "median ms", "met", "missed", "not measured", "at most 5"):
        assert told in page
    assert "<script" not in page
    assert page.count("<section") == 2, "bars and one table: an empty one is left out"


def test_a_bench_writes_its_page_to_the_given_path_or_reports_that_it_cannot(tmp_path: Path):
    where = tmp_path / "planner.html"
    asked = ("bench", "planner", "--smoke", "--size", "20x5", "--assignor", "sticky")
    assert run(*asked, "--html", str(where)).code == 0
    assert "kafka-coord bench planner" in where.read_text(encoding="utf-8")
    ran = run(*asked, "--html", str(tmp_path / "none" / "planner.html"))
    assert ran.code == 0
    assert "the page could not be written" in ran.err
    assert "MEDIAN-MS" in ran.out
