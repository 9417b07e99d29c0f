"""How loudly an instance says that it cannot claim a partition yet."""

from __future__ import annotations

import logging

import pytest

from kafka_coord.errors import BrokerError, KafkaCoordError
from kafka_coord.frontends.kafka.listener import RESTARTED_WITHIN_S, claim_failure_level
from kafka_coord.grouplog.term import TermEnded
from kafka_coord.kafka.connection import LeadsNoMore, NotSent, failure

_NOT_LEADER, _STORAGE, _NO_LEADER_YET, _NO_END_YET = 6, 56, 5, 78


@pytest.mark.parametrize(
    "error",
    [*(failure("no claim", one) for one in (_NOT_LEADER, _NO_LEADER_YET, _NO_END_YET)), NotSent("nobody listens")],
)
def test_a_restart_of_the_broker_is_told_at_warning_only_when_it_lasts(error: KafkaCoordError) -> None:
    assert claim_failure_level(error, 0) == logging.INFO
    assert claim_failure_level(error, RESTARTED_WITHIN_S) == logging.WARNING


@pytest.mark.parametrize("error", [failure("no claim", _STORAGE), TermEnded("NOT_LEADER_OR_FOLLOWER somewhere")])
def test_any_other_failure_is_told_at_warning(error: KafkaCoordError) -> None:
    assert claim_failure_level(error, 0) == logging.WARNING


def test_only_a_leader_that_has_moved_counts_as_moved() -> None:
    assert isinstance(failure("x", _NOT_LEADER), LeadsNoMore)
    assert type(failure("x", _STORAGE)) is BrokerError
