"""The testbed of events that concern the coordination's ZooKeeper alone: brokers of Kafka 4 in KRaft mode, which do not
use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kafka_coord.dev.cluster.coordinator import begin_tree
from kafka_coord.dev.cluster.kafka import Broker, KraftBroker
from kafka_coord.dev.cluster.ports import LOOPBACK
from tests.chaos.logins import OF_BROKERS, Listener
from tests.chaos.testbed import KAFKA, ChaosTestbed


class KraftMember(KraftBroker):
    """A broker with the testbed's listeners, and one as a controller."""

    def _configuration(self) -> dict[str, str]:
        lines = super()._configuration()
        return lines | {
            "listeners": f"{lines['listeners']},CONTROLLER://{LOOPBACK}:{self.controller_port}",
            "listener.security.protocol.map": f"{lines['listener.security.protocol.map']},CONTROLLER:PLAINTEXT",
        }


class KraftTestbed(ChaosTestbed):
    """Nobody logs in, because the brokers' authorizer of the other testbed needs ZooKeeper."""

    broker = KraftMember
    settings = replace(KAFKA, properties={"min.insync.replicas": "2", "unclean.leader.election.enable": "false"})
    has_logins = False

    def _make_brokers(self) -> tuple[Broker, ...]:
        brokers = super()._make_brokers()
        members = [one for one in brokers if isinstance(one, KraftMember)]
        for one in members:
            one.peers, one.cluster_id = members, members[0].cluster_id
        return brokers

    def _of_listeners(self, listeners: tuple[Listener, ...]) -> Mapping[str, str]:
        return {
            "listeners": ",".join(f"{one.name}://{one.address}" for one in listeners),
            "advertised.listeners": ",".join(f"{one.name}://{one.advertised}" for one in listeners),
            "listener.security.protocol.map": ",".join(f"{one.name}:PLAINTEXT" for one in listeners),
            "inter.broker.listener.name": OF_BROKERS,
        }

    def _begin_tree(self) -> None:
        begin_tree(self.hosts, self.bootstrap)

    def _serve_options(self) -> list[str]:
        return [*super()._serve_options(), "--bootstrap", self.bootstrap]
