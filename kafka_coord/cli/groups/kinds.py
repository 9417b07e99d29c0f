"""Parses and lists the names of managed and client-assigned groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kafka_coord.cli.candidates import all_groups, offering
from kafka_coord.cli.output import note
from kafka_coord.model import GroupKind
from kafka_coord.model.names import legal

if TYPE_CHECKING:
    from kafka_coord.monitor.client_groups.asking import Instances

    _NameType = click.ParamType[str]
else:
    _NameType = click.ParamType  # generic only in newer releases of click


class AnyName(_NameType):
    """The name of any group. Kafka clients may use any characters."""

    name = "group"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return str(value) if value else legal("group", value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offering(all_groups)(ctx, param, incomplete)]


any_group_argument = click.argument("group", type=AnyName())
kind_option = click.option(
    "--kind",
    type=click.Choice([str(one) for one in GroupKind]),
    help="The kind of group, if two groups have this name. [default: the managed one]",
)


def every_group(instances: Instances, wanted: str | None = None) -> list[tuple[str, GroupKind]]:
    """Lists every group, or every group of the ``wanted`` kind, sorted by name. Prints a note about client-assigned
    groups that cannot be shown."""
    from kafka_coord.monitor.client_groups.groups import list_client_groups
    from kafka_coord.monitor.cluster import read_cluster

    found = [(group, GroupKind.MANAGED) for group in read_cluster(instances.store).groups]
    listed = list_client_groups(instances)
    for sentence in listed.missing:
        note(sentence)
    found += [(one.group, GroupKind.CLIENT_ASSIGNED) for one in listed.groups]
    return sorted(one for one in found if wanted in {None, one[1]})
