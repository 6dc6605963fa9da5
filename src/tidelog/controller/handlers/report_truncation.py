"""ReportTruncation v0 (ours): offsets that a replica had to cut below its high watermark (KIP-704).

- Offsets [from, to) with their leader epochs: committed records that an unclean election lost. An
  empty range is where the log of an unclean leader ended, with the epoch of its last record.
- The debt record collects them, or its history once the handling is finished.
- A broker repeats a report until the response is NONE; a repeated report counts once. A report of a
  deleted topic gets NONE and is dropped.
- STALE_BROKER_EPOCH for a former broker epoch.
"""

from __future__ import annotations

import logging

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.losses import Truncation, report
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages

logger = logging.getLogger(__name__)


async def handle(
    controller: Controller, request: messages.ReportTruncationRequest, _context: RequestContext
) -> messages.ReportTruncationResponse:
    broker = request.broker_id
    truncations = [
        Truncation(
            truncation.topic_id,
            truncation.partition,
            truncation.from_offset,
            truncation.to_offset,
            epochs,
        )
        for truncation in request.truncations
        for epochs in (tuple(truncation.leader_epochs),)
    ]
    if any(truncation.first < 0 or truncation.end < truncation.first for truncation in truncations):
        return messages.ReportTruncationResponse(error_code=ErrorCode.INVALID_REQUEST)

    def decide(cluster: ClusterState) -> Decision[int | None]:
        node = cluster.brokers.get(broker)
        if node is None or node.broker_epoch != request.broker_epoch:
            return Decision(None)
        decision = report(cluster, broker, truncations)
        return Decision(decision.answer, decision.writes)

    unknown, _ = await controller.perform(decide)
    if unknown is None:
        return messages.ReportTruncationResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    if unknown:
        logger.info(
            "broker %(broker)s reported cuts of %(partitions)d partitions that no longer exist",
            {"broker": broker, "partitions": unknown},
        )
    return messages.ReportTruncationResponse()


HANDLER = served(ApiKey.REPORT_TRUNCATION, Scope.BROKER, handle, pipelined=True)
