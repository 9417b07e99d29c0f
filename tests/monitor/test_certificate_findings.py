"""Tests of the findings about certificates, and of certificates that need none."""

from __future__ import annotations

import pytest

from kafka_coord.monitor.doctor.findings import Severity
from kafka_coord.monitor.doctor.instances import Reported, certificate_findings, certificates_in

NOW_MS = 1_800_000_000_000
DAY_S = 86_400


@pytest.mark.parametrize(
    ("ends_in_s", "unusable", "severities", "words"),
    [
        (15 * DAY_S, False, [Severity.OK], "no certificate ends within 14 d"),
        (
            13 * DAY_S,
            False,
            [Severity.WARNING],
            "instance 2: the certificate, or the clients' CA, of its channel listener ends in 13 d",
        ),
        (-60, False, [Severity.ERROR], "ended 60 s ago"),
        (90 * DAY_S, True, [Severity.WARNING], "files that cannot be used, so the earlier one stays"),
        (DAY_S, True, [Severity.WARNING, Severity.WARNING], "ends in 24 h"),
    ],
)
def test_a_certificate_is_reported_when_it_ends_soon_or_cannot_be_renewed(
    ends_in_s: int, unusable: bool, severities: list[Severity], words: str
) -> None:
    found = list(certificate_findings({2: (Reported("channel", NOW_MS / 1000 + ends_in_s, unusable),)}, NOW_MS))
    assert [one.severity for one in found] == severities
    assert words in found[0].what
    assert all(one.todo for one in found if one.severity is not Severity.OK)


def test_without_certificates_there_is_no_finding() -> None:
    assert list(certificate_findings({1: (), 2: ()}, NOW_MS)) == []


def test_the_page_of_metrics_is_read_and_odd_lines_are_left_out() -> None:
    page = """# TYPE kafka_coord_certificate_ends_seconds gauge
kafka_coord_certificate_ends_seconds{of="http"} 1.8e+09
kafka_coord_certificate_ends_seconds{of="kafka"} NaN
kafka_coord_certificate_ends_seconds{of="odd"} x
kafka_coord_certificate_ends_seconds{of="far"} 1e300
kafka_coord_renewal_unusable{of="http"} 1.0
kafka_coord_renewal_unusable{of="users"} 1.0
"""
    assert certificates_in(page) == (Reported("http", 1.8e9, True), Reported("users", None, True))
    assert certificates_in("\0" * 1000) == ()


@pytest.mark.parametrize(
    ("of", "ends_in_s", "words"),
    [
        ("brokers", -60, "instance 2: its certificate, or the CA, for the brokers ended 60 s ago"),
        ("zookeeper", DAY_S, "instance 2: its certificate, or the CA, for ZooKeeper ends in 24 h"),
    ],
)
def test_a_certificate_that_the_instance_presents_is_reported_too(of: str, ends_in_s: int, words: str) -> None:
    (found,) = certificate_findings({2: (Reported(of, NOW_MS / 1000 + ends_in_s, False),)}, NOW_MS)
    assert found.what == words
    (fine,) = certificate_findings({2: (Reported(of, NOW_MS / 1000 + 15 * DAY_S, False),)}, NOW_MS)
    assert fine.severity is Severity.OK


@pytest.mark.parametrize(
    ("of", "named"),
    [
        ("brokers", "its credentials for the brokers"),
        ("zookeeper", "its credentials for ZooKeeper"),
        ("users", "its users file"),
        ("operators", "its operators file"),
    ],
)
def test_what_has_no_certificate_is_reported_only_if_it_cannot_be_used(of: str, named: str) -> None:
    (found,) = certificate_findings({2: (Reported(of, None, True),)}, NOW_MS)
    assert (found.severity, found.what.startswith(f"instance 2: {named} has been renewed")) == (Severity.WARNING, True)
    (fine,) = certificate_findings({2: (Reported(of, None, False),)}, NOW_MS)
    assert fine.severity is Severity.OK
