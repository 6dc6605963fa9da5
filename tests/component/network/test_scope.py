"""The APIs of each connection: scopes, what ApiVersions shows, the bounded lines for the audit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tidelog.broker import handlers
from tidelog.controller.handlers import HANDLERS
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network import api_versions, frames
from tidelog.network.audit import ELSEWHERE, MAX_PLACES, Audit
from tidelog.network.forwarded import FORWARDED, MOST_FORWARDED
from tidelog.network.router import (
    FOLLOWERS,
    MOST_MOVED,
    Handler,
    RequestContext,
    Router,
    Scope,
    refusal,
)
from tidelog.network.server import Server
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import TooManyElements

CLIENT, BROKER, CONTROLLER = Scope.CLIENT, Scope.BROKER, Scope.CONTROLLER

BETWEEN_PROCESSES = {
    "broker": {
        ApiKey.LEADER_AND_ISR: CONTROLLER,
        ApiKey.STOP_REPLICA: CONTROLLER,
        ApiKey.UPDATE_METADATA: CONTROLLER,
        ApiKey.UPDATE_CONFIGS: CONTROLLER,
        ApiKey.OPEN_CONTROL_CHANNEL: CONTROLLER,
        ApiKey.RESTORED_STORE: BROKER,
    },
    "controller": {
        ApiKey.ALTER_ISR: BROKER,
        ApiKey.ENVELOPE: BROKER,
        ApiKey.BROKER_REGISTRATION: BROKER,
        ApiKey.BROKER_HEARTBEAT: BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS: BROKER,
        ApiKey.REPORT_TRUNCATION: BROKER,
        ApiKey.REPORT_FENCES: BROKER,
        ApiKey.RESTORED_STORE: BROKER,
    },
}
"""Every API that is served and is not a client's."""

FOR_CLIENTS = {
    "broker": """
        PRODUCE FETCH LIST_OFFSETS METADATA OFFSET_COMMIT OFFSET_FETCH FIND_COORDINATOR JOIN_GROUP
        HEARTBEAT LEAVE_GROUP SYNC_GROUP DESCRIBE_GROUPS LIST_GROUPS API_VERSIONS CREATE_TOPICS
        DELETE_TOPICS DELETE_RECORDS INIT_PRODUCER_ID OFFSET_FOR_LEADER_EPOCH DESCRIBE_CONFIGS
        ALTER_CONFIGS DESCRIBE_LOG_DIRS CREATE_PARTITIONS DELETE_GROUPS ELECT_LEADERS
        INCREMENTAL_ALTER_CONFIGS OFFSET_DELETE DESCRIBE_CLUSTER LIST_CONFIG_RESOURCES
        DESCRIBE_CONDITION DESCRIBE_TOPIC_PARTITIONS ALTER_PARTITION_REASSIGNMENTS
        LIST_PARTITION_REASSIGNMENTS ALTER_REPLICA_LOG_DIRS CONSUMER_GROUP_POSITION
        PARTITION_LEADER_EPOCHS_FOR_PARTITIONS DESCRIBE_FENCES DESCRIBE_ACLS DESCRIBE_CLIENT_QUOTAS
        DESCRIBE_USER_SCRAM_CREDENTIALS DESCRIBE_QUORUM DESCRIBE_PRODUCERS LIST_TRANSACTIONS
        WRITE_TXN_MARKERS TXN_OFFSET_COMMIT
        ADD_PARTITIONS_TO_TXN ADD_OFFSETS_TO_TXN END_TXN DESCRIBE_TRANSACTIONS
    """,
    "controller": """
        API_VERSIONS CREATE_TOPICS DELETE_TOPICS CREATE_PARTITIONS ALTER_CONFIGS ELECT_LEADERS
        INCREMENTAL_ALTER_CONFIGS DESCRIBE_CLUSTER DESCRIBE_CONDITION DESCRIBE_FENCES
        ALTER_PARTITION_REASSIGNMENTS LIST_PARTITION_REASSIGNMENTS DESCRIBE_TOPIC_PARTITIONS
        DESCRIBE_QUORUM
    """,
}
"""Every API that anybody may use. A new one stands in one of the two tables, on purpose: denial is
the default (promise 29)."""

WITH_TRANSACTIONS = {
    ApiKey.ADD_PARTITIONS_TO_TXN: range(5),
    ApiKey.ADD_OFFSETS_TO_TXN: range(5),
    ApiKey.END_TXN: range(5),
    ApiKey.WRITE_TXN_MARKERS: range(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: range(5),
    ApiKey.INIT_PRODUCER_ID: range(5, 6),
    ApiKey.DESCRIBE_TRANSACTIONS: range(1),
}
"""The versions of a broker's APIs that are served only while transactions are offered."""

VERSIONS_BETWEEN_BROKERS = {ApiKey.ADD_PARTITIONS_TO_TXN: range(4, 5)}
"""The versions in broker scope of APIs that clients use."""


MOVES = {ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS}
"""They are served in steps (`tests/wire/test_controller_turns.py`)."""


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_the_scope_of_every_api(role: str) -> None:
    router = (
        Router([api_versions.HANDLER, *handlers.HANDLERS])
        if role == "broker"
        else Router([api_versions.HANDLER, *HANDLERS])
    )
    found = {key: handler.scope for key in ApiKey if (handler := router.handler(key)) is not None}
    allowed = {ApiKey[name]: CLIENT for name in FOR_CLIENTS[role].split()}
    assert found == {**BETWEEN_PROCESSES[role], **allowed}
    offered = Router([handler for key in found if (handler := router.handler(key))], lambda: True)
    shown = {entry.api_key for entry in offered.api_versions(trusted=False)}
    assert shown == {key for key, scope in found.items() if scope is CLIENT}
    assert {entry.api_key for entry in offered.api_versions(trusted=True)} == set(found)


def test_versions_with_a_scope_or_a_condition_of_their_own() -> None:
    for module in (handlers.HANDLERS, HANDLERS):
        held = {each.api_key: each.with_transactions for each in module if each.with_transactions}
        assert held == (WITH_TRANSACTIONS if module is handlers.HANDLERS else {})
        scoped = {each.api_key: each.between_brokers for each in module if each.between_brokers}
        assert scoped == (VERSIONS_BETWEEN_BROKERS if module is handlers.HANDLERS else {})


@pytest.mark.parametrize("trusted", [False, True])
def test_transactions_are_known_and_not_offered(trusted: bool) -> None:
    """Clients would send them at once: they are offered together with level 1.6."""
    router = Router([api_versions.HANDLER, *handlers.HANDLERS])
    shown = {x.api_key: (x.min_version, x.max_version) for x in router.api_versions(trusted)}
    unserved = {*range(24, 29), ApiKey.DESCRIBE_TRANSACTIONS}
    assert unserved.isdisjoint(shown)
    assert shown[ApiKey.INIT_PRODUCER_ID] == (0, 4)
    assert shown[ApiKey.LIST_TRANSACTIONS] == (0, 1)
    for key in unserved:
        assert all(router.route(key, version, trusted) is None for version in range(6))


def test_brokers_forward_what_the_controller_serves_in_the_same_versions() -> None:
    brokers = Router([api_versions.HANDLER, *handlers.HANDLERS])
    controllers = Router([api_versions.HANDLER, *HANDLERS])
    for key, row in FORWARDED.items():
        for router in (brokers, controllers):
            handler = router.handler(key)
            assert handler is not None
            versions = codec.api_of(key).all_versions()
            assert (handler.versions, handler.scope) == (versions, row.scope), key.name


def test_the_controller_takes_no_longer_requests_than_brokers_forward() -> None:
    """A CreateTopics of 24,000 names, sent to the controller itself, blocked its loop for 5 s."""
    brokers, controllers = (
        Router([api_versions.HANDLER, *handlers.HANDLERS]),
        Router([api_versions.HANDLER, *HANDLERS]),
    )
    for name in FOR_CLIENTS["controller"].split():
        key = ApiKey[name]
        ours, theirs = controllers.handler(key), brokers.handler(key)
        assert ours is not None and theirs is not None
        if key is not ApiKey.API_VERSIONS:
            most = MOST_MOVED if key in MOVES else MOST_FORWARDED
            assert ours.most_elements <= min(theirs.most_elements, most), name
            assert ours.numbers_in_one == theirs.numbers_in_one, name


def test_an_api_that_cannot_be_refused_has_client_scope() -> None:
    with pytest.raises(ValueError, match="cannot be refused"):
        Router([Handler(ApiKey.METADATA, BROKER, lambda *_: None)])


def test_what_needs_transactions_is_served_while_they_are_offered() -> None:
    offered: bool | None = False
    end = Handler(ApiKey.END_TXN, CLIENT, lambda *_: None, with_transactions=range(5))
    ids = Handler(ApiKey.INIT_PRODUCER_ID, CLIENT, lambda *_: None, with_transactions=range(5, 6))
    router = Router([end, ids], lambda: offered)
    for offered in (None, False, True, False, None):
        # While it is not known, handlers answer with what clients retry. No connection begins with
        # a version that may not be served later, unless the API has no others.
        shown = {x.api_key: (x.min_version, x.max_version) for x in router.api_versions()}
        always = {ApiKey.INIT_PRODUCER_ID: (0, 4)}
        most = {ApiKey.END_TXN: (0, 4), ApiKey.INIT_PRODUCER_ID: (0, 5)}
        assert shown == {False: always, True: most, None: most | always}[offered]
        for trusted in (False, True):
            assert router.route(ApiKey.INIT_PRODUCER_ID, 4, trusted) is not None
            assert (router.route(ApiKey.INIT_PRODUCER_ID, 5, trusted) is None) is (offered is False)
            assert (router.route(ApiKey.END_TXN, 0, trusted) is None) is (offered is False)


def test_the_list_of_apis_is_made_once_for_each_kind_of_connection() -> None:
    """Each new connection asks for it: to make it took longer than all else of that request."""
    offered = False
    handlers = Router([api_versions.HANDLER, *HANDLERS], lambda: offered)
    made = {}
    for offered in (False, True, False, True):
        for trusted in (False, True):
            shown = handlers.api_versions(trusted)
            assert made.setdefault((offered, trusted), shown) is shown
    handlers.add([Handler(ApiKey.END_TXN, CLIENT, lambda *_: None)])
    assert ApiKey.END_TXN in {each.api_key for each in handlers.api_versions(False)}


def test_an_api_may_have_versions_between_brokers_only() -> None:
    def handle(_: Any, __: Any, ___: RequestContext) -> Any:
        return "handled"

    last = range(4, 5)
    handler = Handler(ApiKey.ADD_PARTITIONS_TO_TXN, CLIENT, handle, between_brokers=last)
    router = Router([handler])
    for trusted, most in ((False, 3), (True, 4)):
        (entry,) = router.api_versions(trusted)
        assert (entry.min_version, entry.max_version) == (0, most)
        for version in range(5):
            route = router.route(ApiKey.ADD_PARTITIONS_TO_TXN, version, trusted)
            assert route is not None
            assert (route.handle is handle) is (version <= most)
    with pytest.raises(ValueError, match="cannot be refused"):
        Router([Handler(handler.api_key, CLIENT, handle, between_brokers=range(3, 5))])


def test_a_refusal_needs_a_place_for_its_error_in_the_version_of_the_request() -> None:
    """Without one the connection is closed: the response would say that there are no brokers."""
    handler = Handler(ApiKey.METADATA, CLIENT, lambda *_: None)
    for version in handler.versions:
        found = refusal(handler, None, ErrorCode.UNKNOWN_SERVER_ERROR, version)
        assert (found is None) is (version < 13)
        assert found is None or found.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


class Served:
    """One API of each scope, and a count of what reached the handlers."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    def router(self) -> Router:
        def handle(_: Any, request: Any, context: RequestContext) -> Any:
            name = type(request).__name__.removesuffix("Request")
            self.reached.append(name)
            return getattr(messages, f"{name}Response")()

        return Router(
            [
                api_versions.HANDLER,
                Handler(ApiKey.HEARTBEAT, CLIENT, handle),
                Handler(ApiKey.BROKER_HEARTBEAT, BROKER, handle),
                Handler(ApiKey.STOP_REPLICA, CONTROLLER, handle),
            ]
        )


@asynccontextmanager
async def serving(trusts_all: bool) -> AsyncIterator[tuple[Server, Served, Peer]]:
    served = Served()
    server = Server(served.router(), None)
    server.trusts_all = trusts_all
    port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
    try:
        yield server, served, await Peer.connect(port)
    finally:
        await server.stop(grace_s=0.2)


def test_out_of_scope_is_refused_and_does_not_reach_the_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with serving(trusts_all=False) as (server, served, peer):
            for version in range(5):
                answer = await peer.ask(messages.StopReplicaRequest(), version)
                assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            answer = await peer.ask(messages.BrokerHeartbeatRequest(), 0)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert (await peer.ask(messages.HeartbeatRequest(), 4)).error_code == 0
            assert served.reached == ["Heartbeat"]
            refused = server.audit.refused_by_api
            assert refused == {ApiKey.STOP_REPLICA: 5, ApiKey.BROKER_HEARTBEAT: 1}

    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        run(work())
    lines = [r.getMessage() for r in caplog.records if r.name == "tidelog.audit"]
    assert len(lines) == 2
    assert lines[0] == (
        "refused StopReplica from 127.0.0.1: it is for controllers, and was asked without a proof "
        "of the cluster secret, on PLAINTEXT"
    )


def test_a_refused_request_is_not_read() -> None:
    async def work() -> None:
        async with serving(trusts_all=False) as (_, served, peer):
            # Bytes that no decoder takes: a refusal costs the same whatever came.
            peer.send(messages.StopReplicaRequest(), 4)
            await peer.receive()
            for size in (100, 1_000_000):
                frame = b"\0\5\0\4\0\0\0\7\xff\xff\0" + b"\xff" * size
                peer.asked(7, ApiKey.STOP_REPLICA, 4)
                peer.writer.write(len(frame).to_bytes(4, "big") + frame)
                answer = await peer.receive()
                assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert served.reached == []

    run(work())


def test_from_its_proof_on_a_connection_may_use_all() -> None:
    async def work() -> None:
        async with serving(trusts_all=False) as (server, served, peer):
            keys = await keys_shown(peer)
            assert keys == [ApiKey.HEARTBEAT, ApiKey.API_VERSIONS]
            (connection,) = server.connections
            connection.trust()
            keys = await keys_shown(peer)
            assert set(keys) >= {ApiKey.STOP_REPLICA, ApiKey.BROKER_HEARTBEAT}
            assert (await peer.ask(messages.StopReplicaRequest(), 4)).error_code == 0
            assert served.reached == ["StopReplica"]

    run(work())


async def keys_shown(peer: Peer) -> list[int]:
    answer = await peer.ask(messages.ApiVersionsRequest("test", "1"), 3)
    return [each.api_key for each in answer.api_keys]


@pytest.mark.parametrize("version", [3, 4])
def test_api_versions_refuses_names_of_software_that_are_not_permitted(version: int) -> None:
    """As Kafka does (KIP-511); the connection goes on."""
    good = ["a", "1", "kafka-go", "apache-kafka-java", "4.3.0-rc.1", "A.-9"]
    bad = ["", "-a", "a-", ".", "a b", "a\n", "a_b", "\u00e4", "a/1", "1.0+git", "\u0661"]

    async def work() -> None:
        async with serving(trusts_all=False) as (_, _served, peer):
            for name, number in [(name, "1") for name in bad] + [("a", name) for name in bad]:
                answer = await peer.ask(messages.ApiVersionsRequest(name, number), version)
                assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, [])
                assert not (await peer.ask(messages.ApiVersionsRequest(name), 2)).error_code
            for name in good:
                answer = await peer.ask(messages.ApiVersionsRequest(name, name), version)
                assert (answer.error_code, len(answer.api_keys)) == (ErrorCode.NONE, 2)

    run(work())


class Caller:
    def __init__(self, host: str) -> None:
        self.client_host = host
        self.listener_name = "PLAINTEXT"


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "tidelog.audit"]


def test_one_line_a_second_for_each_address_and_api(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    audit = Audit(lambda: now)
    here, there = Caller("10.0.0.1"), Caller("10.0.0.2")
    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        for step in range(5000):
            now = step / 1000
            for caller in (here, there):
                for key in (ApiKey.FETCH, ApiKey.ENVELOPE):
                    audit.refused(caller, key, "planted")  # type: ignore[arg-type]
        lines = audited(caplog)
        assert len(lines) == 5 * 4
        assert lines[4].endswith("(and 999 more since the last line)")
        caplog.clear()
        now = 6.0
        audit.say_rest()
        assert len(audited(caplog)) == 4
        caplog.clear()
        now = 60.0
        audit.say_rest()
        assert audited(caplog) == []
    assert audit.refused_by_api == {ApiKey.FETCH: 10_000, ApiKey.ENVELOPE: 10_000}


def test_many_addresses_fill_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(lambda: 5.0)
    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        for number in range(3 * MAX_PLACES):
            audit.refused(Caller(f"10.{number}"), ApiKey.FETCH, "planted")  # type: ignore[arg-type]
    lines = audited(caplog)
    assert len(lines) == MAX_PLACES + 1
    assert ELSEWHERE in lines[-1]
    assert audit.refused_by_api[ApiKey.FETCH] == 3 * MAX_PLACES
    assert len(audit._said) <= MAX_PLACES + 1


def test_the_rest_is_said_by_the_sweep(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(trusts_all=False) as (server, _, peer):
            for _ in range(3):
                await peer.ask(messages.BrokerHeartbeatRequest(), 0)
            began = server.loop.time()
            await until(lambda: server.loop.time() > began + 1.1)
            server.sweep.run()

    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        run(work())
    lines = audited(caplog)
    assert len(lines) == 2
    assert "(and 1 more" in lines[1]


@pytest.mark.parametrize("key", sorted(FOLLOWERS))
def test_what_followers_may_ask_of_all_has_a_limit_for_clients(key: ApiKey) -> None:
    router = Router([api_versions.HANDLER, *handlers.HANDLERS])
    request = messages.classes_of(codec.api_of(key).request)[""]
    topic = {
        ApiKey.FETCH: messages.FetchRequest.FetchTopic,
        ApiKey.LIST_OFFSETS: messages.ListOffsetsRequest.ListOffsetsTopic,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (messages.OffsetForLeaderEpochRequest.OffsetForLeaderTopic),
    }[key]
    version = 4
    head = codec.encode_request(key, version, 1, "", request(topics=[topic()] * 60_000))
    frame = memoryview(b"".join(head))
    handler = router.handler(key)
    assert handler is not None
    for trusted in (True, False):
        route = router.route(key, version, trusted)
        assert route is not None
        position = frames.read_rest(frames.header_at(frame[4:]), route, frame[4:])[1]
        with pytest.raises(TooManyElements) if not trusted else contextlib.nullcontext():
            route.decode(frame[4:], position)
