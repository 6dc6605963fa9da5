"""FindCoordinator v0-6: which broker coordinates a group, or a transactional id.

- Key type 0 (groups): the leader of the group's partition of ``__consumer_offsets``, with its
  address on the client's listener. The topic is created on first use; COORDINATOR_NOT_AVAILABLE,
  which all clients retry, until its leaders are known; its message (from v1) has the reason when
  the controller refuses the topic. A broker that the metadata here still names after its
  leadership ended does not name itself: it would refuse what is sent to it.
- Key type 1 (transactional ids), from v1: the same with ``__transaction_state``. While transactions
  are not offered, CLUSTER_AUTHORIZATION_FAILED with a message. Java and librdkafka end with it and
  show the message; Java drops that of TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and librdkafka retries
  most other errors for ever. Before the level of the cluster is known here: a broker that has just
  started gives COORDINATOR_NOT_AVAILABLE.
- v4 (KIP-699): any number of keys, an error for each.
- v6: key type 2 (share groups, KIP-932) is INVALID_REQUEST: there are none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.cluster_level import NO_TRANSACTIONS
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidelog.model.work import Work
from tidelog.network.router import FAILED, Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordinator.coordinator import Coordinator

BATCHED_SINCE = 4
ANSWER_BYTES = 500
"""Memory of a key in a response under construction, with the longest message."""

GROUP, TRANSACTION = 0, 1
CREATED_WITHIN_S = 1.0
"""Longest wait for the topic's creation; after it the client gets COORDINATOR_NOT_AVAILABLE."""

MOVING = "the coordinator moves to another broker, which is not known here yet"
LEVEL_UNKNOWN = "this broker has started and does not know the level of the cluster yet"
NOT_YET = "the topic {}, or the leader of its partition, is not there yet"

_Response = messages.FindCoordinatorResponse
_Coordinator = messages.FindCoordinatorResponse.Coordinator
_ELSEWHERE = ErrorCode.NOT_COORDINATOR


async def handle(
    broker: Broker, request: messages.FindCoordinatorRequest, context: RequestContext
) -> Any:
    """Find the coordinators in the metadata cache."""
    keys = request.coordinator_keys if context.version >= BATCHED_SINCE else [request.key]
    kept = _kept(broker, request.key_type)
    if kept is not None and broker.metadata.topic(kept[0]) is None:
        await create_topic(kept[1])
    return _find_all(broker, request.key_type, keys, context)


def _find_all(broker: Broker, key_type: int, keys: list[str], context: RequestContext) -> Work[Any]:
    """Return each key once, however often it is named."""
    coordinators = []
    if key_type == TRANSACTION and broker.refused_transactions:
        broker.cluster_level.refused(context.client_id, context.client_host)
    for key in dict.fromkeys(keys):
        coordinators.append(_find(broker, key_type, key, context.listener_name))
        yield ANSWER_BYTES
    return _respond(coordinators, context.version)


def _kept(broker: Broker, key_type: int) -> tuple[str, Coordinator[Any]] | None:
    """Return the topic of keys of a type and its coordinator here; None if there are none."""
    if key_type == GROUP:
        return OFFSETS_TOPIC, broker.coordinator
    if key_type == TRANSACTION and broker.offered_transactions:
        return TRANSACTIONS_TOPIC, broker.transactions.coordinator
    return None


async def create_topic(coordinator: Coordinator[Any]) -> None:
    """Create the topic of a coordinator, and wait ``CREATED_WITHIN_S`` for it.

    The creation continues after that time; the metadata shows the outcome.
    """
    try:
        async with asyncio.timeout(CREATED_WITHIN_S):
            await coordinator.ensure_topic()
    except TimeoutError:
        return


def _find(broker: Broker, key_type: int, key: str, listener_name: str) -> Any:
    kept = _kept(broker, key_type)
    if kept is None:
        if key_type == TRANSACTION and not broker.refused_transactions:
            return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, LEVEL_UNKNOWN)
        if key_type == TRANSACTION:
            return _refusal(key, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        return _refusal(key, ErrorCode.INVALID_REQUEST, f"key type {key_type} is not known")
    topic, coordinator = kept
    number = coordinator.partition_of(key)
    if number is None:
        why = coordinator.why_no_topic()
        message = NOT_YET.format(topic) if why is None else f"{topic} was refused: {why}"
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    partition = broker.metadata.partition(topic, number)
    leader = None if partition is None else broker.metadata.brokers.get(partition.leader)
    endpoint = None if leader is None else leader.endpoints.get(listener_name)
    if leader is None or endpoint is None:
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, NOT_YET.format(topic))
    if leader.node_id == broker.node_id and coordinator.leading(number) is _ELSEWHERE:
        # LeaderAndIsr has ended the leadership, and UpdateMetadata has not come yet. librdkafka
        # 2.16 may wait for ever after NOT_COORDINATOR to its first OffsetFetch.
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, MOVING)
    host, port = endpoint
    return _Coordinator(key=key, node_id=leader.node_id, host=host, port=port)


def _refusal(key: str, error: ErrorCode, message: str) -> Any:
    return _Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message
    )


def _respond(coordinators: list[Any], version: int) -> Any:
    if version >= BATCHED_SINCE:
        return _Response(coordinators=coordinators)
    only = coordinators[0]
    return _Response(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


HANDLER = Handler(ApiKey.FIND_COORDINATOR, Scope.CLIENT, handle, failure=FAILED)
