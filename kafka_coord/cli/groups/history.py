"""``groups history``."""

from __future__ import annotations

from typing import Any

import click

from kafka_coord.cli.connection import connection_options, open_store
from kafka_coord.cli.options import group_argument, output_option
from kafka_coord.cli.output import Column, Format, Section, duration, iso_time, number, show
from kafka_coord.model import Decision
from kafka_coord.monitor.history import read_history

_COLUMNS = (
    number("generation", "GEN"),
    number("epoch"),
    Column("decided_at", "DECIDED"),
    Column("reason"),
    Column("assignor"),
    number("members"),
    number("partitions"),
    number("moved"),
    Column("stopped_after", "STOPPED"),
    Column("settled_after", "SETTLED"),
)
_MOVES = (number("generation", "GEN"), Column("consumer"), Column("gained"), Column("lost"))


@click.command()
@group_argument
@click.option(
    "--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="The number of decisions."
)
@click.option("--verbose", "-v", is_flag=True, help="Also show what each consumer gained and lost.")
@output_option
@connection_options
def history(group: str, last: int, verbose: bool, output: Format) -> None:
    """Show the last decisions about a group: when, why, which partitions moved, and how long it took.

    STOPPED is the time from the decision until every stop-fetcher was acknowledged; SETTLED is the time until every
    partition had its owner. Oldest first.

    \b
    kafka-coord groups history delays --last 5 --verbose
    """
    with open_store() as store:
        decisions = read_history(store, group)[-last:]
    documents = [_document(decision) for decision in decisions]
    rows = [
        document | {"stopped_after": duration(decision.stopped_ms), "settled_after": duration(decision.settled_ms)}
        for document, decision in zip(documents, decisions, strict=True)
    ]
    sections = [Section("decisions", _COLUMNS, rows)]
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
    show(output, documents, sections)


def _document(decision: Decision) -> dict[str, Any]:
    document = decision.to_json()
    decided = iso_time(document.pop("decided_at_ms"))
    return {"generation": document.pop("generation"), "decided_at": decided, **document}
