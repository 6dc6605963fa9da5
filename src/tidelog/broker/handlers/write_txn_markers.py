"""WriteTxnMarkers v1: ends transactions in partitions that this broker leads (KIP-98).

- From brokers: a connection without a proof of the cluster secret gets CLUSTER_AUTHORIZATION_FAILED
  for each partition, and leaves an audit line. It is in client scope, because its response has no
  error at its top, and because Kafka's tool sends it (KIP-664).
- Each partition has its own error, as in Kafka: ``transactions.marker_writer`` has the table.
- A partition is a success once its marker is committed. The response waits ``LATE_MS`` for that,
  and not at all for a partition that is late already. REQUEST_TIMED_OUT: the marker may be in the
  log; sent again it waits for that one.
- One of another client than a broker's sender of markers, an operator's, leaves an audit line. All
  coordinators are asked first: one that has the transaction ends it, in all of its partitions. The
  errors are those of ``transactions.asked_markers`` (docs/decisions/0147).
- Several requests of one connection may wait at once (``pipelined``).
- Served only while transactions are offered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tidelog.broker.transactions.marker_sender import is_of_broker
from tidelog.broker.transactions.marker_writer import LATE_MS, Leave
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import WITHOUT_PROOF, Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.refusals import refused_in_steps
from tidelog.runtime import pace
from tidelog.transactions.markers import Marker
from tidelog.transactions.state import IdAndEpoch

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.transactions.asked_markers import Verdicts
    from tidelog.broker.transactions.marker_writer import MarkerWriter

_Response = messages.WriteTxnMarkersResponse
_Marker = messages.WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = messages.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_Partition = messages.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

audit = logging.getLogger("tidelog.audit")

NAMED = 10
"""Topics in an audit line."""

UNANSWERED = -2
"""No error code: of a partition that is not decided yet."""

ANSWER_BYTES = 200
"""Memory of a partition in a response under construction."""


def handle(
    broker: Broker, request: messages.WriteTxnMarkersRequest, context: RequestContext
) -> Work[Any]:
    """Write the markers; respond when they are committed, or after ``LATE_MS``."""
    if not context.connection.is_trusted:
        key = ApiKey.WRITE_TXN_MARKERS
        context.connection.refused(key, f"it is for brokers, and was asked {WITHOUT_PROOF}")
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return (yield from refused_in_steps(key, context.version, request, error))
    if request.markers and not is_of_broker(context.client_id):
        _say(request, context)
        return asyncio.ensure_future(_of_client(broker, request))
    written = _Written(broker.markers.writer)
    yield from _write(request, written, None)
    return written.answer()


async def _of_client(broker: Broker, request: messages.WriteTxnMarkersRequest) -> Any:
    """Write the markers that all coordinators agree to."""
    wanted = (
        (TopicPartition(topic.name, index), asked.producer_id)
        for asked in request.markers
        for topic in asked.topics
        for index in topic.partition_indexes
    )
    verdicts = await broker.markers.asked.judged(wanted)
    written = _Written(broker.markers.writer)
    await pace.run(_write(request, written, verdicts), broker.clock)
    answer = written.answer()
    return await answer if isinstance(answer, asyncio.Future) else answer


def _write(
    request: messages.WriteTxnMarkersRequest, written: _Written, verdicts: Verdicts | None
) -> Work[None]:
    for asked in request.markers:
        producer = IdAndEpoch(asked.producer_id, asked.producer_epoch)
        marker = Marker(producer, asked.transaction_result, asked.coordinator_epoch)
        topics: list[Any] = []
        written.response.markers.append(_Marker(asked.producer_id, topics))
        for topic in asked.topics:
            yield ANSWER_BYTES
            answers: list[Any] = []
            topics.append(_Topic(topic.name, answers))
            for index in topic.partition_indexes:
                if answers:
                    yield ANSWER_BYTES
                place = TopicPartition(topic.name, index)
                judged = marker if verdicts is None else verdicts.of(place, marker)
                if isinstance(judged, ErrorCode):
                    answers.append(_Partition(index, int(judged)))
                else:
                    answers.append(written.add(place, judged))


def _say(request: messages.WriteTxnMarkersRequest, context: RequestContext) -> None:
    """Write an audit line: an operator, and no coordinator, ends transactions."""
    first = request.markers[0]
    fields = {
        "client_id": context.client_id,
        "address": context.client_host,
        "producer_id": first.producer_id,
        "epoch": first.producer_epoch,
        "topics": ", ".join(topic.name for topic in first.topics[:NAMED]),
        "more": len(request.markers) - 1,
    }
    end = "commit" if first.transaction_result else "abort"
    audit.info(
        f"%(client_id)s at %(address)s asks for the {end} of transactions: of producer "
        "%(producer_id)d, epoch %(epoch)d, in %(topics)s, and %(more)d more",
        fields,
    )


class _Written:
    """One request: its response, and the partitions of it that wait."""

    def __init__(self, writer: MarkerWriter) -> None:
        self.response = _Response(markers=[])
        self._writer = writer
        self._waiting: dict[int, Leave] = {}
        """By the identity of the part of the response."""
        self._future: asyncio.Future[Any] | None = None

    def add(self, place: TopicPartition, marker: Marker) -> Any:
        """Write a marker to a partition; return its part of the response."""
        answer = _Partition(place.partition, UNANSWERED)
        # Other partitions of the request, and later requests, must not wait for one that hangs.
        is_late = self._writer.is_late(place)
        leave = self._writer.write(place, marker, lambda error: self._done(answer, error))
        if answer.error_code == UNANSWERED:
            answer.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
            if is_late:
                leave()
            else:
                self._waiting[id(answer)] = leave
        return answer

    def answer(self) -> Any:
        """Return the response, or a future of it."""
        if not self._waiting:
            return self.response
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(LATE_MS / 1000, self._finish)
        self._future.add_done_callback(lambda _: timer.cancel())
        # It is cancelled when the connection ends.
        self._future.add_done_callback(self._leave)
        return self._future

    def _done(self, answer: Any, error: ErrorCode) -> None:
        answer.error_code = int(error)
        self._waiting.pop(id(answer), None)
        if not self._waiting:
            self._finish()

    def _finish(self) -> None:
        self._leave()
        if self._future is not None and not self._future.done():
            self._future.set_result(self.response)

    def _leave(self, _: object = None) -> None:
        waiting, self._waiting = self._waiting, {}
        for leave in waiting.values():
            leave()


HANDLER = Handler(
    ApiKey.WRITE_TXN_MARKERS,
    Scope.CLIENT,
    handle,
    pipelined=True,
    with_transactions=range(1, 2),
)
