"""Logs the events of members without a ZooKeeper session: one line for each, or one line for many."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kafka_coord.frontends.members.machine.instructions import MemberEvent, ReportEvent

log = logging.getLogger(__name__)

_TOLD_ONE_BY_ONE = 10
"""The most lines of one kind in a step. Nobody reads thousands, and writing them would take too long."""


class EventLog:
    """Collects the events of a step. ``address`` returns the address of a connection's other end, ``kind`` is that of
    the members."""

    def __init__(self, address: Callable[[int | None], str], kind: str) -> None:
        self._address, self._kind = address, kind
        self._happened: list[tuple[ReportEvent, str]] = []

    def note(self, report: ReportEvent) -> None:
        group, consumer, _ = report.member
        if report.event is MemberEvent.STUCK:
            log.error("cannot send the next command to consumer=%s group=%s reason=%s", consumer, group, report.detail)
        elif report.event is MemberEvent.NOT_RESUMED:
            log.error("cannot resume consumer=%s group=%s yet reason=%s", consumer, group, report.detail)
        elif report.event is MemberEvent.NOT_WRITTEN:
            log.warning("could not write for consumer=%s group=%s reason=%s", consumer, group, report.detail)
        else:
            self._happened.append((report, self._address(report.connection)))

    def write(self) -> None:
        happened, self._happened = self._happened, []
        for what in dict.fromkeys(report.event for report, _ in happened):
            those = [(report.member, address) for report, address in happened if report.event is what]
            if len(those) > _TOLD_ONE_BY_ONE:
                groups = len({member.group for member, _ in those})
                log.info("%s %s consumers=%d of groups=%d", what, self._kind, len(those), groups)
                continue
            for member, address in those:
                log.info(
                    "%s %s consumer=%s group=%s incarnation=%d address=%s",
                    *(what, self._kind, member.consumer, member.group, member.incarnation, address),
                )
