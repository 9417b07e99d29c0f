"""Tests of the findings about certificates, and of certificates that need none."""

from __future__ import annotations

import pytest

from kafka_coord.monitor.doctor.certificates import Reported, certificates_in, findings
from kafka_coord.monitor.doctor.findings import Severity

NOW_MS = 1_800_000_000_000
DAY_S = 86_400


@pytest.mark.parametrize(
    ("ends_in_s", "unusable", "severities", "words"),
    [
        (15 * DAY_S, False, [Severity.OK], "none ends within 14 d"),
        (13 * DAY_S, False, [Severity.WARNING], "instance 2: the certificate of its channel listener ends in 13 d"),
        (-60, False, [Severity.ERROR], "ended 60 s ago"),
        (90 * DAY_S, True, [Severity.WARNING], "files that cannot be used, so the earlier one stays"),
        (DAY_S, True, [Severity.WARNING, Severity.WARNING], "ends in 24 h"),
    ],
)
def test_a_certificate_is_reported_when_it_ends_soon_or_cannot_be_renewed(
    ends_in_s: int, unusable: bool, severities: list[Severity], words: str
) -> None:
    found = list(findings({2: (Reported("channel", NOW_MS / 1000 + ends_in_s, unusable),)}, NOW_MS))
    assert [one.severity for one in found] == severities
    assert words in found[0].what
    assert all(one.todo for one in found if one.severity is not Severity.OK)


def test_without_certificates_there_is_no_finding() -> None:
    assert list(findings({1: (), 2: ()}, NOW_MS)) == []


def test_the_page_of_metrics_is_read_and_odd_lines_are_left_out() -> None:
    page = """# TYPE kafka_coord_certificate_ends_seconds gauge
kafka_coord_certificate_ends_seconds{endpoint="http"} 1.8e+09
kafka_coord_certificate_ends_seconds{endpoint="kafka"} NaN
kafka_coord_certificate_ends_seconds{endpoint="odd"} x
kafka_coord_certificate_ends_seconds{endpoint="far"} 1e300
kafka_coord_certificate_unusable{endpoint="http"} 1.0
kafka_coord_certificate_unusable{endpoint="alone"} 1.0
"""
    assert certificates_in(page) == (Reported("http", 1.8e9, True),)
    assert certificates_in("\0" * 1000) == ()
