"""Answers the requests that show groups of both kinds: DescribeGroups, ConsumerGroupDescribe and ListGroups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import CONSUMER
from kafka_coord.frontends.kafka import answers
from kafka_coord.frontends.kafka.access import Operation
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.group_kinds import GroupKinds
from kafka_coord.frontends.kafka.managed import views
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.wire.messages import message

_WITH_STATES = 4
"""The first version of ListGroups whose responses include the groups' states."""


class GroupViews:
    """Handles DescribeGroups, ConsumerGroupDescribe and ListGroups. Use only on the event loop."""

    def __init__(self, manager: GroupMetadataManager, kinds: GroupKinds) -> None:
        self._manager, self._kinds = manager, kinds

    async def handle_describe_groups(self, call: Call) -> Any:
        errors = await self._errors(call, call.request.groups)
        operations = await _operations(call, errors)
        managed = await self._managed(errors, operations)
        groups = []
        for group_id, error in errors.items():
            if group_id in managed:
                groups.append(views.described_as_classic(managed[group_id]))
            else:
                allowed = operations.get(group_id, answers.OPERATIONS_NOT_ASKED)
                groups.append(answers.described(group_id, error, self._manager.group(group_id), allowed))
        return message("DescribeGroupsResponse")(groups=tuple(groups))

    async def handle_consumer_group_describe(self, call: Call) -> Any:
        errors = await self._errors(call, call.request.group_ids)
        errors |= dict.fromkeys(errors.keys() & {""}, Error.INVALID_GROUP_ID)
        managed = await self._managed(errors, await _operations(call, errors))
        for one in [*managed.values()]:
            shown = _topics(one)
            if shown and await call.client.access.denied_topics(Operation.DESCRIBE, shown):
                managed[one.group] = views.GroupView(one.group, Error.TOPIC_AUTHORIZATION_FAILED)
        missing = (views.GroupView(one, error or Error.GROUP_ID_NOT_FOUND) for one, error in errors.items())
        groups = tuple(views.described(managed.get(one.group, one)) for one in missing)
        return message("ConsumerGroupDescribeResponse")(groups=groups)

    async def _errors(self, call: Call, group_ids: Iterable[str]) -> dict[str, Error]:
        """Returns an error for each group that the client is not allowed to see or that this instance does not serve,
        and NONE for every other group."""
        denied = await call.client.access.denied_groups(Operation.DESCRIBE, group_ids)
        unproven = await self._manager.prove_all(group_ids)
        failed = Error.GROUP_AUTHORIZATION_FAILED
        return {
            one: failed if one in denied else self._kinds.availability(one) or unproven.get(one, Error.NONE)
            for one in group_ids
        }

    async def _managed(self, errors: dict[str, Error], operations: dict[str, int]) -> dict[str, views.GroupView]:
        """Returns the managed groups that have no error. ``operations`` are those that the client may perform."""
        owners = {one: self._kinds.managed(one) for one, error in errors.items() if error is Error.NONE}
        names = [group_id for group_id, owner in owners.items() if owner is not None]
        owner = owners[names[0]] if names else None
        if owner is None:
            return {}
        found = await owner.administration.views(names)
        return {name: view._replace(operations=operations.get(name, view.operations)) for name, view in found.items()}

    async def handle_list_groups(self, call: Call) -> Any:
        error = await self._manager.vouch_for_all()
        if error is not Error.NONE:
            return answers.listed([], call.request, error)
        loading = Error.COORDINATOR_LOAD_IN_PROGRESS if self._manager.loading else Error.NONE
        managed, access = self._kinds.managed_here(), call.client.access
        classic = self._manager.groups().keys() - set(managed)
        hidden: frozenset[str] = frozenset()
        if not await access.may_describe_cluster():
            hidden = await access.denied_groups(Operation.DESCRIBE, [*classic, *managed])
        cache = self._manager.groups()  # some may have been deleted since
        visible = [cache[name].metadata for name in classic - hidden if name in cache]
        rows = [
            answers.Listed(one.group_id, one.protocol_type or "", one.state.value, answers.CLASSIC) for one in visible
        ]
        rows += await self._listed_managed(call, [name for name in managed if name not in hidden])
        return answers.listed(rows, call.request, loading)

    async def _listed_managed(self, call: Call, names: list[str]) -> list[answers.Listed]:
        """Returns the managed groups for ListGroups. Reads their states only if the response includes states."""
        types = {kind.lower() for kind in call.request.types_filter}
        owners = (self._kinds.managed(name) for name in names if not types or CONSUMER in types)
        owner = next((one for one in owners if one is not None), None)
        if owner is None:
            return []
        states: dict[str, views.State] = {}
        if call.version >= _WITH_STATES:
            states = await owner.administration.states(names)
        return [answers.Listed(name, CONSUMER, states.get(name, ""), CONSUMER) for name in names]


async def _operations(call: Call, errors: dict[str, Error]) -> dict[str, int]:
    """Returns the operations that the client may perform on each group without an error, if it asks for them."""
    if not getattr(call.request, "include_authorized_operations", False):
        return {}
    return await call.client.access.operations(one for one, error in errors.items() if error is Error.NONE)


def _topics(view: views.GroupView) -> set[str]:
    """Returns the topics that a description of the group names."""
    if view.seen is None:
        return set()
    return views.topics_of(view.seen).union(*(one.subscription.topics for one in view.seen.members.values()))
