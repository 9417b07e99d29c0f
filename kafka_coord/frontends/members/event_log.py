"""Logs member events, combining many of the same kind into one line."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kafka_coord.frontends.members.machine.instructions import MemberEvent, ReportEvent

log = logging.getLogger(__name__)

_TOLD_ONE_BY_ONE = 10
"""How many events of one kind are logged individually in each step. Writing thousands of lines would take too long."""

_TROUBLES = {
    MemberEvent.STUCK: (logging.ERROR, "cannot send the next command to"),
    MemberEvent.NOT_RESUMED: (logging.ERROR, "cannot resume yet"),
    MemberEvent.NOT_WRITTEN: (logging.WARNING, "could not write for"),
}
"""The events that are logged immediately, each with its log level and a description of the problem."""


class EventLog:
    """Collects the events of a step. ``address`` returns the client's address for a connection. ``kind`` says whether
    the members are socket or Kafka consumers."""

    def __init__(self, address: Callable[[int | None], str], kind: str) -> None:
        self._address, self._kind = address, kind
        self._happened: list[tuple[ReportEvent, str]] = []

    def note(self, report: ReportEvent) -> None:
        if report.event not in _TROUBLES:
            self._happened.append((report, self._address(report.connection)))
            return
        group, consumer, _ = report.member
        level, problem = _TROUBLES[report.event]
        log.log(
            level,
            "%s consumer=%s group=%s reason=%s",
            problem,
            consumer,
            group,
            report.detail,
            extra={"event": "member_trouble"},
        )

    def write(self) -> None:
        happened, self._happened = self._happened, []
        for what in dict.fromkeys(report.event for report, _ in happened):
            those = [(one.member, address, one.detail) for one, address in happened if one.event is what]
            if len(those) > _TOLD_ONE_BY_ONE:
                groups = len({member.group for member, _, _ in those})
                log.info(
                    "%s %s consumers=%d of groups=%d",
                    *(what, self._kind, len(those), groups),
                    extra={"event": "members", "what": what},
                )
                continue
            for member, address, by in those:
                log.info(
                    "%s %s consumer=%s group=%s incarnation=%d address=%s%s",
                    *(what, self._kind, member.consumer, member.group, member.incarnation, address),
                    f" by={by!r}" if by else "",
                    extra={"event": "member", "what": what},
                )
