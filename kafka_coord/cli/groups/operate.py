"""``groups rebalance``, ``evict``, ``pause``, ``resume``, ``settings``, ``delete``, ``delete-offsets``, ``convert``."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from msgspec import structs

from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.failures import Stopping, stopping_at_signals
from kafka_coord.cli.opening import open_cluster, open_groups
from kafka_coord.cli.options import (
    ANY_GROUP,
    GROUP,
    MEMBER,
    acting,
    any_group_argument,
    asking_options,
    assignors,
    confirm,
    group_argument,
    kind_option,
    output_option,
    partitions_option,
    reason_option,
    show_answers,
    timeout_option,
    who,
)
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, MalformedValue, NotFound, RequestRefused, SettingsError, Timeout
from kafka_coord.groups.client_assigned import ONLY_IN_KAFKA
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.offsets import parse_scope
from kafka_coord.groups.requests import (
    EVERYWHERE,
    SETTINGS_LIMITS,
    change_settings,
    pause_of,
    quiet,
    require_assignor,
    settled,
    wait_until,
)
from kafka_coord.groups.requests import pause as pause_groups
from kafka_coord.groups.requests import resume as resume_groups
from kafka_coord.groups.verbs import Convertible, DryRun, Verb, dry_pauses
from kafka_coord.model import GroupKind, GroupSettings, PartitionSet
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import group_pattern
from kafka_coord.model.operations import COORDINATED, DEFAULT_ASSIGNOR
from kafka_coord.zk import layout
from kafka_coord.zk.instance import read_retention

_SETTINGS = columns("setting value origin=FROM")
_UNSET = {"assignor": DEFAULT_ASSIGNOR, "lag_warning_ms": "as the site"}

_OFFSETS = columns("topic #partition #current_offset=CURRENT #repeated #skipped owner")

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what the command would do.")
wait_option = click.option("--wait", is_flag=True, help="Wait until the group is stable, for at most --timeout.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def _show_dry_run(output: Format, *dry_runs: DryRun) -> None:
    """Prints the offsets that would change. The rest of what would happen goes to standard error."""
    rows = [row for one in dry_runs for row in one.rows]
    if rows:
        show(output, rows, [Section("offsets", _OFFSETS, [one.row() for one in rows])])
    for effect in (effect for one in dry_runs for effect in one.effects):
        note(effect)
    note("nothing was changed")


def command_of(name: str, verb: Verb) -> click.Command:
    """Returns the command for a verb that needs no options of its own."""
    example = f'kafka-coord groups {name} delays --reason "moving disks"'

    @click.command(name, help=f"{verb.summary}.\n\n\b\n{example}")
    @any_group_argument
    @kind_option
    @reason_option
    @asking_options
    def command(group: str, kind: str | None, reason: str, timeout_s: float, output: Format) -> None:
        with open_groups() as directory:
            answer = verb.act(directory.find(group, kind), group, acting(reason, timeout_s))
        show_answers(output, [answer])

    return command


@click.command()
@group_argument
@reason_option
@wait_option
@asking_options
def rebalance(group: str, reason: str, wait: bool, timeout_s: float, output: Format) -> None:
    """Decide a new target for the group, even if nothing has changed. If the group is paused, the command exits
    immediately with code 8, and the request stays queued until the group is resumed.

    \b
    kafka-coord groups rebalance delays --reason "after adding memory" --wait
    """
    with open_groups() as directory:
        groups = directory.find(group)
        groups.require(group)
        answer = groups.rebalance(group, acting(reason, timeout_s))
        if wait:
            groups.wait_settled(group, timeout_s)
    show_answers(output, [answer])


@click.command()
@any_group_argument
@click.argument("consumers", type=MEMBER, nargs=-1, required=True, metavar="CONSUMER…")
@kind_option
@dry_run_option
@reason_option
@wait_option
@asking_options
def evict(
    group: str,
    consumers: tuple[str, ...],
    kind: str | None,
    dry_run: bool,
    reason: str,
    wait: bool,
    timeout_s: float,
    output: Format,
) -> None:
    """Delete consumers' registrations. Other consumers take over their partitions, and an evicted consumer must
    register again. If the group or a named consumer does not exist, no consumer is evicted, and the exit code is 7.

    In a client-assigned group, name a member by its group.instance.id or its member id (see `groups describe
    --members`). The member rejoins when it notices its eviction.

    \b
    kafka-coord groups evict delays c3 --reason "stuck since noon"
    kafka-coord groups evict delays c3 c4 --wait
    """
    with open_cluster() as (instances, brokers):
        groups = GroupDirectory(instances).find(group, kind)
        if dry_run:
            _show_dry_run(output, groups.dry_evict(group, consumers, brokers.known_ranges))
            return
        answers = groups.evict(group, consumers, acting(reason, timeout_s))
        if wait:
            groups.wait_settled(group, timeout_s)
    show_answers(output, answers)


@click.command()
@click.argument("groups", type=ANY_GROUP, nargs=-1, metavar="[GROUP…]")
@click.option("--all", "everywhere", is_flag=True, help="Pause all groups, including future groups.")
@dry_run_option
@reason_option
@click.option("--wait", is_flag=True, help="Wait until every outstanding command is acknowledged.")
@timeout_option(60.0, "How long to wait with --wait.")
@connection_options
def pause(groups: tuple[str, ...], everywhere: bool, dry_run: bool, reason: str, wait: bool, timeout_s: float) -> None:
    """Pause rebalances of the named groups, or of every group with --all.

    Consumers keep their partitions and acknowledge outstanding commands. The coordinator makes no new decisions until
    `resume`, so if a consumer dies in the meantime, its partitions have no owner.

    Consumers read on. To stop the records of a partition, an application calls Consumer.pause. To move the offsets of
    running consumers, use `reset-offsets --pause`.

    \b
    kafka-coord groups pause delays --reason "moving disks" --wait
    kafka-coord groups pause --all --reason "upgrading the brokers"
    """
    targets = _some_or_all(groups, everywhere)
    if _set_pauses(targets, pauses=True, dry_run=dry_run, reason=reason, wait_s=timeout_s if wait else None):
        click.echo(f"{_named(targets)} paused; to resume: kafka-coord groups resume {shlex.join(groups) or '--all'}")


@click.command()
@click.argument("groups", type=ANY_GROUP, nargs=-1, metavar="[GROUP…]")
@click.option("--all", "everywhere", is_flag=True, help="Lift the pause set with pause --all.")
@dry_run_option
@reason_option
@click.option("--wait", is_flag=True, help="Wait until the group is stable again (with --all: every group).")
@timeout_option(60.0, "How long to wait with --wait, for each group.")
@connection_options
def resume(groups: tuple[str, ...], everywhere: bool, dry_run: bool, reason: str, wait: bool, timeout_s: float) -> None:
    """Allow rebalances of the named groups again, or of every group with --all. With --all, groups paused by name stay
    paused.

    `groups pause` has stopped them. It stops no consumer; Consumer.pause and Consumer.resume do, for one partition.

    \b
    kafka-coord groups resume delays --wait
    kafka-coord groups resume --all
    """
    targets = _some_or_all(groups, everywhere)
    if _set_pauses(targets, pauses=False, dry_run=dry_run, reason=reason, wait_s=timeout_s if wait else None):
        click.echo(f"{_named(targets)} resumed")


@click.command()
@click.argument("group", type=GROUP, required=False)
@click.option(
    "--assignor",
    metavar="NAME",
    shell_complete=assignors,
    help="The assignor: range, roundrobin, sticky, weighted, an installed one, or 'default'.",
)
@click.option(
    "--rebalance-timeout-ms",
    type=click.IntRange(*SETTINGS_LIMITS["rebalance_timeout_ms"]),
    metavar="MS",
    help="How long a member may take to acknowledge a command before it is evicted.",
)
@click.option(
    "--offsets-retention-ms",
    type=click.IntRange(*SETTINGS_LIMITS["offsets_retention_ms"]),
    metavar="MS",
    help="How long committed offsets are kept once the group has no members. [default: as the brokers]",
)
@click.option(
    "--lag-warning-ms",
    type=click.IntRange(*SETTINGS_LIMITS["lag_warning_ms"]),
    metavar="MS",
    help="How old the oldest waiting record may be before doctor warns. [default: serve.lag_warning_ms]",
)
@click.option("--create", is_flag=True, help="Create the group if it does not exist yet.")
@click.option(
    "--export", is_flag=True, help="Print the commands that restore settings and pauses, of one group or of all."
)
@dry_run_option
@reason_option
@output_option
@connection_options
def settings(
    group: str | None,
    assignor: str | None,
    rebalance_timeout_ms: int | None,
    offsets_retention_ms: int | None,
    lag_warning_ms: int | None,
    create: bool,
    export: bool,
    dry_run: bool,
    reason: str,
    output: Format,
) -> None:
    """Show a group's settings and their source (its znode, the brokers or the default), or change the given settings.

    With --export, the output is a shell script, in which comments name the client-assigned groups, which have no
    settings.

    \b
    kafka-coord groups settings delays
    kafka-coord groups settings delays --assignor range --rebalance-timeout-ms 30000
    kafka-coord groups settings --export > groups.sh
    """
    if export:
        with open_groups() as directory:
            for line in _exported(directory, group):
                click.echo(line)
        return
    if group is None:
        raise SettingsError("name a group, or give --export for all")
    if assignor not in {None, "default"}:
        require_assignor(str(assignor))
    given = {
        "assignor": assignor,
        "rebalance_timeout_ms": rebalance_timeout_ms,
        "offsets_retention_ms": offsets_retention_ms,
        "lag_warning_ms": lag_warning_ms,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if assignor == "default":
        changes["assignor"] = None
    with open_groups() as directory:
        store, groups = directory.store, directory.new if create else directory.find(group)
        groups.require_settings(group)
        if dry_run:
            _show_dry_run(output, groups.dry_settings(group, changes))
            return
        if changes or create:
            effective = change_settings(
                store, group, lambda old: structs.replace(old, **changes), by=who(), reason=reason, create=create
            )
        else:
            effective = groups.settings(group)
        path = layout.group(group)
        data = store.get(path).data
        try:
            in_force_ms: int | None = read_retention(store).in_force_ms
        except MalformedValue as error:  # the settings are changed already
            in_force_ms = None
            note(f"the brokers' retention is unknown, so no offsets expire by it: {error}")
    stored = fields.load(data, path) if data else {}
    values = structs.asdict(effective)
    origin = {name: "znode" if name in stored else "default" for name in values}
    if effective.offsets_retention_ms is None:
        values["offsets_retention_ms"] = in_force_ms
        origin["offsets_retention_ms"] = "brokers"
    rows = [
        {"setting": name, "value": _UNSET.get(name) if value is None else value, "origin": origin[name]}
        for name, value in sorted(values.items())
    ]
    show(output, {"group": group, **values, "origin": origin}, [Section("settings", _SETTINGS, rows)])


@click.command()
@click.argument("groups", type=ANY_GROUP, nargs=-1, required=True, metavar="GROUP…")
@kind_option
@dry_run_option
@yes_option
@reason_option
@asking_options
def delete(
    groups: tuple[str, ...],
    kind: str | None,
    dry_run: bool,
    yes: bool,
    reason: str,
    timeout_s: float,
    output: Format,
) -> None:
    """Remove groups with their offsets, history and settings. The command refuses to remove a group that has members.

    \b
    kafka-coord groups delete delays --yes
    """
    with open_cluster() as (instances, brokers):
        directory = GroupDirectory(instances)
        found = {group: directory.find(group, kind) for group in groups}
        missing = [group for group, of_kind in found.items() if not of_kind.exists([group])[group]]
        if missing:
            raise NotFound(f"no such group: {', '.join(missing)}; nothing was deleted")
        if dry_run:
            _show_dry_run(
                output, *(of_kind.dry_delete(group, brokers.known_ranges) for group, of_kind in found.items())
            )
            return
        confirm(f"Delete {', '.join(groups)} with all committed offsets?", groups, yes=yes)
        answers = [of_kind.delete(group, acting(reason, timeout_s)) for group, of_kind in found.items()]
    show_answers(output, answers)


@click.command("delete-offsets")
@any_group_argument
@kind_option
@partitions_option("A topic, or some of its partitions.")
@click.option("--all-topics", is_flag=True, help="Every topic for which the group has an offset.")
@dry_run_option
@yes_option
@reason_option
@asking_options
def delete_offsets(
    group: str,
    kind: str | None,
    topics: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    yes: bool,
    reason: str,
    timeout_s: float,
    output: Format,
) -> None:
    """Delete committed offsets. The command fails while a member owns one of the partitions.

    \b
    kafka-coord groups delete-offsets delays --topic flights:0,3-5
    """
    scope = parse_scope(topics, all_topics=all_topics)
    with open_cluster() as (instances, brokers):
        groups = GroupDirectory(instances).find(group, kind)
        committed, stored = groups.committed(group)
        chosen = scope.choose(stored, group)
        if dry_run:
            _show_dry_run(output, groups.dry_delete_offsets(group, chosen, brokers.known_ranges))
            return
        confirm(f"Delete the offsets of group {group} for {chosen}?", [group], yes=yes)
        answer = groups.delete_offsets(group, chosen, committed, acting(reason, timeout_s))
    show_answers(output, [answer])


def _exported(directory: GroupDirectory, group: str | None) -> Iterator[str]:
    """Yields the lines of a shell script that restores the settings and the pauses of the group, or of all groups. The
    script creates the groups."""
    store = directory.store
    if group is None:
        found, unlisted = directory.names()
        for sentence in unlisted:
            note(sentence)
            yield f"# {sentence}"
        if (pause := pause_of(store, EVERYWHERE)) is not None:
            yield shlex.join(["kafka-coord", "groups", "pause", "--all", "--reason", pause.reason])
    else:
        found = [(group, directory.find(group))]
    for name, groups in found:
        try:
            settings = groups.settings(name)
        except RequestRefused:
            yield f"# {name!r} is {groups.kind}: it has no settings"
            continue
        words = ["kafka-coord", "groups", "settings", name, "--create"]
        for setting, value in structs.asdict(settings).items():
            if value != getattr(GroupSettings(), setting):
                words += [f"--{setting.replace('_', '-')}", str(value)]
        yield shlex.join(words)
        if (pause := pause_of(store, name, everywhere=False)) is not None:
            yield shlex.join(["kafka-coord", "groups", "pause", name, "--reason", pause.reason])


def _some_or_all(groups: tuple[str, ...], everywhere: bool) -> tuple[str, ...]:
    if bool(groups) is everywhere:
        raise SettingsError("either name groups or give --all" if groups else "name a group, or give --all")
    return tuple(dict.fromkeys(groups)) or (EVERYWHERE,)


def _set_pauses(targets: tuple[str, ...], *, pauses: bool, dry_run: bool, reason: str, wait_s: float | None) -> bool:
    """Pauses the groups, or resumes them without ``pauses``. Waits up to ``wait_s`` for each to come to rest. Returns
    false after a dry run."""
    act, rest, what = (pause_groups, quiet, "become quiet") if pauses else (resume_groups, settled, "become stable")
    everywhere = targets == (EVERYWHERE,)
    with open_groups() as directory:
        store = directory.store

        def act_on(target: str) -> None:
            if target == EVERYWHERE:
                act(store, target, by=who(), reason=reason)
                return
            groups = directory.find(target)
            groups.require(target)
            (groups.pause if pauses else groups.resume)(target, acting(reason, wait_s or 0.0))

        if dry_run:
            found, missing = directory.names() if everywhere else ([(one, directory.find(one)) for one in targets], [])
            for sentence in missing:
                note(sentence)
            # a managed group comes after one of the same name
            _show_dry_run(Format.TABLE, dry_pauses(dict(found), pauses=pauses))
            return False
        _each(targets, act_on)
        if wait_s is not None:
            for one in read_cluster(store).groups if everywhere else targets:
                wait_until(store, one, rest, what=what, timeout_s=wait_s)
    return True


def _each(
    targets: Sequence[str], act: Callable[[str], object], is_stopping: Callable[[], bool] = lambda: False
) -> None:
    """Acts on each of several groups, also if it is refused for some, and says at once why. Then raises
    :class:`RequestRefused`, which names them. Once it ``is_stopping``, returns, and says how far it got."""
    refused: list[str] = []
    for at, target in enumerate(targets):
        if is_stopping():
            note(f"stopped after {at} of {counted(len(targets), 'group')}; run the command again for the rest")
            return
        try:
            act(target)
        except (RequestRefused, NotFound, Timeout, BrokerError) as error:
            if len(targets) == 1:
                raise
            is_named = any(one in str(error) for one in (f"group {target}", f"group {target!r}"))
            whose = "" if is_named else f"group {target}: "
            note(f"{at + 1} of {len(targets)}: {whose}{error}")
            refused.append(target)
    if refused:
        raise RequestRefused(f"{counted(len(refused), 'group')} of {len(targets)} refused: {', '.join(refused)}")


def _named(targets: tuple[str, ...]) -> str:
    if targets == (EVERYWHERE,):
        return "all groups"
    return f"group {targets[0]}" if len(targets) == 1 else f"{len(targets)} groups"


_COLUMNS = columns("group topic #partition #offset verdict")
_LOOK_AGAIN_S = 0.25
_MOVES, _GONE = "moves", "does not move, because the topic was deleted or recreated"


@click.command()
@any_group_argument
@click.option(
    "--to",
    "wanted",
    type=click.Choice([str(one) for one in COORDINATED]),
    required=True,
    help="The kind to convert to.",
)
@click.option("--dry-run", is_flag=True, help="Only show the offsets that would move. This is the default.")
@click.option("--execute", is_flag=True, help="Convert the group.")
@reason_option
@asking_options
def convert(
    group: str, wanted: str, dry_run: bool, execute: bool, reason: str, timeout_s: float, output: Format
) -> None:
    """Convert a client-assigned group to a managed group, or vice versa, with its committed offsets.

    Members that use Kafka's classic protocol go on in the other kind, and rejoin once at most. A managed group with
    other members is not converted. The instance that coordinates the group converts it; if that fails midway, the group
    is as before. A group that becomes client-assigned loses its settings and its history.

    \b
    kafka-coord groups convert delays --to managed
    kafka-coord groups convert delays --to managed --execute --reason "KIP-848 from today on"
    kafka-coord groups convert delays --to client-assigned --execute
    """
    if dry_run and execute:
        raise SettingsError("give either --dry-run or --execute")
    with open_groups() as directory:
        directory.of(wanted).require_name(group)
        directory.require_coordinator(group)
        found = directory.find(group).convertible(group, GroupKind(wanted))
        is_done = found.kind == wanted
        rows = [] if is_done else [*_rows(group, found)]
        show(output, rows, [Section("offsets", _COLUMNS, rows)])
        if found.in_the_way and not is_done:
            names = ", ".join(sorted(found.in_the_way))
            raise RequestRefused(f"group {group!r} has members ({names}); stop them first. Nothing was changed")
        if not execute:
            moving = sum(row["verdict"] == _MOVES for row in rows)
            members = f" and {counted(len(found.members), 'member')}" if found.members else ""
            note(
                f"group {group} is {found.kind}; nothing was changed;"
                f" --execute moves {counted(moving, 'offset')}{members}"
            )
            return
        answer = directory.convert(group, wanted, acting(reason, timeout_s))
    note(f"{answer.result}: {answer.message}")


def _rows(group: str, found: Convertible) -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": found.offsets.get(tp),
            "verdict": _GONE if tp in found.gone else _MOVES,
        }
        for tp in PartitionSet.of(found.offsets) | found.gone
    ]


def _say_stopping(_number: signal.Signals) -> None:
    note("stopping after this group; a second signal stops at once, and the group moves all the same")


def _await_returned(directory: GroupDirectory, moved: Sequence[str], timeout_s: float, stopping: Stopping) -> None:
    """Waits until the members of the groups that were given back are all at the brokers. Raises :class:`Timeout`."""
    began = time.monotonic()
    returning = directory.returning(moved)
    if returning:
        note(f"waiting until the members of {counted(len(returning), 'group')} have rejoined; do not stop an instance")
    while returning and not stopping.requested():
        if time.monotonic() > began + timeout_s:
            raise Timeout(
                f"not all members have rejoined after {timeout_s:g} s in {counted(len(returning), 'group')}"
                f" ({', '.join(returning)}); do not stop an instance before they have, or their sessions have ended"
            )
        time.sleep(_LOOK_AGAIN_S)
        returning = directory.returning(returning)


def _matching(
    directory: GroupDirectory, sources: Sequence[GroupKind], matching: str | None
) -> tuple[list[str], list[str], list[str]]:
    """Lists the groups of these kinds whose names match. Also says and returns which groups could not be listed, and
    returns those that match and return from an earlier move. Raises :class:`NotFound` if no name matches."""
    fits = group_pattern(matching or ".*", "--matching").fits
    listed = [directory.of(source).names() for source in sources]
    unlisted = list(dict.fromkeys(one for _, missing in listed for one in missing))
    for sentence in unlisted:
        note(sentence)
    found = list(dict.fromkeys(one for names, _ in listed for one in names if fits(one)))
    returning = [one for one in directory.returning() if fits(one) and one not in found]
    if matching and not found and not returning:
        raise NotFound(f"no {' or '.join(sources)} group matches {matching!r}")
    return found, unlisted, returning


def _moving(name: str, sources: Sequence[GroupKind], to: GroupKind, text: str) -> click.Command:
    """Returns a command that moves groups of some kinds to another while they run."""

    @click.command(name, help=text)
    @click.argument("groups", type=ANY_GROUP, nargs=-1, metavar="[GROUP…]")
    @click.option("--matching", metavar="REGEX", help="Move the groups whose whole names match.")
    @click.option("--all", "everywhere", is_flag=True, help=f"Move all {' and '.join(sources)} groups.")
    @click.option("--execute", is_flag=True, help="Move them. Without it, only show what would move.")
    @reason_option
    @timeout_option(60.0, "How long to wait for each group.")
    @connection_options
    def move(
        groups: tuple[str, ...],
        matching: str | None,
        everywhere: bool,
        execute: bool,
        reason: str,
        timeout_s: float,
        managed: bool = False,
    ) -> None:
        if sum(map(bool, (groups, matching, everywhere))) != 1:
            raise SettingsError("name groups, or give --matching, or --all")
        with open_groups() as directory, stopping_at_signals(_say_stopping) as stopping:
            names, kind, unlisted = list(dict.fromkeys(groups)), GroupKind.MANAGED if managed else to, list[str]()
            moved: list[str] = []
            if not groups:
                names, unlisted, moved = _matching(directory, sources, matching)

            def act(group: str) -> None:
                if not execute:
                    click.echo("; ".join(directory.find(group).dry_convert(group, kind).effects))
                    return
                answer = directory.convert(group, kind, acting(reason, timeout_s))
                at = f"{names.index(group) + 1} of {len(names)}: " if len(names) > 1 else ""
                click.echo(f"{at}{answer.result}: {answer.message}")
                moved.append(group)

            try:
                _each(names, act, stopping.requested)
            finally:
                _await_returned(directory, moved if execute else (), timeout_s, stopping)
            if not execute:
                note(f"nothing was changed; --execute makes {counted(len(names), 'group')} {kind}")
            elif any(not one.endswith(ONLY_IN_KAFKA) for one in unlisted):
                raise RequestRefused("not all groups could be listed; run the command again")
        if stopping.requested():
            raise click.Abort

    return move


take_over = click.option("--managed", is_flag=True, help="Make them managed.")(
    _moving(
        "take-over",
        [GroupKind.NATIVE],
        GroupKind.CLIENT_ASSIGNED,
        """Take native groups over from the brokers, while they run.

    The members keep their partitions and go on; the group is frozen for less than 5 seconds. All of them must use the
    instances; KIP-848 members need --managed. If anything stands in the way, nothing is changed. Afterwards, nobody can
    join the brokers' group of that name until `give-back`.

    \b
    kafka-coord groups take-over delays
    kafka-coord groups take-over --matching 'orders-.*' --execute --reason "as planned"
    """,
    )
)
give_back = _moving(
    "give-back",
    COORDINATED,
    GroupKind.NATIVE,
    """Give groups back to the brokers, while they run.

    The members rejoin, and the brokers hand out no partition before all of them are back. The command waits for that:
    do not stop an instance before. A managed group becomes client-assigned first (see `convert`), unless all its
    members use KIP-848, which needs Kafka 4.

    \b
    kafka-coord groups give-back delays --execute
    """,
)
