"""RestoredStore v0 (ours): the report about a store that has gone back in time; accepts it.

- ``report`` is the JSON of ``decisions.restoration_report.report``, also with a refusal.
- In a store that was accepted, ``late`` in the report has the replicas of brokers that registered
  later (docs/decisions/0103); ``accept`` takes them back, and no epoch jumps.
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
from typing import Any

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.rejoining import bring_back, rejoin
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
    if before["late"]:
        return await _accept_late(controller, request, context, before)
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
        "a restored metadata store was accepted by %(principal)s from %(address)s, without "
        "brokers %(without)s; given up: %(given_up)s",
        {
            "principal": context.principal,
            "address": context.client_host,
            "without": sorted(without),
            "given_up": ", ".join(answer["given_up"]) or "nothing",
        },
    )
    # As requested: nothing is wrong.
    controller.lose("the restored store was accepted: everything is loaded again", logging.WARNING)
    return response(report=json.dumps(answer))


async def _accept_late(
    controller: Controller,
    request: messages.RestoredStoreRequest,
    context: RequestContext,
    before: dict[str, Any],
) -> messages.RestoredStoreResponse:
    dropped = request.drop_unknown
    answer, _ = await controller.perform(
        lambda cluster: bring_back(cluster, dropped, controller.entropy)
    )
    if isinstance(answer, RequestRefusal):
        return messages.RestoredStoreResponse(
            error_code=answer.error, error_message=answer.sentence, report=json.dumps(before)
        )
    while (await controller.perform(lambda cluster: rejoin(cluster, dropped)))[0]:
        pass
    audit.warning(
        "the late replicas of a restored metadata store were accepted by %(principal)s from "
        "%(address)s; named to be given up: %(given_up)s",
        {
            "principal": context.principal,
            "address": context.client_host,
            "given_up": ", ".join(answer) or "nothing",
        },
    )
    # As requested: each broker registers again, and gets a FULL.
    controller.lose("late replicas were accepted: everything is loaded again", logging.WARNING)
    return messages.RestoredStoreResponse(report=json.dumps({**before, "given_up": answer}))


HANDLER = served_for_brokers(ApiKey.RESTORED_STORE, handle)
