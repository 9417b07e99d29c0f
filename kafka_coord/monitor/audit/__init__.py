"""Checks every write in ZooKeeper's transaction log against the invariants of docs/design.md: :func:`audit` reads the
transactions in the files, replays them as steps, and checks each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.monitor.audit.auditor import Auditor
from kafka_coord.monitor.audit.event_history import EventHistory, GroupEvent, Selection, parse_partition
from kafka_coord.monitor.audit.report import AuditFinding, AuditRule, Report, clock_time
from kafka_coord.monitor.audit.rules import unsettled
from kafka_coord.monitor.audit.state import ROOTS
from kafka_coord.monitor.audit.tree import Step, ZnodeTree, read_snapshot
from kafka_coord.monitor.audit.txnlog import Txn, begins_everything, find_files, in_order, missing_between

__all__ = [
    "AuditFinding",
    "AuditRule",
    "EventHistory",
    "GroupEvent",
    "Report",
    "Selection",
    "audit",
    "clock_time",
    "parse_partition",
]

Watcher = Callable[[Auditor, Step], None]
"""Receives each step before the auditor checks it, for example to collect a history."""


def audit(paths: Sequence[Path], *, chroot: str = "", running: bool = False, watch: Watcher | None = None) -> Report:
    """Replays the ZooKeeper logs in ``paths`` (see :mod:`~kafka_coord.monitor.audit.txnlog`), checks each step, and
    returns the report.

    ``chroot`` is the root of the coordinator's znodes. If ``running`` is true (the cluster was running when the log was
    copied), a group that has not reached its target is a warning instead of a violation.

    Raises :class:`NotFound` if there is no log, :class:`MalformedValue` if the log is damaged, or if a part is missing
    and no snapshot replaces it, and :class:`SettingsError` if ``chroot`` is not a path.
    """
    return _Audit(paths, _checked_chroot(chroot), running=running, watch=watch).run()


def _checked_chroot(chroot: str) -> str:
    chroot = chroot.rstrip("/")
    if chroot and (not chroot.startswith("/") or "//" in chroot):
        raise SettingsError(f"chroot {chroot!r} is not a path; use one such as /kafka")
    return chroot


class _Audit:
    def __init__(self, paths: Sequence[Path], chroot: str, *, running: bool, watch: Watcher | None) -> None:
        self._sources = find_files(paths)
        self._chroot = chroot
        self._running = running
        self._watch = watch
        self._report = Report()
        self._auditor = Auditor(self._report)
        self._tree = ZnodeTree(chroot, ROOTS)
        self._learned_to = 0
        """The last transaction whose effects the loaded snapshot might contain, or 0 once the audit has passed it."""
        self._known_from = 0
        """The loaded snapshot contains every transaction up to this one."""
        self._has_found = False
        """Whether any of the coordinator's znodes was in the log."""

    def run(self) -> Report:
        torn: list[str] = []
        last: Txn | None = None
        for txn in in_order(self._sources, torn):
            if last is None:
                self._begin(txn)
            elif missing_between(last.zxid, txn.zxid):
                self._bridge(last, txn)
            self._take(txn)
            last = txn
        for what in torn:
            self._report.warning(AuditFinding(AuditRule.INCOMPLETE, what))
        if self._chroot and not self._has_found:
            what = f"the log has nothing of a coordinator below {self._chroot}, so nothing was checked"
            self._report.warning(AuditFinding(AuditRule.INCOMPLETE, what))
        self._end(last)
        return self._report

    def _take(self, txn: Txn) -> None:
        self._report.count("transactions")
        if txn.zxid <= self._known_from:
            return
        if txn.zxid <= self._learned_to:
            self._tree.catch_up(txn)
            return
        if self._learned_to:
            self._learned_to = 0
            self._auditor.learn(tuple(self._tree.as_changes()))
        step = self._tree.apply(txn)
        self._has_found = self._has_found or bool(self._tree.nodes)
        if step is None:
            return
        self._report.count("steps")
        if self._watch is not None:
            self._watch(self._auditor, step)
        self._auditor.take(step)

    # --- where to begin ----------------------------------------------------------------------------------------------

    def _begin(self, first: Txn) -> None:
        if not begins_everything(first.zxid):
            self._load(first.zxid, f"the log begins at zxid {first.zxid:#x}; the transactions before it are gone")

    def _bridge(self, last: Txn, following: Txn) -> None:
        gap = f"transactions are missing between zxid {last.zxid:#x} and {following.zxid:#x}"
        if following.zxid <= self._known_from:
            return
        self._tree = ZnodeTree(self._chroot, ROOTS)
        self._load(following.zxid, gap)

    def _load(self, first: int, why: str) -> None:
        """Restarts from the oldest snapshot that contains everything before ``first``. If there is none, uses the
        newest snapshot from an earlier epoch."""
        snapshots = sorted((zxid, path) for files in self._sources for zxid, path in files.snapshots)
        fitting = [one for one in snapshots if one[0] >= first - 1]
        before = [one for one in snapshots if one[0] < first - 1 and one[0] >> 32 < first >> 32]
        problems = []
        for zxid, path in [*fitting, *reversed(before)]:
            try:
                learned_to = self._read(zxid, path)
            except MalformedValue as error:
                problems.append(str(error))
                continue
            self._known_from = zxid
            self._learned_to = learned_to
            self._auditor = Auditor(self._report)
            what = f"{why}, so the audit begins with {path.name} and checks from zxid {learned_to:#x} on"
            self._report.warning(AuditFinding(AuditRule.INCOMPLETE, what))
            return
        details = f" ({'; '.join(problems)})" if problems else ""
        raise MalformedValue(
            ", ".join(str(files.directory) for files in self._sources),
            f"{why}, and no snapshot replaces it{details}; also give the directories of the other servers",
        )

    def _read(self, zxid: int, path: Path) -> int:
        """Loads the snapshot. Returns the last transaction whose effects it might contain."""
        tree = ZnodeTree(self._chroot, ROOTS)
        newest = zxid
        for name, node, shown in read_snapshot(path):
            tree.put(name, node)
            newest = max(newest, shown)
        self._tree = tree
        # A deletion leaves no trace in a snapshot, so the snapshot may reflect deletions after its newest znode.
        # To bound them, assume that writing the rest of the snapshot took no longer than writing it up to that znode,
        # so at most as many transactions followed.
        return newest + (newest - zxid)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self, last: Txn | None) -> None:
        if self._learned_to or (last is not None and last.zxid <= self._known_from):
            self._auditor.learn(tuple(self._tree.as_changes()))
        state = self._auditor.state
        self._report.count("groups", len(state.groups))
        self._report.count("log_files", sum(len(files.logs) for files in self._sources))
        at = (last.zxid, last.time_ms) if last is not None else (0, 0)
        for group, what in unsettled(state):
            finding = AuditFinding(AuditRule.NOT_CONVERGED, f"at the end of the log, {what}", group, *at)
            if self._running:
                self._report.warning(finding)
            else:
                self._report.violation(finding)
