"""``groups history``: shows the latest decisions and operator actions for a group."""

from __future__ import annotations

import click

from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.groups.show import report_unreadable
from kafka_coord.cli.opening import open_groups
from kafka_coord.cli.options import any_group_argument, kind_option, output_option
from kafka_coord.cli.output import ACTIONS, Format, Section, columns, duration, note, note_earlier, show
from kafka_coord.groups.group import ActionDocument, DecisionDocument
from kafka_coord.model.operations import MAX_MOVES

_COLUMNS = columns(
    "#generation=GEN #epoch decided_at=DECIDED reason assignor #members #partitions #moved "
    "stopped_after=STOPPED settled_after=SETTLED"
)
_MOVES = columns("#generation=GEN consumer gained lost")


@click.command()
@any_group_argument
@kind_option
@click.option(
    "--last",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="The number of decisions to show.",
)
@click.option("--verbose", "-v", is_flag=True, help="Also show what each consumer gained and lost.")
@click.option("--actions", "only_actions", is_flag=True, help="Show only the operator actions.")
@output_option
@connection_options
def history(group: str, kind: str | None, last: int, verbose: bool, only_actions: bool, output: Format) -> None:
    """Show the latest decisions about a group, oldest first: when and why each was made, how many partitions moved, and
    how long that took. A second table shows the operator actions; formats other than table show them only with
    --actions.

    STOPPED is the time from the decision until every stop-fetcher was acknowledged. SETTLED is the time until every
    partition had its owner.

    The history of a client-assigned group is read from its records in the groups log, which goes back only as far as
    compaction allows. EPOCH is then the term of the log's partition, and STOPPED and SETTLED are unknown.

    \b
    kafka-coord groups history delays --last 5 --verbose
    kafka-coord groups history delays --actions -o json
    """
    with open_groups() as directory:
        trail = directory.find(group, kind).history(group, note)
    report_unreadable(trail.unreadable)
    decisions, done = trail.decisions[-last:], [ActionDocument.of(one) for one in trail.actions[-last:]]
    shows_actions = only_actions or output is Format.TABLE
    note_earlier(last, actions=len(trail.actions) if shows_actions else 0)
    note_earlier(last, decisions=0 if only_actions else len(trail.decisions))
    shown = Section("actions", ACTIONS, [one.row() for one in done])
    if only_actions:
        show(output, done, [shown])
        return
    documents = [DecisionDocument.of(decision) for decision in decisions]
    rows = [
        one.row(stopped_after=duration(one.stopped_ms), settled_after=duration(one.settled_ms)) for one in documents
    ]
    sections = [Section("decisions", _COLUMNS, rows)]
    if done and output is Format.TABLE:
        sections.append(shown)
    if verbose:
        moves = [
            {
                "generation": one.generation,
                "consumer": consumer,
                "gained": moved.get("gained"),
                "lost": moved.get("lost"),
            }
            for one in decisions
            for consumer, moved in one.moves.items()
        ]
        sections.append(Section("moves", _MOVES, moves))
        if cut := [str(one.generation) for one in decisions if len(one.moves) == MAX_MOVES]:
            note(f"of {MAX_MOVES} consumers at most, the history has what they gained and lost: {', '.join(cut)}")
    show(output, documents, sections)
