"""``groups convert``: makes a client-assigned group managed, or vice versa."""

from __future__ import annotations

from typing import Any

import click

from kafka_coord.cli.opening import open_groups
from kafka_coord.cli.options import acting, any_group_argument, asking_options, reason_option
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import RequestRefused, SettingsError
from kafka_coord.groups.verbs import Convertible
from kafka_coord.model import GroupKind, PartitionSet

_COLUMNS = columns("group topic #partition #offset verdict")
_MOVES, _GONE = "moves", "does not move, because the topic was deleted or recreated"


@click.command()
@any_group_argument
@click.option(
    "--to", "wanted", type=click.Choice([str(one) for one in GroupKind]), required=True, help="The kind to convert to."
)
@click.option("--dry-run", is_flag=True, help="Only show the offsets that would move. This is the default.")
@click.option("--execute", is_flag=True, help="Convert the group.")
@reason_option
@asking_options
def convert(
    group: str, wanted: str, dry_run: bool, execute: bool, reason: str, timeout_s: float, output: Format
) -> None:
    """Convert a client-assigned group to a managed group, or vice versa, with its committed offsets.

    The command refuses to convert a group that has members, with one exception: classic clients in a managed group,
    because they rejoin. The instance that coordinates the group converts it. If the conversion fails midway, no offset
    is lost; run the command again to finish it. A group that becomes client-assigned loses its settings and its
    history.

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
        found = directory.find(group).convertible(group)
        is_done = found.kind == wanted
        rows = [] if is_done else [*_rows(group, found)]
        show(output, rows, [Section("offsets", _COLUMNS, rows)])
        if found.members and (is_done or not found.members_rejoin):
            names = ", ".join(sorted(found.members))
            raise RequestRefused(f"group {group!r} has members ({names}); stop them first. Nothing was changed")
        if not execute:
            moving = sum(row["verdict"] == _MOVES for row in rows)
            members = counted(len(found.members), "member")
            evicted = f", and evicts {members}, so that they rejoin" if found.members else ""
            note(
                f"group {group} is {found.kind}; nothing was changed;"
                f" --execute moves {counted(moving, 'offset')}{evicted}"
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
