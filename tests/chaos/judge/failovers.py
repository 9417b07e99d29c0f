"""Rules about how a coordinator ends: stopped, killed or frozen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tests.chaos.journal import GROUP_LOG, Event, Kind, Phase
from tests.chaos.judge.decisions import read_decisions
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import ChaosFinding, Rule, Ruling, Severity, ruling, violation
from tests.chaos.judge.ownership import Ending

DECIDED_S = 0.3
"""The bound in s for a decision on a rebalance that was requested during a clean stop. With ZooKeeper's log, the
decision takes from the transaction of the request to that of the answer. Otherwise, it takes from the call to its
answer."""
ELECTED_S = 0.5
"""The bound in s for the replacement of a killed coordinator, beyond the session timeout."""
_AROUND_S = 2.0
_UNFENCED = frozenset({"unfenced-write", "stale-epoch"})
"""The audit's rules about writes of an instance that is not the coordinator."""


def _elected_at(records: Records, t: float) -> Event | None:
    return next((event for event in reversed(records.of(Kind.ELECTED)) if event.t < t), None)


def _next(kind: Kind, records: Records, t: float) -> Event | None:
    """Returns the first event of that kind after ``t``."""
    return next((event for event in records.of(kind) if event.t > t), None)


def _alone(records: Records, event: Event) -> bool:
    """Tells whether no other fault was under way at the event or shortly before it."""
    others = records.faults.under_way(event.t, event.t + _AROUND_S, aftermath_s=_AROUND_S)
    return all(fault.role == event.role and fault.name == event.name and fault.kind == event.kind for fault in others)


def clean(records: Records) -> Ruling:
    """Checks that a clean stop of the coordinator revokes no partition, and that requests are decided in time."""
    findings: list[ChaosFinding] = []
    decided_s: list[float] = []
    heard_s: list[float] = []
    elected_s: list[float] = []
    stolen: list[float] = []
    logged_s = read_decisions(records.directory)
    ends = {event.detail["id"]: event.t for event in records.of(Kind.REQUEST, phase=Phase.END)}
    requests = records.of(Kind.REQUEST, phase=Phase.BEGIN)
    stops = _stops_with(records, requests)
    for stop, mine in stops:
        after = _next(Kind.ELECTED, records, stop.t)
        if after is not None:
            elected_s.append(after.t - stop.t)
        machine = _next(Kind.MACHINE, records, stop.t)
        stolen += [machine.detail["stolen"]] if machine is not None else []
        for request in mine:
            heard = ends.get(request.detail["id"])
            heard_s += [heard - request.t] if heard is not None else []
            took_s = logged_s.get(request.detail["id"], heard - request.t if heard is not None else None)
            decided_s += [took_s] if took_s is not None else []
            if took_s is None or took_s > DECIDED_S:
                told = "never" if took_s is None else f"{took_s * 1000:.0f} ms later"
                findings.append(
                    violation(
                        Rule.CLEAN_FAILOVER,
                        stop.target,
                        f"a rebalance requested {(request.t - stop.t) * 1000:.0f} ms after SIGTERM was decided {told}",
                        (
                            records.at(stop.t, f"SIGTERM to {stop.target}"),
                            records.at(request.t, f"{request.detail['id']} requested"),
                            *([records.at(machine.t, _of_machine(machine))] if machine is not None else []),
                        ),
                    )
                )
        until = max([stop.t, *(ends.get(request.detail["id"], request.t) for request in mine)]) + _AROUND_S
        findings += _given_up(records, stop, until)
    middle_s, most_s = _middle_and_most(decided_s)
    heard_middle_s, heard_most_s = _middle_and_most(heard_s)
    source = "ZooKeeper's log" if logged_s else "the requester"
    return ruling(
        Rule.CLEAN_FAILOVER,
        findings,
        checked=f"{len(stops)} clean stops of the elected instance; {len(decided_s)} rebalances requested from SIGTERM "
        f"on, decided after {middle_s * 1000:.0f} ms (median), {most_s * 1000:.0f} ms (at most) by {source}, "
        f"answered to the requester after {heard_middle_s * 1000:.0f} and {heard_most_s * 1000:.0f} ms; "
        f"next instance elected after {_list_ms(elected_s)}"
        + (f"; other guests of the host used at most {max(stolen):.0%} of the cores" if stolen else ""),
        bound=f"{DECIDED_S * 1000:g} ms, no partition without an owner",
        exercised=bool(decided_s),
        figures={
            "n": len(stops),
            "decided_p50_s": middle_s,
            "decided_max_s": most_s,
            "heard_p50_s": heard_middle_s,
            "heard_max_s": heard_most_s,
            "elected_max_s": max(elected_s, default=0.0),
            "stolen_max": max(stolen, default=0.0),
        },
    )


def _stops_with(records: Records, requests: Sequence[Event]) -> list[tuple[Event, list[Event]]]:
    """Returns each clean stop of a coordinator during which rebalances were requested, with these requests."""
    found: dict[float, tuple[Event, list[Event]]] = {}
    stops = [stop for stop in records.of(Kind.STOP, phase=Phase.BEGIN) if stop.role == "serve"]
    for request in requests:
        before = [stop for stop in stops if stop.t <= request.t]
        if before:
            found.setdefault(before[-1].t, (before[-1], []))[1].append(request)
    return list(found.values())


def _of_machine(event: Event) -> str:
    """Describes the machine's load during the stop."""
    found = event.detail
    return (
        f"in these {found['seconds']:.1f} s, the machine's cores were busy for {found['busy']:.0%} of the time, other "
        f"guests of the host used {found['stolen']:.0%}, and a process waited for a core for {found['waited']:.0%}"
    )


def _given_up(records: Records, stop: Event, until: float) -> Iterator[ChaosFinding]:
    for book in records.books:
        for owner in book.ownerships:
            if stop.t <= owner.end <= until and owner.ending is not Ending.OPEN:
                yield violation(
                    Rule.CLEAN_FAILOVER,
                    book.where,
                    f"{owner} lost or gave up the partition while the coordinator was stopped cleanly",
                    (
                        records.at(stop.t, f"SIGTERM to {stop.target}"),
                        records.at(owner.end, f"{owner.process}: {owner.ending}"),
                    ),
                )


def killed(records: Records) -> Ruling:
    """Checks that the next coordinator is elected within the session timeout of a killed coordinator."""
    session_s = records.run.setup.session_timeouts_ms["serve"] / 1000
    findings: list[ChaosFinding] = []
    took_s: list[float] = []
    for event in records.of(Kind.KILL):
        elected = _elected_at(records, event.t)
        if event.role != "serve" or elected is None or elected.name != event.name or not _alone(records, event):
            continue
        after = _next(Kind.ELECTED, records, event.t)
        if after is not None:
            took_s.append(after.t - event.t)
        if after is None or took_s[-1] > session_s + ELECTED_S:
            told = "nobody" if after is None else f"{after.target} only {took_s[-1]:.2f} s"
            findings.append(
                violation(
                    Rule.KILLED_FAILOVER,
                    event.target,
                    f"killed, and {told} later elected",
                    (records.at(event.t, "kill -9"), *([records.at(after.t, "elected")] if after else [])),
                )
            )
    told = ", ".join(f"{one:.2f} s" for one in took_s) or "none"
    return ruling(
        Rule.KILLED_FAILOVER,
        findings,
        checked=f"{len(took_s)} kills of the elected instance without another fault; next one elected after {told}",
        bound=f"{session_s + ELECTED_S:g} s",
        exercised=bool(took_s),
        figures={"n": len(took_s), "max_s": max(took_s, default=0.0)},
    )


def frozen(records: Records, audit: dict[str, object] | None) -> Ruling:
    """Checks that a coordinator that is frozen past its session is replaced, and writes nothing when it continues. In
    ZooKeeper's own log, the newest epoch must have fenced every write of a coordinator.
    """
    session_s = records.run.setup.session_timeouts_ms["serve"] / 1000
    findings: list[ChaosFinding] = []
    n = 0
    for fault in records.faults.of(Kind.FREEZE, role="serve"):
        elected = _elected_at(records, fault.begin)
        if elected is None or elected.name != fault.name or fault.end - fault.begin < session_s + ELECTED_S:
            continue
        calm = not [
            one for one in records.faults.under_way(fault.begin, fault.end, aftermath_s=_AROUND_S) if one is not fault
        ]
        if not calm:
            continue
        n += 1
        after = _next(Kind.ELECTED, records, fault.begin)
        if after is None or after.t > fault.end or after.name == fault.name:
            findings.append(
                violation(
                    Rule.FROZEN_COORDINATOR,
                    f"serve:{fault.name}",
                    f"frozen for {fault.end - fault.begin:.1f} s while elected, and no other instance took over",
                    (records.at(fault.begin, "SIGSTOP"), records.at(fault.end, "SIGCONT")),
                )
            )
    unfenced = [one for one in _found(audit) if isinstance(one, dict) and one.get("rule") in _UNFENCED]
    findings += [violation(Rule.FROZEN_COORDINATOR, "ZooKeeper's log", _sentence(one)) for one in unfenced[:10]]
    seen = "writes not checked without an audit" if audit is None else f"{len(unfenced)} unfenced writes in the audit"
    return ruling(
        Rule.FROZEN_COORDINATOR,
        findings,
        checked=f"{n} freezes of the elected instance past its session without another fault; {seen}",
        exercised=n > 0 and audit is not None,
        figures={"n": n},
    )


def audited(records: Records) -> tuple[Ruling, dict[str, object] | None]:
    """Returns the result of ``kafka-coord audit`` on ZooKeeper's log, if ``audit.json`` is in the directory."""
    return _audited(records, Rule.AUDIT, "audit.json", "ZooKeeper's log")


def audited_groups_log(records: Records) -> Ruling:
    """Returns the result of ``kafka-coord audit --group-log``, if the run kept it."""
    return _audited(records, Rule.GROUP_LOG, GROUP_LOG, "the groups log")[0]


def _audited(records: Records, rule: Rule, file: str, log: str) -> tuple[Ruling, dict[str, object] | None]:
    path = records.directory / file
    if not path.exists():
        return ruling(rule, (), checked=f"there is no {file}", exercised=False), None
    audit: dict[str, object] = json.loads(path.read_bytes())
    findings = [violation(rule, log, _sentence(one)) for one in _found(audit)]
    warnings = audit.get("warnings")
    findings += [
        ChaosFinding(rule, Severity.WARNING, log, _sentence(one))
        for one in (warnings if isinstance(warnings, list) else ())
    ]
    checked = audit.get("checked")
    told = ", ".join(f"{name} {value}" for name, value in checked.items()) if isinstance(checked, dict) else ""
    return ruling(rule, findings, checked=told or file), audit


def _found(audit: dict[str, object] | None) -> list[object]:
    found = (audit or {}).get("violations")
    return found if isinstance(found, list) else []


def _sentence(violation: object) -> str:
    if isinstance(violation, dict):
        told = {name: value for name, value in violation.items() if value not in {None, ""}}
        what = ": ".join(str(told.pop(name)) for name in ("rule", "what") if name in told)
        return " ".join([what, *(f"{name}={value}" for name, value in told.items())]).strip()
    return str(violation)


def _middle_and_most(seconds: list[float]) -> tuple[float, float]:
    ordered = sorted(seconds)
    return (ordered[len(ordered) // 2], ordered[-1]) if ordered else (0.0, 0.0)


def _list_ms(seconds: list[float]) -> str:
    return ", ".join(f"{one * 1000:.0f} ms" for one in seconds) or "none"
