"""The invariants of the membership machine, which hold after every stimulus. Importing this module makes every term
check them."""

from __future__ import annotations

from collections import deque
from typing import Any

from kafka_coord.frontends.members import term
from kafka_coord.frontends.members.machine import MembershipMachine, MemberState, instructions, stimuli
from kafka_coord.frontends.members.machine.state import AcknowledgeWrite
from kafka_coord.frontends.members.machine.stimuli import MemberId

MAX_STORY = 5_000


class InvariantBroken(AssertionError):
    """An invariant is broken, so the machine has a defect. The message ends with the events that led to it."""


class ValidatedMachine(MembershipMachine):
    """Checks every invariant after every stimulus."""

    def __init__(self, now: float, *, offers_every_s: float = 0.1) -> None:
        self._story: deque[tuple[float, object, object]] = deque(maxlen=MAX_STORY)
        super().__init__(now, offers_every_s=offers_every_s)

    def handle(self, now: float, *arrived: stimuli.Stimulus) -> list[instructions.Instruction]:
        out = []
        for stimulus in arrived:
            if not isinstance(stimulus, (stimuli.StepBegan, stimuli.TimersDue)):
                self._story.append((now, self._key_of(stimulus), stimulus))
            out += super().handle(now, stimulus)
            check(self)
        return out

    def emit(self, instruction: instructions.Instruction) -> None:
        super().emit(instruction)
        self._story.append((self.now, self._key_of(instruction), instruction))

    def story(self, group: str, consumer: str) -> list[str]:
        """Recent stimuli and instructions of a consumer, oldest first. All members share a bounded buffer."""
        return [f"{at:.3f} {what}" for at, key, what in self._story if key == (group, consumer)]

    def _key_of(self, thing: Any) -> tuple[str, str] | None:
        member = getattr(thing, "member", None)
        if isinstance(member, MemberId):
            return member.group, member.consumer
        wanted = getattr(thing, "wanted", thing)
        if isinstance(wanted, stimuli.RegistrationWanted):
            return wanted.group, wanted.consumer
        found = self.connections.get(getattr(thing, "connection", -1))
        return found.key if found is not None else None


term.MembershipMachine = ValidatedMachine  # type: ignore[attr-defined]


def check(machine: ValidatedMachine) -> None:
    """Checks every invariant. Raises :class:`InvariantBroken`."""
    for connection, member in machine.connections.items():
        _require(machine, member, machine.is_current(member), "a connection names a member that does not exist")
        _require(machine, member, member.connection == connection, "a connection's member is on another connection")
        _require(
            machine, member, connection not in machine.registering, "a connection that has a member is registering"
        )
    for member in machine.members.values():
        for broken in _broken(member):
            _require(machine, member, False, broken)


def _broken(member: MemberState) -> list[str]:
    delivered = member.delivered
    on_its_way = [write for write in (member.writing, *member.writes) if isinstance(write, AcknowledgeWrite)]
    rules = {
        "a write is waiting although no write is under way": member.writing is not None or not member.writes,
        "it reported offsets of a partition that it does not hold": member.reported.keys() <= member.held,
        "a command is being sent to it while another command is read": delivered is None or member.reading is None,
        "a delivered command is also queued": delivered is None or delivered.command_id not in member.queue,
        "commands are out of order": list(member.queue) == sorted(member.queue),
        "a later command is under way while an earlier one is queued": all(
            one <= following
            for one in (member.reading, delivered.command_id if delivered is not None else None)
            if one is not None
            for following in member.queue
        ),
        "more than one acknowledgement is under way": len(on_its_way) <= 1,
        "it has a connection, but its partitions are not known": member.connection is None or member.held_known,
        "it still holds partitions that it has given up": not any(write.gives_up & member.held for write in on_its_way),
        "it answered a probe that was never sent": member.heard <= member.last_probe,
        "it has no connection, but a command is being read or sent": member.connection is not None
        or (member.reading is None and delivered is None),
    }
    return [rule for rule, holds in rules.items() if not holds]


def _require(machine: ValidatedMachine, member: MemberState, holds: bool, rule: str) -> None:
    if not holds:
        story = "\n".join(machine.story(*member.key))
        raise InvariantBroken(f"{member.id}: {rule}\n{member}\n{story}")
