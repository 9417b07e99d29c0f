"""What happens to members from outside, for the log: a line for each, or one for all where they are many."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kafka_coord.frontends.members.machine.instructions import Happening, Tell

log = logging.getLogger(__name__)

_TOLD_ONE_BY_ONE = 10
"""Nobody reads thousands of lines, and they take as long as much of what they are about."""


class Journal:
    """Collects what happens in a step. ``address`` names the other end of a connection."""

    def __init__(self, address: Callable[[int | None], str]) -> None:
        self._address = address
        self._happened: list[tuple[Tell, str]] = []

    def note(self, tell: Tell) -> None:
        group, consumer, _ = tell.member
        if tell.happening is Happening.STUCK:
            log.error("cannot send the next command to consumer=%s group=%s reason=%s", consumer, group, tell.detail)
        elif tell.happening is Happening.NOT_RESUMED:
            log.error("cannot resume consumer=%s group=%s yet reason=%s", consumer, group, tell.detail)
        elif tell.happening is Happening.NOT_WRITTEN:
            log.warning("could not write for consumer=%s group=%s reason=%s", consumer, group, tell.detail)
        else:
            self._happened.append((tell, self._address(tell.connection)))

    def write(self) -> None:
        happened, self._happened = self._happened, []
        for what in dict.fromkeys(tell.happening for tell, _ in happened):
            those = [(tell.member, address) for tell, address in happened if tell.happening is what]
            if len(those) > _TOLD_ONE_BY_ONE:
                groups = len({member.group for member, _ in those})
                log.info("%s socket consumers=%d of groups=%d", what, len(those), groups)
                continue
            for member, address in those:
                log.info(
                    "%s socket consumer=%s group=%s incarnation=%d address=%s",
                    *(what, member.consumer, member.group, member.incarnation, address),
                )
