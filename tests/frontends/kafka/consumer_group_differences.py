"""Every known difference between Kafka 4.3 and this project in KIP-848 groups, with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """A known difference. ``cases`` is a regular expression that matches ``play: case``, and ``lines`` are regular
    expressions that match lines of :func:`lines`."""

    reason: str
    cases: str
    lines: Sequence[str]


_ERROR = r"(.+\.)?error_code: "
_AS_BEFORE = "Kafka 3.9 answers so (test_answers_equal_kafkas)."
_AWAY = "A static member that left for now is no member until it returns. Its partitions stay reserved for it."

DIFFERENCES = (
    Difference(
        "The client joins again. After GROUP_ID_NOT_FOUND, the Java client fails.",
        "(nobody|offsets_only|classic_left)-(beats|leaves): .*",
        [_ERROR + "GROUP_ID_NOT_FOUND, here UNKNOWN_MEMBER_ID"],
    ),
    Difference(
        "A group with members of the classic protocol is not converted.",
        "classic-(refused_joins|joins_beside): .*",
        [_ERROR + "(NONE|INVALID_REGULAR_EXPRESSION), here GROUP_ID_NOT_FOUND"],
    ),
    Difference(
        "A managed group stays managed, and has no leader. In Kafka, it becomes a classic group with its first member.",
        "left-classic_joins: (joins|types of members)",
        ["leader: generated, here ''", r"members.*: .*", "c2: nothing, here 0"],
    ),
    Difference(
        "Tools that do not know KIP-848 see the group as one of the classic protocol. Kafka hides it from them.",
        "(member|two_members|static|away|left)-looks: as a classic group, .*",
        [r"groups\.group_state: 'Dead', here '(Empty|Stable)'", r"groups\.(members|protocol_type|protocol_data).*"],
    ),
    Difference(
        _AWAY,
        "away-(beats|leaves): .*",
        [_ERROR + "(FENCED_INSTANCE_ID|FENCED_MEMBER_EPOCH|NONE), here UNKNOWN_MEMBER_ID"],
    ),
    Difference(
        _AWAY,
        "away-(commits|fetches): .*",
        [_ERROR + "(STALE_MEMBER_EPOCH|UNSUPPORTED_VERSION), here UNKNOWN_MEMBER_ID"],
    ),
    Difference(
        "A client whose place another has taken is fenced. UNKNOWN_MEMBER_ID would make a classic one join again.",
        "away-static_returns: the old one's commit with its instance id",
        [_ERROR + "UNKNOWN_MEMBER_ID, here FENCED_INSTANCE_ID"],
    ),
    Difference(
        _AWAY,
        "away-(classic_requests|deletes): .*",
        [_ERROR + "NONE, here (UNKNOWN_MEMBER_ID|GROUP_ID_NOT_FOUND)", _ERROR + "NON_EMPTY_GROUP, here .*"],
    ),
    Difference(
        _AWAY,
        "away-looks: (as a group of KIP-848|listed).*",
        [r"groups\.group_state: ('Reconciling'|nothing), here 'Empty'", r"groups(\.(members|group_id|.*type).*)?: .*"],
    ),
    Difference(
        _AWAY,
        "static-static_leaves_for_now: .*",
        [
            _ERROR + "(NONE|FENCED_MEMBER_EPOCH|STALE_MEMBER_EPOCH), here UNKNOWN_MEMBER_ID",
            r"groups\.group_state: 'Reconciling', here 'Empty'",
            r"groups\.members.*",
        ],
    ),
    Difference(
        "The instance tells the whole assignment also to a client that does not repeat its rebalance timeout.",
        "(member|two_members|static)-beats: partitions and topics",
        ["assignment.*: nothing, here .*", "assignment: None, here nothing"],
    ),
    Difference(
        "The epoch before the newest is good enough for a member that owns nothing it should not.",
        "member-old_beats: (without partitions|fetch)",
        [_ERROR + "(FENCED|STALE)_MEMBER_EPOCH, here NONE"],
    ),
    Difference(
        "A member commits only for partitions that it owns.",
        "(member|two_members|static)-commits: a topic that it has not subscribed to",
        [_ERROR + "NONE, here STALE_MEMBER_EPOCH"],
    ),
    Difference(
        "A commit that names a member is that member's, also in a group without members.",
        "left-commits: epoch -1",
        [_ERROR + "NONE, here UNKNOWN_MEMBER_ID"],
    ),
    Difference(
        "The epoch is the engine's generation, and there is one generation for both.",
        "left-looks: as a group of KIP-848, .*",
        [r"groups\.assignment_epoch: newest, here newer"],
    ),
    Difference(
        "A member changes its assignor by joining again.",
        "subscribes-another assignor: described",
        [r"groups\.assignor_name: 'range', here 'uniform'"],
    ),
    Difference(
        "Names beside a regular expression become part of it.",
        "(joins-names and a regular expression|subscribes-a regular expression as well): described",
        [r"groups\.members\.subscribed_topic_(names|regex): .*TOPIC.*"],
    ),
    Difference(
        "A name that no topic can have is left out.",
        "joins-an illegal topic name: described",
        [r"groups\.members\.subscribed_topic_names: \('a b'\), here \(\)"],
    ),
    Difference(
        _AS_BEFORE,
        "nobody-commits: (version 9|a later epoch|epoch 0)",
        [_ERROR + "GROUP_ID_NOT_FOUND, here ILLEGAL_GENERATION"],
    ),
    Difference(
        _AS_BEFORE + " A group is deleted with its last offset.",
        "(offsets_only|classic_left)-deletes: (offsets of TOPIC-.*|the group, version 0)",
        [_ERROR + "NONE, here GROUP_ID_NOT_FOUND"],
    ),
)

Answers = Mapping[str, Mapping[str, str]]


def lines(theirs: Answers, ours: Answers) -> Iterator[tuple[str, str]]:
    """Each case, with each field in which the answers differ. If their errors differ, only the errors."""
    for case in dict.fromkeys([*theirs, *ours]):
        one, other = theirs.get(case, {}), ours.get(case, {})
        fields = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
        errors = [name for name in fields if name.endswith("error_code") and name in one and name in other]
        for name in errors or fields:
            yield case, f"{name}: {one.get(name, 'nothing')}, here {other.get(name, 'nothing')}"


def listed(play: str, case: str, line: str) -> Iterator[tuple[int, int]]:
    """The indices of the differences in the table, and of their lines, that match this line."""
    for number, one in enumerate(DIFFERENCES):
        if re.fullmatch(one.cases, f"{play}: {case}"):
            yield from ((number, at) for at, form in enumerate(one.lines) if re.fullmatch(form, line))
