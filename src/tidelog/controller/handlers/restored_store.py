"""RestoredStore v0 (ours): what a store that has gone back in time does not know; accepts it.

- ``report`` is the JSON of ``decisions.restoration.report``, also beside a refusal.
- With ``accept`` everything jumps, and this controller becomes active anew: every broker registers
  again, with a new broker epoch, and gets a FULL.
- INVALID_REQUEST when the store has not gone back, BROKER_NOT_AVAILABLE while a broker that has
  replicas is away and is not named in ``without_brokers``.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from tidelog.controller.decisions.cluster import Refusal
from tidelog.controller.decisions.restoration import accept, report
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.controller.process import Controller

audit = logging.getLogger("tidelog.audit")


async def serve(
    controller: Controller, request: messages.RestoredStoreRequest, context: RequestContext
) -> messages.RestoredStoreResponse:
    response = messages.RestoredStoreResponse
    before = report(controller.cluster)
    if not request.accept:
        return response(report=json.dumps(before))
    without = request.without_brokers
    answer, _ = await controller.perform(lambda cluster: accept(cluster, without))
    if isinstance(answer, Refusal):
        return response(
            error_code=answer.error, error_message=answer.sentence, report=json.dumps(before)
        )
    audit.warning(
        "a restored metadata store was accepted by %s, without brokers %s",
        context.principal,
        sorted(without),
    )
    controller.lose("the restored store was accepted: everything is loaded anew")
    return response(report=json.dumps(answer))


def refuse_all(_request: object, error: ErrorCode, sentence: str) -> messages.RestoredStoreResponse:
    """Answer with one error."""
    return messages.RestoredStoreResponse(error_code=error, error_message=sentence, report="{}")


HANDLER = served(ApiKey.RESTORED_STORE, range(1), serve, refuse_all)
