"""ReportFences v0 (ours): fences and seals of a resize are below the high watermark (KIP-253).

- A resize goes on when each partition of its step is reported. Reports are kept in memory: a leader
  repeats its report until the response is NONE, and to each new controller.
- A report that no resize waits for, or of another incarnation of the partition, gets NONE and is
  dropped.
- STALE_BROKER_EPOCH for a former broker epoch.
"""

from __future__ import annotations

from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.controller import Controller
from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.cluster import FenceReport
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages


async def handle(
    controller: Controller, request: messages.ReportFencesRequest, _context: RequestContext
) -> messages.ReportFencesResponse:
    cluster = controller.cluster
    node = cluster.brokers.get(request.broker_id)
    if node is None or node.broker_epoch != request.broker_epoch:
        return messages.ReportFencesResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    noted = soft_state.note_fences(
        cluster,
        (
            soft_state.ReportedFence(
                fence.topic_id,
                fence.partition,
                FenceReport(fence.partition_epoch, fence.leader_epoch, fence.resize_epoch),
            )
            for fence in request.fences
        ),
    )
    if noted:
        controller.changed(ControllerEvent.FENCES_REPORTED)
    return messages.ReportFencesResponse()


HANDLER = served(ApiKey.REPORT_FENCES, Scope.BROKER, handle, pipelined=True)
