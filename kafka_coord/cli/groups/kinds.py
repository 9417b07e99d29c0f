"""Decides which kind of group a name means: a managed one in ZooKeeper, or a client-assigned one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kafka_coord.errors import NotFound
from kafka_coord.model.names import is_legal, legal
from kafka_coord.monitor.groups import GroupKind, snapshot_of
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

if TYPE_CHECKING:
    _NameType = click.ParamType[str]
else:
    _NameType = click.ParamType  # generic only in newer releases of click


class AnyName(_NameType):
    """The name of a group of either kind: Kafka clients may use any characters."""

    name = "group"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return str(value) if value else legal("group", value)


any_group_argument = click.argument("group", type=AnyName())
kind_option = click.option(
    "--kind",
    type=click.Choice([str(one) for one in GroupKind]),
    help="The kind of group, if two groups have this name. [default: the managed one]",
)


def kind_of(store: Store, group: str, wanted: str | None = None) -> GroupKind:
    """The requested kind. Without one: managed if such a group exists, otherwise client-assigned if instances serve
    Kafka clients. Raises :class:`NotFound` with the existing names, and :class:`InvalidName`.
    """
    from kafka_coord.monitor.client_groups.instance_directory import read_instances

    if wanted == GroupKind.MANAGED:
        legal("group", group)
    if wanted is not None:
        return GroupKind(wanted)
    if is_legal(group) and store.exists(layout.group(group)) is not None:
        return GroupKind.MANAGED
    if read_instances(store).is_used:
        return GroupKind.CLIENT_ASSIGNED
    legal("group", group)
    snapshot_of(store, group)
    raise NotFound(f"no group {group!r}")
