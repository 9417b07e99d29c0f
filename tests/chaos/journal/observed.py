"""What an event of the world observed, as the detail of its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

WORLD = "world"
"""The directory of the journals of the members in events of the world, and the role in their targets."""


class Owed(NamedTuple):
    """The records with the numbers ``first`` to ``end - 1`` exist, and the group must receive them. Numbers continue
    in a topic that is made anew, so they identify a record where offsets do not."""

    group: str
    topic: str
    partition: int
    first: int
    end: int


class Position(NamedTuple):
    """A group's committed offset, or None, and the end of the partition, some seconds after everything was read."""

    group: str
    topic: str
    partition: int
    committed: int | None
    end: int


class Waited(NamedTuple):
    """How long ``what`` took. None means that it had not happened when the event gave up."""

    what: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Observed:
    """``own`` are the targets of the faults that belong to the event. ``commits`` counts the commits of the clients
    beside the event, and ``failed`` has the errors of those that failed. ``answered`` is the answer to the request that
    is the event. ``terms`` counts the terms of the groups log that began. ``abandoned`` is the
    reason if the event could not be carried out.
    """

    own: tuple[str, ...] = ()
    owed: tuple[Owed, ...] = ()
    positions: tuple[Position, ...] = ()
    waited: tuple[Waited, ...] = ()
    commits: int = 0
    failed: tuple[str, ...] = ()
    answered: str = ""
    terms: int | None = None
    abandoned: str = ""

    def to_detail(self) -> dict[str, Any]:
        """Returns the fields that are set."""
        return {name: value for name, value in asdict(self).items() if value not in ((), "", None, 0, False)} | (
            {"terms": self.terms} if self.terms is not None else {}
        )

    @classmethod
    def from_detail(cls, detail: Mapping[str, Any]) -> Observed:
        rows = {"owed": Owed, "positions": Position, "waited": Waited}
        found: dict[str, Any] = {
            name: tuple(rows[name](*row) for row in value) if name in rows else value for name, value in detail.items()
        }
        for name in ("own", "failed"):
            found[name] = tuple(detail.get(name, ()))
        return cls(**found)
