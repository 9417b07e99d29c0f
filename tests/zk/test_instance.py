"""Tests of the instances' znodes, and of the conflict if two instances have the same broker id."""

from __future__ import annotations

import json

import pytest

from kafka_coord.errors import NodeExists, SettingsError, StoreUnavailable
from kafka_coord.model.json_fields import load
from kafka_coord.model.operations import CoordinatorInfo, Process
from kafka_coord.zk import layout
from kafka_coord.zk.instance import InstanceRegistration
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import SessionState
from tests.waiting import eventually
from tests.zk.election_scenarios import Candidate
from tests.zk.sessions import OpenStore, expire

pytestmark = pytest.mark.zookeeper

PATH = layout.instance(1)


def refused(instance: Candidate) -> str:
    """The final error for an instance whose broker id is taken, or "" while it must wait."""
    try:
        instance.instance.register()
    except NodeExists:
        return ""
    except SettingsError as error:
        return str(error)
    raise AssertionError("registered beside a living namesake")


def test_an_instance_creates_its_znode_and_deletes_it(open_store: OpenStore, store: KazooStore) -> None:
    instance = Candidate(open_store, 1)
    assert not instance.instance.is_registered()

    instance.instance.register()
    instance.instance.register()

    assert instance.instance.is_registered()
    node = store.get(PATH)
    assert node.stat.ephemeral_owner == instance.store.session.session_id
    info = CoordinatorInfo.from_json(load(node.data, PATH), PATH)
    assert (info.broker_id, info.epoch, info.endpoints) == (1, 0, {"channel": "host-1:9100"})
    instance.instance.unregister()
    instance.instance.unregister()
    assert store.exists(PATH) is None
    assert not instance.instance.is_registered()


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_registration_whose_reply_was_lost_is_found_or_repeated(
    open_store: OpenStore, store: KazooStore, took_effect: bool
) -> None:
    instance = Candidate(open_store, 1)
    (instance.lossy.lose_after if took_effect else instance.lossy.lose_before)("create")
    with pytest.raises(StoreUnavailable):
        instance.instance.register()

    instance.instance.register()

    assert instance.instance.is_registered()
    assert store.get(PATH).stat.ephemeral_owner == instance.store.session.session_id


def test_an_instance_waits_for_the_end_of_its_predecessors_session(open_store: OpenStore) -> None:
    ghost, instance = Candidate(open_store, 1), Candidate(open_store, 1)
    ghost.instance.register()

    with pytest.raises(NodeExists, match="waiting up to 12 s for its session to end"):
        instance.instance.register()
    instance.woken.clear()
    ghost.store.close()

    assert instance.woken.wait(5)
    instance.instance.register()
    assert instance.instance.is_registered()


def test_the_error_for_a_live_instance_with_the_same_broker_id_says_what_to_do(open_store: OpenStore) -> None:
    namesake = Candidate(open_store, 1, session_timeout_ms=2_000)
    namesake.instance.register()
    instance = Candidate(open_store, 1)

    sentence = eventually(lambda: refused(instance))
    assert "broker id 1 is taken by an instance with session 0x" in sentence
    assert "use another broker id here" in sentence
    assert namesake.instance.is_registered()


def test_the_error_has_the_host_and_pid_of_the_instance_with_the_same_broker_id(
    open_store: OpenStore, store: KazooStore
) -> None:
    process = Process("kafka-1", 4711, "0.1.0", 1_732_060_800_000)
    store.ensure_path(layout.COORDINATORS)
    InstanceRegistration(open_store(), 1, {}, lambda: None, process).register()
    assert CoordinatorInfo.from_json(load(store.get(PATH).data, PATH), PATH).process == process

    with pytest.raises(NodeExists, match="broker id 1 is taken by an instance on host kafka-1, pid 4711, since 20"):
        Candidate(open_store, 1).instance.register()


@pytest.mark.parametrize("operation", ["create", "get"])
def test_the_wait_for_a_predecessors_session_restarts_after_a_zookeeper_outage(
    open_store: OpenStore, operation: str
) -> None:
    """ZooKeeper's next leader gives the predecessor's session its whole timeout again."""
    ghost = Candidate(open_store, 1, session_timeout_ms=2_000)
    ghost.instance.register()
    instance, witness = Candidate(open_store, 1), Candidate(open_store, 1)
    with pytest.raises(NodeExists):
        instance.instance.register()
    eventually(lambda: refused(witness))  # the witness began to wait later, and has already waited long enough
    instance.lossy.lose_before(operation)
    with pytest.raises(StoreUnavailable):
        instance.instance.register()

    with pytest.raises(NodeExists, match="for its session to end"):
        instance.instance.register()


def test_an_instance_does_not_wait_for_a_persistent_znode(open_store: OpenStore) -> None:
    instance = Candidate(open_store, 1)
    instance.store.create(PATH, b"left by hand")
    with pytest.raises(SettingsError, match="delete it"):
        instance.instance.register()


def test_an_instance_with_an_unreadable_znode_is_assumed_to_have_the_own_session_timeout(open_store: OpenStore) -> None:
    instance = Candidate(open_store, 1)
    other = open_store()
    for nonsense in (b"\xff", b"[]", b"7", json.dumps({"session_timeout_ms": -5}).encode(), b""):
        other.create(PATH, nonsense, ephemeral=True)
        with pytest.raises(NodeExists, match="waiting up to 12 s for its session to end"):
            instance.instance.register()
        other.delete(PATH)


def test_a_registration_that_is_deleted_or_lost_with_its_session_is_noticed(open_store: OpenStore) -> None:
    instance = Candidate(open_store, 1)
    other = open_store()
    instance.instance.register()

    other.delete(PATH)
    eventually(lambda: not instance.instance.is_registered())
    assert instance.woken.is_set()
    instance.instance.register()
    assert instance.instance.is_registered()

    expire(instance.store)
    eventually(lambda: instance.store.session.state is SessionState.LOST)
    assert not instance.instance.is_registered()
    eventually(lambda: instance.store.session.state is SessionState.CONNECTED)
    instance.instance.register()
    assert other.get(PATH).stat.ephemeral_owner == instance.store.session.session_id


def told(store: KazooStore) -> tuple[bool, str]:
    info = CoordinatorInfo.from_json(load(store.get(PATH).data, PATH), PATH)
    return info.ready, info.waiting_for


def test_an_instance_says_in_its_znode_whether_it_is_ready_and_what_it_waits_for(
    open_store: OpenStore, store: KazooStore, caplog: pytest.LogCaptureFixture
) -> None:
    one = Candidate(open_store, 1).instance
    one.tell(ready=False, waiting_for="its broker")
    one.register()
    assert told(store) == (False, "its broker")
    one.tell(ready=True, waiting_for="its clients")
    assert told(store) == (True, "its clients")
    eventually(lambda: not one.is_registered())  # it has noticed that its znode was written, and registers again
    one.tell(ready=True, waiting_for="")
    assert told(store) == (True, "its clients"), "while it is not registered, it only remembers"
    one.register()
    assert told(store) == (True, "")
    assert "someone had changed" not in caplog.text


def test_an_instance_withdraws_an_endpoint_that_does_not_answer_for_now(
    open_store: OpenStore, store: KazooStore, caplog: pytest.LogCaptureFixture
) -> None:
    def endpoints() -> dict[str, str]:
        return dict(CoordinatorInfo.from_json(load(store.get(PATH).data, PATH), PATH).endpoints)

    one = Candidate(open_store, 1).instance
    one.tell(ready=False, waiting_for="its broker", withdrawn=["channel"])
    one.register()
    assert endpoints() == {}
    one.tell(ready=False, waiting_for="its broker")
    assert endpoints() == {"channel": "host-1:9100"}
    eventually(lambda: not one.is_registered())
    one.register()
    one.tell(ready=False, waiting_for="its broker", withdrawn=["channel"])
    assert endpoints() == {}
    assert told(store) == (False, "its broker")
    assert "someone had changed" not in caplog.text


def test_what_an_instance_says_is_repeated_after_a_lost_request(open_store: OpenStore, store: KazooStore) -> None:
    instance = Candidate(open_store, 1)
    instance.instance.register()
    instance.lossy.lose_before("set")
    with pytest.raises(StoreUnavailable):
        instance.instance.tell(ready=False, waiting_for="it")
    assert told(store) == (True, "")

    def says_it() -> bool:
        instance.instance.register()
        instance.instance.tell(ready=False, waiting_for="it")
        return told(store) == (False, "it")

    eventually(says_it)
