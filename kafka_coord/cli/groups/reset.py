"""``groups reset-offsets``: sets committed offsets by a rule."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from kafka_coord.cli.opening import open_cluster
from kafka_coord.cli.options import (
    ANY_GROUP,
    acting,
    asking_options,
    kind_option,
    partitions_option,
    reason_option,
)
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import NotFound, RequestRefused, SettingsError, Timeout
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.offsets import Scope, parse_scope
from kafka_coord.groups.requests import Acting
from kafka_coord.groups.reset import (
    FileOffsets,
    OffsetChangeDocument,
    Plan,
    ResetRow,
    ResetRule,
    Resettable,
    RuleKind,
    before_now_ms,
    compute,
    read_csv,
    require_accepted,
    reset,
    time_ms,
    write_csv,
)
from kafka_coord.groups.verbs import GroupVerbs
from kafka_coord.kafka.offsets import BrokerLog
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.zk.brokers import await_new

_COLUMNS = columns(
    "group topic #partition #current_offset=CURRENT #new_offset=NEW-OFFSET #repeated #skipped owner note"
)
MOST_NOTES = 20
"""The most notes that are printed where no table shows them."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which partitions to reset, and by which rule. ``scope`` is ``None`` if ``file`` names the partitions. ``copied``
    are the offsets of --from-group or --undo. With ``of_all`` (--all-groups), only partitions that the group already
    uses are reset, which may be none."""

    rule: ResetRule
    scope: Scope | None
    file: FileOffsets
    copied: Mapping[TopicPartition, int] | None
    of_all: bool

    def rows(self, found: Resettable, log: BrokerLog) -> tuple[ResetRow, ...]:
        """Computes the new offsets. Raises :class:`NotFound`, :class:`RequestRefused` and :class:`BrokerError`."""
        explicit = self.file.get(found.group, {}) if self.copied is None else self.copied
        return compute(self.rule, self._partitions(found, explicit), found.committed, log, explicit)

    def _partitions(self, found: Resettable, explicit: Mapping[TopicPartition, int]) -> PartitionSet:
        if self.scope is None:
            wanted = PartitionSet.of(explicit)
            if missing := wanted - found.there:
                raise NotFound(f"the file names partitions that do not exist: {missing}; nothing was changed")
            return wanted
        if not self.of_all or self.copied is not None:
            return found.chosen(self.scope, self.copied)
        known = found.known & found.there
        return found.chosen(self.scope) & known if self.scope.topics else known


@click.command("reset-offsets")
@click.argument("groups", type=ANY_GROUP, nargs=-1, metavar="GROUP…")
@click.option("--all-groups", is_flag=True, help="Every group; with --from-file, every group in the file.")
@kind_option
@partitions_option("A topic, or some of its partitions.")
@click.option("--all-topics", is_flag=True, help="Every topic that the group subscribes to or has offsets for.")
@click.option("--to-earliest", is_flag=True, help="Set offsets to the first record in the log.")
@click.option(
    "--to-latest", is_flag=True, help="Set offsets to the end of the log, so that the group reads only new records."
)
@click.option("--to-current", is_flag=True, help="Keep committed offsets, and set missing ones to the end of the log.")
@click.option("--to-offset", type=click.IntRange(0, (1 << 63) - 1), metavar="N", help="Set offsets to N.")
@click.option("--shift-by", type=int, metavar="N", help="Move offsets forward by N, or back if N is negative.")
@click.option(
    "--by-duration",
    metavar="PnDTnHnMnS",
    help="Set offsets to the first record that is no older than the duration, for example PT1H30M or P7D.",
)
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="Set offsets to the first record at or after TIME, for example 2026-01-31T12:00:00.000 (UTC).",
)
@click.option("--from-file", metavar="FILE", help="Set the offsets that a CSV file lists, in the format of --export.")
@click.option("--from-group", type=ANY_GROUP, metavar="GROUP", help="Copy the committed offsets of another group.")
@click.option("--undo", is_flag=True, help="Set the offsets of before the last change by an operator.")
@click.option("--dry-run", is_flag=True, help="Only show the changes. This is the default.")
@click.option("--execute", is_flag=True, help="Make the changes.")
@click.option(
    "--accept-notes",
    is_flag=True,
    help="With --execute: make the changes also where a note says that the new offset is not what the rule asks for.",
)
@click.option(
    "--pause",
    is_flag=True,
    help="With --execute, while consumers are running: pause the group, evict the owners, reset, resume.",
)
@click.option("--create", is_flag=True, help="Create the group, as managed, if it does not exist.")
@click.option(
    "--export",
    is_flag=True,
    help="Print CSV lines instead of a table: topic,partition,offset or, for several groups, "
    "group,topic,partition,offset.",
)
@reason_option
@asking_options
def reset_offsets(
    groups: tuple[str, ...],
    all_groups: bool,
    kind: str | None,
    topics: tuple[str, ...],
    all_topics: bool,
    from_file: str | None,
    dry_run: bool,
    execute: bool,
    accept_notes: bool,
    pause: bool,
    create: bool,
    export: bool,
    reason: str,
    timeout_s: float,
    output: Format,
    **rules: bool | int | str | None,
) -> None:
    """Set committed offsets by one of the rules below. Without --execute, only show the changes.

    The command fails while a member owns one of the partitions, so stop the consumers first, or give --pause: the
    command then pauses the group, evicts the owners (they register again immediately), resets the offsets, and resumes
    the group, without restarting any process. `groups pause` alone stops rebalances, and Consumer.pause the records of
    a partition; neither changes offsets.

    As in Kafka's own tool, an offset outside the log is replaced by the nearest end of the log, and a time after the
    last record by the end. NOTE says so. REPEATED is the number of records that the group reads again, and SKIPPED of
    those that it never reads. If any offset has a note, --execute changes nothing in any group, unless the
    notes are accepted with --accept-notes.

    If some of the groups cannot be reset, the command names them, resets the others, and exits with code 6. With
    --topic, --all-groups skips the groups that do not use the topic.

    \b
    kafka-coord groups reset-offsets delays --topic flights --to-earliest
    kafka-coord groups reset-offsets delays --topic flights:0,3-5 --shift-by -100 --execute
    kafka-coord groups reset-offsets delays --topic flights --to-earliest --execute --pause --reason "bug 17"
    kafka-coord groups reset-offsets later --topic flights --to-latest --execute --create
    kafka-coord groups reset-offsets later --all-topics --from-group delays --execute --create
    kafka-coord groups reset-offsets delays --all-topics --by-duration PT2H --execute
    kafka-coord groups reset-offsets delays --all-topics --undo --execute
    kafka-coord groups reset-offsets delays --all-topics --to-current --export > offsets.csv
    kafka-coord groups reset-offsets delays --from-file offsets.csv --execute
    kafka-coord groups reset-offsets --all-groups --all-topics --to-current --export > all.csv
    kafka-coord groups reset-offsets --all-groups --from-file all.csv --execute
    """
    if dry_run and execute:
        raise SettingsError("give either --dry-run or --execute")
    if bool(groups) is all_groups:
        raise SettingsError(
            "either name groups or give --all-groups" if groups else "name groups, or give --all-groups"
        )
    rule = _rule({**rules, "from_file": from_file})
    file = _read_file(from_file, groups) if from_file is not None else {}
    if from_file is not None and (topics or all_topics):
        raise SettingsError("--from-file names the partitions, so omit --topic and --all-topics")
    scope = parse_scope(topics, all_topics=all_topics) if from_file is None else None
    named = tuple(dict.fromkeys(groups or file))
    if create and not named:
        raise SettingsError("--create needs group names, because --all-groups covers only existing groups")
    with open_cluster() as (instances, log):
        directory = GroupDirectory(instances)
        choice = _Choice(rule, scope, file, rule.copied(directory, named, kind), of_all=all_groups)
        missing = [group for group in named if directory.may_create(group, kind)]
        who_acts = acting(reason, timeout_s)
        new = _create(directory.new, missing, who_acts, allowed=create, execute=execute)
        wanted = [(group, directory.new if group in new else directory.find(group, kind)) for group in named]
        wanted = wanted or _every_group(directory, kind)
        for _, of_kind in wanted if pause else ():
            of_kind.require_pausable()

        check = partial(require_accepted, accepted=accept_notes, how="to accept the notes, add --accept-notes")

        def again(found: Resettable) -> Plan:
            now = found.afresh()
            return now, choice.rows(now, log)

        problems: dict[str, str] = {}
        plans: list[Plan] = []
        in_file = PartitionSet.of(tp for of_group in file.values() for tp in of_group)
        await_new(instances.store, scope.topics if scope is not None else dict(in_file.by_topic()))
        everyone = directory.resettable(wanted, str(rule), who_acts, new)
        if all_groups and scope is not None and scope.topics and everyone:
            scope.choose(everyone[0].there, "")  # the topics exist
        for found in everyone:
            with _recorded(problems, found.group, several=len(wanted) != 1):
                plans.append((found, choice.rows(found, log)))
        noted = _noted(plans, tell=export or (execute and not accept_notes))
        if execute:
            check(noted)
        for at, (found, rows) in enumerate(plans if execute else ()):
            with _recorded(problems, found.group, several=len(wanted) != 1):
                afresh = partial(again, found)
                plans[at] = reset(instances.store, found, rows, who_acts, pause=pause, again=afresh, check=check)
    plans = [(found, rows) for found, rows in plans if found.group not in problems]
    _show(output, plans, with_group=all_groups or len(named) > 1, export=export)
    if problems:
        reasons = "; ".join(f"group {group}: {problem}" for group, problem in problems.items())
        raise RequestRefused(f"{counted(len(problems), 'group')} of {len(wanted)} refused: {reasons}")
    if not execute and not export:
        accepting = " --accept-notes" if noted else ""
        note(f"nothing was changed; add --execute{accepting} to make the changes")


def _noted(plans: Sequence[Plan], *, tell: bool) -> list[ResetRow]:
    """Returns the rows with a note. With ``tell``, prints the notes, because no table shows them."""
    noted = [(found.group, row) for found, rows in plans for row in rows if row.note]
    for group, row in noted[:MOST_NOTES] if tell else ():
        note(f"group {group}, {PartitionSet.of([row.tp])}: {row.note}")
    if tell and len(noted) > MOST_NOTES:
        note(f"{len(noted) - MOST_NOTES} more offsets have a note; without --execute and --export, all are shown")
    return [row for _, row in noted]


@contextmanager
def _recorded(problems: dict[str, str], group: str, *, several: bool) -> Iterator[None]:
    """With ``several`` groups, records why ``group`` cannot be reset instead of raising the error."""
    try:
        yield
    except (RequestRefused, NotFound, Timeout) as error:
        if not several:
            raise
        problems[group] = str(error)


def _every_group(directory: GroupDirectory, kind: str | None) -> list[tuple[str, GroupVerbs]]:
    """Lists every group. Prints a note about groups that cannot be listed."""
    found, unlisted = directory.names(kind)
    for sentence in unlisted:
        note(sentence)
    return found


def _create(
    of_kind: GroupVerbs, groups: Sequence[str], who_acts: Acting, *, allowed: bool, execute: bool
) -> Sequence[str]:
    """Creates the groups. Without ``execute``, only returns them."""
    for group in groups:
        if not allowed:
            raise NotFound(f"no group {group!r}; to create it with these offsets: --execute --create")
        if not execute:
            note(f"group {group} does not exist; --execute creates it")
            continue
        of_kind.create(group, who_acts)
    return () if execute else groups


def _rule(given: Mapping[str, bool | int | str | None]) -> ResetRule:
    """Returns the one rule whose option is given, and notes its instant if it is a time. ``given`` contains the options
    of all rules."""
    chosen = [(name, value) for name, value in given.items() if value is not None and value is not False]
    if len(chosen) != 1:
        raise SettingsError(
            f"{'no rule' if not chosen else f'{len(chosen)} rules'} given; choose one of --to-earliest, --to-latest, "
            "--to-current, --to-offset, --shift-by, --by-duration, --to-datetime, --from-file, --from-group, --undo"
        )
    ((name, value),) = chosen
    if name == "from_group":
        return ResetRule(RuleKind.FROM_GROUP, group=str(value))
    if name in {"by_duration", "to_datetime"}:
        rule = ResetRule(RuleKind.TO_TIME, (before_now_ms if name == "by_duration" else time_ms)(str(value)))
        note(f"rule: {rule} (UTC)")
        return rule
    return ResetRule(RuleKind(name.replace("_", "-")), value if isinstance(value, int) and value is not True else 0)


def _read_file(name: str, groups: tuple[str, ...]) -> FileOffsets:
    # a spreadsheet begins its file with a mark (utf-8-sig), and a group's name may contain any line break (newline)
    try:
        if name == "-":
            piped = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
            return read_csv(piped, groups, "standard input")
        with Path(name).open(encoding="utf-8-sig", newline="") as file:
            return read_csv(file, groups, name)
    except OSError as error:
        raise SettingsError(f"--from-file {name!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"--from-file {name!r} is not UTF-8 text") from None


def _show(output: Format, plans: Sequence[Plan], *, with_group: bool, export: bool) -> None:
    if export:
        for found, rows in plans:
            group = (found.group,) if with_group else ()
            write_csv(((*group, row.topic, row.partition, row.new_offset) for row in rows), sys.stdout)
        return
    documents = [OffsetChangeDocument.of(found, row) for found, rows in plans for row in rows]
    show(output, documents, [Section("offsets", _COLUMNS, [one.row() for one in documents])])
