"""Suggests a remedy for an unreadable znode, based on its path."""

from __future__ import annotations

from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout

_BELOW_A_GROUP = {
    "assignment": "nothing is moved until a rebalance replaces it: kafka-coord groups rebalance {group}",
    "owners": "the partitions that {name} holds are unknown; evict it: kafka-coord groups evict {group} {name}",
    "ids": "{name} gets no partitions: repair or stop that consumer, or evict it:"
    " kafka-coord groups evict {group} {name}",
    "offsets": "its partition is not started until the offset is set again: kafka-coord groups reset-offsets {group}"
    " --topic {name}:{partition} --to-offset {offset} --execute; or, to start where auto.offset.reset says: kafka-coord"
    " groups delete-offsets {group} --topic {name}:{partition} --yes",
    "paused": "the group counts as paused until it is removed: kafka-coord groups resume {group}",
    "history": "the next decision replaces it: kafka-coord groups rebalance {group}",
    "settled": "a new coordinator has to read the whole group: zkCli.sh delete /consumers/groups/{group}/settled",
    "unresolved": "{name} counts as allowed to read every topic: zkCli.sh delete"
    " /consumers/groups/{group}/unresolved/{name}",
    "channel": "its consumer has stopped carrying out commands; evict it: kafka-coord groups evict {group} {name}",
}
_LISTED = ("ids", "owners", "channel")
"""The znodes whose children show which consumers take part and what they hold."""
_ELSEWHERE = {
    layout.PAUSED: "all groups count as paused until it is removed: kafka-coord groups resume --all",
    layout.BROKER_TOPICS: "Kafka wrote it; until it can be read, its partitions stay with their owners",
    layout.BROKER_IDS: "restart its broker, which writes it again (see advertised.listeners);"
    " delete it if no broker has that id",
    layout.REQUESTS: "the request is not carried out; delete it",
}
_ANYTHING_ELSE = "repair it with zkCli.sh, or delete it"


def what_to_do(path: str, offset: int | None = None) -> str:
    """Returns the remedy for an unreadable znode, as a clause without a full stop. ``offset`` is the last known
    value of an unreadable offset."""
    for place, advice in _ELSEWHERE.items():
        if path == place or path.startswith(f"{place}/"):
            return advice
    group, _, below = path.removeprefix(f"{layout.GROUPS}/").partition("/")
    if not path.startswith(layout.group(group)):
        return _ANYTHING_ELSE
    if not is_legal(group):
        return "no command accepts that group name; delete the znode with everything below it (zkCli.sh deleteall)"
    if below in _LISTED:
        return (
            f"no decisions are made for {group}; give the coordinator's user permission to read it: kafka-coord acl"
            f" apply, or in an open cluster zkCli.sh setAcl {path} world:anyone:cdrwa, as its creator or as"
            " ZooKeeper's super user"
        )
    if not below:
        return (
            "the defaults apply until the settings are written again:"
            f" kafka-coord groups settings {group} --rebalance-timeout-ms 60000"
        )
    kind, _, name = below.partition("/")
    name, _, partition = name.partition("/")
    if (name and not is_legal(name)) or (kind == "offsets" and not partition):
        return _ANYTHING_ELSE
    value = "N" if offset is None else offset
    return _BELOW_A_GROUP.get(kind, _ANYTHING_ELSE).format(group=group, name=name, partition=partition, offset=value)
