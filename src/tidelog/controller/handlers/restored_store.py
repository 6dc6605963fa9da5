"""RestoredStore v0 (ours): the report about a store that has gone back in time; accepts it.

- ``report`` is the JSON of ``decisions.restoration_report.report``, also with a refusal.
- With ``accept`` all epochs and counters jump, and this controller becomes active again: every
  broker registers again, with a new broker epoch, and gets a FULL.
- Data that the store does not know comes back, except what ``drop_unknown`` names: topics, topic
  ids, or partitions as topic-partition.
- INVALID_REQUEST when the store has not gone back, or ``drop_unknown`` names known data;
  BROKER_NOT_AVAILABLE while a broker with replicas that ``without_brokers`` does not name is away.
"""

from __future__ import annotations

import json
import logging

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.restoration import accept
from tidelog.controller.decisions.restoration_report import report
from tidelog.controller.serving import served_for_brokers
from tidelog.model.api_keys import ApiKey
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

audit = logging.getLogger("tidelog.audit")


async def handle(
    controller: Controller, request: messages.RestoredStoreRequest, context: RequestContext
) -> messages.RestoredStoreResponse:
    response = messages.RestoredStoreResponse
    before = report(controller.cluster)
    if not request.accept:
        return response(report=json.dumps(before))
    without = request.without_brokers
    dropped = request.drop_unknown
    answer, _ = await controller.perform(
        lambda cluster: accept(cluster, without, dropped, controller.entropy)
    )
    if isinstance(answer, RequestRefusal):
        return response(
            error_code=answer.error, error_message=answer.sentence, report=json.dumps(before)
        )
    audit.warning(
        "a restored metadata store was accepted by %(principal)s, without brokers %(without)s; "
        "given up: %(given_up)s",
        {
            "principal": context.principal,
            "without": sorted(without),
            "given_up": ", ".join(answer["given_up"]) or "nothing",
        },
    )
    # As requested: nothing is wrong.
    controller.lose("the restored store was accepted: everything is loaded again", logging.WARNING)
    return response(report=json.dumps(answer))


HANDLER = served_for_brokers(ApiKey.RESTORED_STORE, handle)
