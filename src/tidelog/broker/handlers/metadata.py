"""Metadata v0-13: brokers, topics, partitions, leaders.

- v0: an empty list means all topics; v1+: null means all, an empty list none.
- v4+: a missing topic is created if client and broker both allow it; the response waits for its
  leaders (at most ``KNOWN_WITHIN_MS``), after that LEADER_NOT_AVAILABLE.
- v8+: the operations that the client may perform, on request: on topics, and until v10 on the
  cluster (KIP-430).
- v12+: topics by id; UNKNOWN_TOPIC_ID for an unknown one. v10 and v11 have the field without its
  use: INVALID_REQUEST, as in Kafka (their responses cannot omit a name).
- v9+: our own tags, for a client that asks for them: partition counts, resize epoch, partition
  epochs (KIP-253). A topic with ``enable.ordered.delivery=false`` has no counts and no resize
  epoch, so that no client sends them.
- A broker without metadata delays the response: see ``first_metadata``.
- A response that would name a leader whose connection to this broker has just broken waits until
  the controller has replaced it, where it can: see ``lost_leaders``. librdkafka may wait a second
  before its next request if a response names the dead leader again.
- Brokers without the client's listener are left out, as in Kafka: as replicas they are offline, a
  leader gets LISTENER_NOT_FOUND (below v6 LEADER_NOT_AVAILABLE).
- v13: an error at the top, by which a client would appearance for its cluster again: always NONE.
- ``__cluster_metadata`` is never created.
- A topic that the controller cannot read and this broker does not know has LEADER_NOT_AVAILABLE,
  and is not created: it may exist (docs/decisions/0111).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.allowed_operations import NOT_ASKED, OF_CLUSTER, OF_TOPIC
from tidelog.broker.metadata.cache import MetadataCache, PartitionInfo, TopicMetadata
from tidelog.broker.metadata.cluster_view import ClusterView
from tidelog.broker.metadata.encoded_topics import Appearance, Form
from tidelog.broker.metadata.first_metadata import after_first_metadata
from tidelog.broker.metadata.lost_leaders import until_known
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    why_invalid,
)
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import codec, messages
from tidelog.protocol.codec import Joined
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

Asked = messages.MetadataRequest.MetadataRequestTopic
Answer = messages.MetadataResponse
Topic = messages.MetadataResponse.MetadataResponseTopic
Partition = messages.MetadataResponse.MetadataResponsePartition

ALL_IF_EMPTY_UP_TO = 0
ALWAYS_CREATES_BELOW = 4
NAMES_LISTENERS_SINCE = 6
BY_ID_SINCE = 12

CREATED_AT_ONCE = 100
"""Most topics that one request creates."""


def handle(broker: Broker, request: messages.MetadataRequest, context: RequestContext) -> Any:
    """Respond from the cache, once the leaders are known to be alive."""
    if context.version < BY_ID_SINCE and any(_by_id(each) for each in request.topics or ()):
        return _invalid(request)
    # Before the wait: a topic that is deleted meanwhile existed, and is not created again.
    missing = _to_create(broker, request, context)
    if broker.followers.has_sources and (request.topics or _wants_all(request, context)):
        return _when_leaders_are_known(broker, request, missing, context)
    return _handle(broker, request, missing, context)


def _by_id(asked: Asked) -> bool:
    return asked.name is None or asked.topic_id != NO_UUID


def _invalid(request: messages.MetadataRequest) -> Any:
    code = ErrorCode.INVALID_REQUEST
    return Answer(topics=[Topic(name=t.name or "", error_code=code) for t in request.topics or ()])


async def _when_leaders_are_known(
    broker: Broker, request: messages.MetadataRequest, missing: list[str], context: RequestContext
) -> Any:
    everything = _wants_all(request, context)

    def leaders() -> Iterable[int]:
        topics = (
            broker.metadata.topics.values() if everything else _known(broker, request.topics or [])
        )
        return (leader for topic in topics for leader in topic.replaceable_leaders)

    await until_known(broker.metadata, broker.followers, broker.clock, leaders, of_all=everything)
    answer = _handle(broker, request, missing, context)
    return await answer if inspect.iscoroutine(answer) else answer


def _wants_all(request: messages.MetadataRequest, context: RequestContext) -> bool:
    return request.topics is None or (not request.topics and context.version <= ALL_IF_EMPTY_UP_TO)


def _known(broker: Broker, asked: list[Asked]) -> Iterator[TopicMetadata]:
    found = (_find(broker.metadata, each) for each in asked)
    return (topic for topic in found if topic is not None)


def _to_create(
    broker: Broker, request: messages.MetadataRequest, context: RequestContext
) -> list[str]:
    """Return requested names of topics to create: the first ``CREATED_AT_ONCE``.

    The others stay unknown, and are created on the client's next request.
    """
    allowed = request.allow_auto_topic_creation or context.version < ALWAYS_CREATES_BELOW
    if not (allowed and broker.configs.auto_create_topics_enable and request.topics):
        return []
    missing = (t.name for t in request.topics if t.name and _creatable(broker, t.name))
    return list(islice(missing, CREATED_AT_ONCE))


def _handle(
    broker: Broker, request: messages.MetadataRequest, missing: list[str], context: RequestContext
) -> Any:
    """Respond from the cache, after topics are created if needed."""
    if missing:
        return _create_first(broker, request, missing, context)
    return _answer(broker, request, {}, context)


def _once(asked: list[Any]) -> list[Any]:
    """Return the requested topics without duplicates, as Kafka's brokers do."""
    return list({(each.name, each.topic_id): each for each in asked}.values())


def _creatable(broker: Broker, name: str) -> bool:
    known = broker.metadata.topic(name) is not None or name in broker.metadata.unreadable
    return not known and why_invalid(name) is None and name != METADATA_TOPIC


async def _create_first(
    broker: Broker, request: messages.MetadataRequest, missing: list[str], context: RequestContext
) -> Any:
    names = sorted(set(missing))
    codes = await asyncio.gather(*(_ensure(broker, name) for name in names))
    refused = {name: code for name, code in zip(names, codes, strict=True) if code}
    return _answer(broker, request, refused, context)


async def _ensure(broker: Broker, name: str) -> ErrorCode:
    # A coordinator's topic is compacted and has its own counts, whichever request creates it.
    if name == OFFSETS_TOPIC:
        return await broker.coordinator.ensure_topic()
    if name == TRANSACTIONS_TOPIC and not broker.offered_transactions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name == TRANSACTIONS_TOPIC:
        return await broker.transactions.coordinator.ensure_topic()
    return await broker.topic_creation.ensure(name)


def _find(metadata: MetadataCache, asked: Asked) -> TopicMetadata | None:
    # With an id the Java client sends an empty name, others none: only the id counts.
    by_id = asked.topic_id != NO_UUID
    return metadata.topic_by_id(asked.topic_id) if by_id else metadata.topic(asked.name or "")


def _missing(
    asked: Asked, refused: dict[str, ErrorCode], unreadable: frozenset[str] = frozenset()
) -> Any:
    if asked.topic_id != NO_UUID:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        return Topic(name=None, topic_id=asked.topic_id, error_code=code)
    name = asked.name or ""
    if why_invalid(name) is not None:
        return Topic(name=name, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name in unreadable:
        unknown = ErrorCode.LEADER_NOT_AVAILABLE
    code = refused.get(name, unknown)
    return Topic(name=name, error_code=code, is_internal=name in INTERNAL_TOPICS)


def _topics(
    broker: Broker,
    request: messages.MetadataRequest,
    refused: dict[str, ErrorCode],
    context: RequestContext,
    form: Form,
) -> Work[Joined]:
    """Return the topics of a response: those that are kept, the others as they are made."""
    metadata = broker.metadata
    everything = _wants_all(request, context)
    named: Sequence[Any] = () if everything else _once(request.topics or [])
    encoded: list[bytes] = []
    for part in pace.parts(list(metadata.topics.values()) if everything else named):
        view, grown = _view(broker, context), 0
        for each in part:
            known = each if everything else _find(metadata, each)
            if known is None:
                found = _encoded(form, _missing(each, refused, metadata.unreadable))
            else:
                appearance, change = view.appearance_of(known, form), known.change
                kept = metadata.encoded.get(known.name, change, appearance)
                if kept is None:
                    found = yield from _made(known, view, appearance)
                    metadata.encoded.keep(known.name, change, appearance, found)
                    view = _view(broker, context)
                else:
                    found = kept
            encoded.append(found)
            grown += len(found)
        yield grown
    return Joined(len(encoded), encoded)


def _view(broker: Broker, context: RequestContext) -> ClusterView:
    return ClusterView.of(
        broker.metadata,
        broker.followers.has_lost,
        context.listener_name,
        names_listeners=context.version >= NAMES_LISTENERS_SINCE,
        is_ordered=lambda topic: broker.topic_configs.topic(topic).enable_ordered_delivery,
    )


def _made(topic: TopicMetadata, view: ClusterView, appearance: Appearance) -> Work[bytes]:
    """Return the bytes of a topic as it is now."""
    encode = codec.response_encoder(
        ApiKey.METADATA, appearance.form.version, element=Partition.__name__
    )
    shown = sorted(topic.partitions.items())
    made = _topic(topic, appearance)
    partitions = bytearray()
    for part in pace.parts(shown):
        for _, partition in part:
            encode(_partition(view, partition, appearance.form.tagged), [], partitions)
        yield 0
    made.partitions = Joined(len(shown), [partitions])
    return _encoded(appearance.form, made)


def _encoded(form: Form, topic: Any) -> bytes:
    if form.with_operations:
        topic.topic_authorized_operations = OF_TOPIC
    encode = codec.response_encoder(ApiKey.METADATA, form.version, element=Topic.__name__)
    return bytes(encode(topic, [], bytearray()))


def _topic(topic: TopicMetadata, appearance: Appearance) -> Any:
    """Return a topic without its partitions."""
    shown = Topic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.name in INTERNAL_TOPICS
    )
    if appearance.counted:
        shown.initial_partition_count = topic.initial_partition_count
        shown.undeleted_partition_count = topic.undeleted_partition_count
        shown.resize_epoch = topic.resize_epoch
    return shown


def _partition(view: ClusterView, partition: PartitionInfo, tagged: bool) -> Any:
    visible = view.visible(partition)
    shown = Partition(
        error_code=visible.error,
        partition_index=partition.partition,
        leader_id=visible.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=list(visible.offline),
    )
    if tagged:
        shown.partition_epoch = partition.partition_epoch
        shown.birth_epoch = partition.birth_epoch
        shown.birth_offset = partition.birth_offset
        shown.retirement_epoch = partition.retirement_epoch
    return shown


def _answer(
    broker: Broker,
    request: messages.MetadataRequest,
    refused: dict[str, ErrorCode],
    context: RequestContext,
) -> Work[Any]:
    tagged = request.include_counts or context.connection.is_tidelog
    with_operations = request.include_topic_authorized_operations
    form = Form(context.version, tagged, with_operations)
    topics: Any = yield from _topics(broker, request, refused, context, form)
    return Answer(
        brokers=[
            Answer.MetadataResponseBroker(node_id, host, port, rack)
            for node_id, host, port, rack in broker.metadata.addresses(context.listener_name)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.metadata.visible_controller(broker.node_id),
        topics=topics,
        cluster_authorized_operations=(
            OF_CLUSTER if request.include_cluster_authorized_operations else NOT_ASKED
        ),
        max_partition_epoch=broker.metadata.max_partition_epoch if tagged else -1,
    )


HANDLER = Handler(ApiKey.METADATA, Scope.CLIENT, after_first_metadata(handle))
