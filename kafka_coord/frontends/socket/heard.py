"""Notes which socket members of earlier terms have not been heard, for the next term (``/consumers/heard``, ADR 39)."""

from __future__ import annotations

import logging

from kafka_coord.channel.operations import Registration
from kafka_coord.classic_groups.sessions import LEAST_S, Heard, Key, Sessions
from kafka_coord.errors import Fenced, MalformedValue, NoNode, StoreError, StoreUnavailable
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.frontends.members.term import Term
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

EVERY_S = 2.0
"""How long after it has begun a term writes the note, and how often while a member is silent, in seconds."""


class HeardNote:
    """The note of the earlier terms, and then this term's. The gateway's thread calls all methods."""

    def __init__(self, store: Store) -> None:
        """Reads the note. Raises :class:`StoreUnavailable`. If it cannot be read, each member gets a full session."""
        self._due = store.clock.monotonic() + EVERY_S
        self._complaint = ""
        self._returned: set[Key] = set()
        self._sessions = Sessions()
        self._noted: dict[Key, int | None] | None = {}
        try:
            data = store.get(layout.HEARD).data
            earlier = Heard.from_json(fields.load(data, layout.HEARD), layout.HEARD)
        except NoNode:
            return
        except StoreUnavailable:
            raise
        except (MalformedValue, StoreError) as error:
            self._noted = None
            log.warning("cannot read which socket consumers were heard: %s; each gets a full session", error)
        else:
            self._sessions.noted(earlier)
            self._noted = dict(earlier.left_ms)

    def session_left_s(self, member: Registration, options: RegistrationOptions) -> float:
        """Returns for how many seconds the term waits for a member of an earlier term."""
        return self._sessions.left_s(*_key(member), options.session_timeout_s)

    def is_noted(self, member: MemberId) -> bool:
        """Returns whether the note says that the member is silent. If so, the next :meth:`step` takes it out, and the
        member must not be answered before: its lease would then last longer than the next term waits for it."""
        key = _key(member)
        if key not in (self._noted or {}):
            return False
        self._returned.add(key)
        self._due = 0.0
        return True

    def step(self, term: Term) -> float:
        """Writes the note once it is due, and again while a member has not been heard, so that the note says what is
        left of its session by then. Returns when to call this method again. Raises :class:`Fenced` and
        :class:`StoreUnavailable`."""
        now = term.store.clock.monotonic()
        if now < self._due:
            return self._due
        silent = {key: left for key, left in _silent(term, now).items() if key not in self._returned}
        if silent != self._noted:
            try:
                _write(term.store, Heard(term.scope.number, silent))
            except (Fenced, StoreUnavailable):
                raise
            except StoreError as error:
                self._complain(f"cannot note which socket consumers were heard: {error}; retrying")
            else:
                self._noted, self._complaint = silent, ""
        self._due = float("inf") if self._noted == {} else now + EVERY_S
        return self._due

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("%s", complaint)
        self._complaint = complaint


def _key(member: Registration | MemberId) -> Key:
    """Names one incarnation. Members that registered in the same transaction have the same czxid."""
    return member.group, f"{member.consumer} {member.incarnation}"


def _silent(term: Term, now: float) -> dict[Key, int | None]:
    """Returns what is left of the sessions of members that have neither resumed nor registered again. The next term
    gives a full session to all others, and to those whose session is short, so the note need not name them."""
    left_ms = term.machine.left_ms(
        now,
        lambda state: _key(state.id)[1],
        lambda state: state.held_known or state.options.session_timeout_s <= LEAST_S,
    )
    return {member: left for member, left in left_ms.items() if left is not None}


def _write(store: Store, heard: Heard) -> None:
    """Writes the note, or only the beginning of one that is too large. Members that it leaves out get a full
    session."""
    left_ms = dict(heard.left_ms)
    while len(data := fields.dump(Heard(heard.term, left_ms).to_json())) > fields.MAX_VALUE_BYTES:
        left_ms = dict(list(left_ms.items())[: len(left_ms) // 2])
    try:
        store.set(layout.HEARD, data)
    except NoNode:
        store.create(layout.HEARD, data)
